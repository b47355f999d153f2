"""Delta's table history has the operations of the stream, with writers, sessions and metrics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pravega_spark.engine.log.actions import ENGINE
from pravega_spark.engine.log.snapshot import PROTOCOL
from pravega_spark.values.segments import parse_segment
from tests.harness.story import STREAM, Story

pytestmark = pytest.mark.spark


def delta_spark(story: Story, spark: SparkSession) -> list[dict[str, Any]]:
    rows = spark.sql(f"DESCRIBE HISTORY delta.`{story.table}`").collect()
    return [row.asDict() for row in rows]


def delta_rs(story: Story, spark: SparkSession) -> list[dict[str, Any]]:
    return DeltaTable(story.table).history()


@pytest.mark.parametrize("history", [delta_spark, delta_rs])
def test_history_has_every_operation_in_order(
    story: Story, spark: SparkSession, history: Any
) -> None:
    entries = history(story, spark)[::-1]
    assert [entry["version"] for entry in entries] == list(range(story.version + 1))
    assert [entry["operation"] for entry in entries] == [name for name, _ in story.operations]
    assert {entry["engineInfo"] for entry in entries} == {ENGINE}

    written: Counter[str] = Counter()
    rows: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for entry, (operation, writer) in zip(entries, story.operations, strict=True):
        parameters = {k: json.loads(v) for k, v in entry["operationParameters"].items()}
        if operation in {"CREATE STREAM", "SEAL STREAM"}:
            assert parameters["stream"] == STREAM
        if writer == "ingest":
            assert parameters["writer"] == writer
        if operation == "OPEN WRITER":
            assert parameters["session"] >= 1
        if operation == "APPEND":
            metrics: Mapping[str, str] = entry["operationMetrics"]
            by_segment = segments(metrics["rowsBySegment"])
            assert by_segment.total() == int(metrics["numOutputRows"]) > 0
            assert segments(metrics["bytesBySegment"]).total() == int(metrics["numOutputBytes"])
            assert int(metrics["numFiles"]) >= len(by_segment)
            written[parameters["writer"]] += int(metrics["numOutputRows"])
            rows += by_segment
            sizes += segments(metrics["bytesBySegment"])

    assert written["ingest"] + sum(
        count for writer, count in written.items() if writer.startswith("_")
    ) == sum(rows.values())
    view = story.stream.view()
    assert rows == {s: view.segment(s).next_offset for s in rows}
    assert sizes == {s: view.segment(s).size_bytes for s in sizes}
    assert sum(rows.values()) == sum(story.rows[story.version].values())


def segments(text: str) -> Counter[int]:
    """Parse ``0#0=3,5#1=8``."""
    cells = (cell.split("=") for cell in text.split(","))
    return Counter({parse_segment(segment): int(number) for segment, number in cells})


def test_protocol_admits_every_reader_and_no_other_writer(
    story: Story, spark: SparkSession
) -> None:
    protocol = DeltaTable(story.table).protocol()
    features = ["domainMetadata", "inCommitTimestamp", "pravega-stream"]
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 7)
    assert sorted(protocol.writer_features or ()) == features == PROTOCOL["writerFeatures"]
    assert not protocol.reader_features
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{story.table}`").collect()
    assert (detail.minReaderVersion, detail.minWriterVersion) == (1, 7)
    assert sorted(detail.tableFeatures) == features
    assert detail.partitionColumns == ["segment_id", "base_offset"]
    assert detail.name == STREAM
    assert detail.numFiles == len(DeltaTable(story.table).file_uris())
