from __future__ import annotations

import pytest

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.time_search import TimeSearch
from pravega_spark.model import SegmentRange
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_streams import make_stream, write
from tests.harness.spy_store import Spy


def stream_of(*seconds: int) -> StreamLog:
    """A stream of one segment with a chunk for each time."""
    runtime = FakeRuntime()
    stream = make_stream(Spy(memory(runtime)), runtime)
    for second in seconds:
        write_at(stream, second)
    return stream


def write_at(stream: StreamLog, second: int) -> None:
    assert isinstance(stream.runtime, FakeRuntime)
    stream.runtime.wall_ms = second * 1_000
    write(stream, [("k", b"x"), ("k", b"y")])


def found(stream: StreamLog, second: float) -> int:
    cut = TimeSearch(stream, round(second * 1_000_000)).cut(stream.view())
    return dict(cut.cut.positions)[0]


def test_first_late_event_in_log_order_counts_though_timestamps_fall() -> None:
    stream = stream_of(10, 30, 20, 40)
    assert [found(stream, second) for second in (0, 10, 10.5, 25, 30, 31)] == [0, 0, 2, 2, 2, 6]


def test_cut_is_the_tail_if_no_event_is_late_enough() -> None:
    stream = stream_of(10, 20)
    search = TimeSearch(stream, 30_000_000)
    assert search.cut(stream.view()).cut == stream.view().tail
    assert search.found == {}


def test_repeated_search_searches_new_events_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = stream_of(10, 20)
    search = TimeSearch(stream, 30_000_000)
    search.cut(stream.view())
    asked: list[SegmentRange] = []
    chunks = StreamLog.chunks

    def noted(self: StreamLog, rng: SegmentRange) -> object:
        asked.append(rng)
        return chunks(self, rng)

    monkeypatch.setattr(StreamLog, "chunks", noted)
    write_at(stream, 40)
    assert dict(search.cut(stream.view()).cut.positions) == {0: 4}
    write_at(stream, 50)
    assert dict(search.cut(stream.view()).cut.positions) == {0: 4}
    assert [(rng.start, rng.end) for rng in asked] == [(4, 6)]
