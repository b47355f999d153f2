"""The watermark of a query over several streams: who counts, who is quiet, and who holds."""

from __future__ import annotations

from typing import Any

import pytest

from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.manager import StreamManager
from pravega_spark.spark.read.offsets import OffsetPlanner
from pravega_spark.spark.read.partitions import EventPartition
from pravega_spark.spark.versions import ReadAllAvailable, ReadMaxRows
from tests.harness.small_streams import created
from tests.harness.spark_reading import stream_reader

SECOND = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Query:
    """One run of a query over s/a and s/b, with a clock of its own."""

    def __init__(self, root: str, at: Any = None, **options: str) -> None:
        given = {"subscribe": "s/a,s/b", "includewatermark": "true", **options}
        self.reader = stream_reader(root, path="", **given)
        self.clock = Clock()
        self.reader._planner = OffsetPlanner(self.reader.settings, self.clock)
        self.at = at or self.reader.initialOffset()
        self.limit = ReadMaxRows(1) if "maxoffsetspertrigger" in options else ReadAllAvailable()

    def batch(self) -> int | None:
        """Return the watermark of the next batch, in seconds since 1970."""
        end = self.reader.latestOffset(self.at, self.limit)
        assert end != self.at
        (found,) = {
            one.watermark_us
            for one in self.reader.partitions(self.at, end)
            if isinstance(one, EventPartition)
        }
        self.at = end
        return None if found is None else found // SECOND

    @property
    def held_by(self) -> Any:
        report = self.reader.reportLatestOffset()
        assert report is not None
        return report.get("held_by")


@pytest.fixture
def manager(root: str) -> StreamManager:
    created(root)
    created(root, "s/b")
    return StreamManager(root)


def write(writer: EventStreamWriter, second: int | None = None) -> None:
    writer.write_event(b"0").result()
    if second is not None:
        writer.note_time(second * 1_000).result()


@pytest.mark.medium
def test_stream_whose_only_writer_has_closed_holds_for_the_time_out_and_no_longer(
    root: str, manager: StreamManager
) -> None:
    a, b = manager.create_writer("s/a", "a"), manager.create_writer("s/b", "b")
    write(a, 10)
    write(b, 10)
    b.close()
    query = Query(root)
    assert query.batch() == 10
    assert query.held_by is None
    write(a, 100)
    query.clock.now = 299
    assert query.batch() == 10
    assert query.held_by == {"s/b": []}
    write(a, 200)
    query.clock.now = 301
    assert query.batch() == 200
    assert query.held_by is None
    assert query.reader.reportLatestOffset() == query.at
    with manager.create_writer("s/b", "b2") as again:
        write(again, 210)
        write(a, 220)
        assert query.batch() == 210, "it counts again with its next event"
    a.close()


def test_stream_that_goes_on_without_notes_holds_and_is_named(
    root: str, manager: StreamManager
) -> None:
    query = Query(root)
    with manager.create_writer("s/a", "a") as a, manager.create_writer("s/b") as b:
        for minute in range(1, 20):
            query.clock.now = 60 * minute
            write(a, 60 * minute)
            write(b)
            assert query.batch() is None
            assert query.held_by == {"s/b": []}


def test_writer_that_fell_silent_in_a_busy_stream_is_named(
    root: str, manager: StreamManager
) -> None:
    query = Query(root)
    with (
        manager.create_writer("s/a", "a") as a,
        manager.create_writer("s/b", "talks") as talks,
        manager.create_writer("s/b", "silent") as silent,
    ):
        write(silent, 5)
        for minute in range(1, 4):
            query.clock.now = 60 * minute
            write(a, 60 * minute)
            write(talks, 60 * minute)
            assert query.batch() == 5
        assert query.held_by == {"s/b": ["silent"]}


def test_stream_that_was_not_read_to_its_tail_is_not_quiet(
    root: str, manager: StreamManager
) -> None:
    with manager.create_writer("s/a", "a") as a, manager.create_writer("s/b", "b") as b:
        write(a, 10)
        for second in range(20):
            write(b, second)
        query = Query(root, maxoffsetspertrigger="4")
        query.batch()
        query.clock.now = 1_000
        write(a, 900)
        assert query.batch() in (None, *range(20))
        assert list(query.held_by or {"s/b": 0}) == ["s/b"]


@pytest.mark.parametrize(("age_s", "expected"), [(299, None), (301, 10)])
def test_new_process_goes_by_the_age_of_the_version(
    root: str,
    manager: StreamManager,
    monkeypatch: pytest.MonkeyPatch,
    age_s: int,
    expected: int | None,
) -> None:
    looked: list[int] = []

    def written_ms(self: VersionAges, version: int) -> int:
        looked.append(version)
        return self.now_ms - age_s * 1_000

    monkeypatch.setattr(VersionAges, "written_ms", written_ms)
    query = Query(root)
    with manager.create_writer("s/a", "a") as a:
        for second in (10, 10, 10):
            write(a, second)
            assert query.batch() == expected, "s/b was never written to"
    assert len(looked) == 1, "the version is looked up once"


def test_all_streams_count_where_all_are_quiet(root: str, manager: StreamManager) -> None:
    with manager.create_writer("s/a", "a") as a, manager.create_writer("s/b", "b") as b:
        write(a, 10)
        write(b, 20)
    query = Query(root)
    assert query.batch() == 10
