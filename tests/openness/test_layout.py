"""Plain engines find the segments of any time by the queries of docs/query-engines.md."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from tests.harness.delta_engines import connect_duckdb
from tests.harness.page_examples import REPOSITORY, examples_of
from tests.harness.tiers import IS_LONG

S = "s/t"
Cells = list[tuple[int, float, float]]
Query = Callable[[Path, str], Cells]


def _texts() -> dict[str, Any]:
    """Return the texts of the page: what its block defines before it calls anything."""
    page = (REPOSITORY / "docs/query-engines.md").read_text()
    (code,) = (e.code for e in examples_of(page) if e.code.startswith("SEGMENTS = "))
    names: dict[str, Any] = {}
    exec(code.partition("\n\n")[0], names)
    return names


TEXTS = _texts()


def _text(history: str, condition: str) -> str:
    text: str = TEXTS["SEGMENTS"].format(history=history, condition=condition)
    return text


def by_delta_rs(table: Path, condition: str) -> Cells:
    query = QueryBuilder().register("history", DeltaTable(str(table)))
    found = query.execute(_text("history", condition)).read_all()
    columns = (found[name].to_pylist() for name in ("segment_id", "low", "high"))
    return list(zip(*columns, strict=True))


class Story:
    """A stream that scales and rolls, is deleted, made again, and restored from a copy."""

    def __init__(self, root: Path) -> None:
        self.manager = StreamManager(root)
        self.manager.create_scope("s")
        self.create()

    def create(self) -> None:
        self.manager.create_stream(S, StreamConfiguration(ScalingPolicy.by_event_rate(1)))

    def scale(self) -> None:
        active = self.manager.segments(S)
        ranges = [(0.0, 0.5), (0.5, 1.0)] if len(active) == 1 else [(0.0, 1.0)]
        self.manager.scale_stream(S, [s.segment_id for s in active], ranges)

    def roll(self) -> None:
        with self.manager.create_transactional_writer(S) as writer:
            transaction = writer.begin_transaction()
            transaction.write_event(b"late", "k")
            transaction.flush()
            self.scale()
            transaction.commit()
        self.manager.sweep_stream(S)  # its rows come in the background, too


def assert_found(manager: StreamManager, table: Path, query: Query) -> None:
    def cells(**when: int) -> Cells:
        found = manager.segments(S, **when)
        return [(s.segment_id, s.key_range.low, s.key_range.high) for s in found]

    assert query(table, TEXTS["NOW"]) == cells()
    for epoch in manager.epochs(S):
        at = TEXTS["AT"].format(ms=epoch.created_ms)
        assert query(table, at) == cells(time_ms=epoch.created_ms)


def check_all_lives(folder: Path, query: Query, *, each: bool = True) -> None:
    """Ask after each part of the story, or only at its end, when the table has all of it."""
    root, copy = folder / "root", folder / "copy"
    story, table = Story(root), root / S / "metadata"
    story.scale()
    story.scale()
    story.roll()
    if each:
        assert_found(story.manager, table, query)
    story.manager.seal_stream(S)
    story.manager.delete_stream(S)
    story.create()
    story.scale()
    if each:
        assert_found(story.manager, table, query)
    story.manager.backup(copy)
    story.scale()
    shutil.rmtree(copy / S / "metadata")  # a copy whose history is newer than its log
    shutil.copytree(table, copy / S / "metadata")
    restored = StreamManager(copy)
    restored.restore()
    assert_found(restored, copy / S / "metadata", query)
    story.manager.close()
    restored.close()


@pytest.mark.medium
def test_segments_now_and_at_each_time(tmp_path: Path) -> None:
    with connect_duckdb() as duck:

        def by_both(table: Path, condition: str) -> Cells:
            text = _text(f"delta_scan('{table}')", condition)
            found: Cells = duck.execute(text).fetchall()
            assert by_delta_rs(table, condition) == found
            return found

        check_all_lives(tmp_path, by_both)


@pytest.mark.spark
@pytest.mark.long
def test_segments_now_and_at_each_time_by_spark(tmp_path: Path, spark: SparkSession) -> None:
    def by_spark(table: Path, condition: str) -> Cells:
        frame = spark.read.format("delta").load(str(table))
        frame.createOrReplaceTempView("layout_history")
        return [tuple(row) for row in spark.sql(_text("layout_history", condition)).collect()]

    check_all_lives(tmp_path, by_spark, each=IS_LONG)
