"""Tasks of Spark whose chunks were merged, and their files swept, after the driver planned them."""

from __future__ import annotations

import pytest

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager
from tests.harness.fake_runtime import SkippingRuntime
from tests.harness.small_streams import created
from tests.harness.spark_reading import (
    batch_reader,
    events,
    fill,
    first_batch,
    rows,
    stream_reader,
)


@pytest.fixture
def stream(root: str) -> StreamLog:
    """A stream of one segment with 40 chunks of five events."""
    made = created(root)
    for i in range(40):
        fill(made, 5 * i, 5 * i + 5)
    return made


def merge_and_delete(root: str, stream: StreamLog) -> None:
    """Merge all chunks, as ten minutes later, and delete the files that they had."""
    before = {entry.key for entry in stream.store.list(f"{stream.path}/data")}
    later = SkippingRuntime()
    later.skip(600)
    assert StreamManager(root, runtime=later).compact_stream("s/a").files_after == 1
    stream.store.delete(before)


def test_batch_tasks_find_merged_events(root: str, stream: StreamLog) -> None:
    reader = batch_reader(root, minpartitions="3")
    partitions = reader.partitions()
    merge_and_delete(root, stream)
    assert events(rows(reader, partitions)) == list(range(200))


def test_micro_batches_go_on_over_a_merge(root: str, stream: StreamLog) -> None:
    reader = stream_reader(root)
    start, end = reader.initialOffset(), first_batch(reader)
    partitions = reader.partitions(start, end)
    merge_and_delete(root, stream)
    assert events(rows(reader, partitions)) == list(range(200))
    fill(stream, 200, 205)
    newer = stream_reader(root)
    following = first_batch(newer)
    assert events(rows(newer, newer.partitions(end, following))) == list(range(200, 205))
