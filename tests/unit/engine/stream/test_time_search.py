from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.stream.positions import TimeSearch
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.engine.writing.append import append
from pravega_spark.event_reader import EventReader
from pravega_spark.values.segments import SegmentRange, StreamCut
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_streams import make_stream, scale, staged, write
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


# ----------------------------------------------------------- what the cut of a time promises

WRITES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), min_size=1, max_size=8)
"""Keys and times of events of one commit."""
STEPS = st.lists(
    st.one_of(
        WRITES,
        st.tuples(st.just("scale"), st.integers(0, 3)),
        st.tuples(st.just("truncate"), st.integers(1, 6)),
    ),
    min_size=1,
    max_size=10,
)


def write_times(stream: StreamLog, events: list[tuple[int, int]]) -> None:
    chunks = staged(stream, [(f"k{key}", b"x") for key, _ in events], None, [t for _, t in events])
    append(stream, stream.view().life, stream.view().version, chunks)


def split_or_merge(stream: StreamLog, number: int) -> None:
    """Split a segment, or merge it with its neighbour; they may be empty."""
    segments = sorted(stream.view().active.segments, key=lambda segment: segment.key_range.low)
    at = number % len(segments)
    low, high = segments[at].key_range.low, segments[at].key_range.high
    if len(segments) < 3:
        middle = (low + high) / 2
        scale(stream, [segments[at].segment_id], [(low, middle), (middle, high)])
    else:
        at = min(at, len(segments) - 2)
        both = segments[at : at + 2]
        ranges = [(both[0].key_range.low, both[1].key_range.high)]
        scale(stream, [segment.segment_id for segment in both], ranges)


def check_promise(stream: StreamLog, time_us: int, cut: StreamCut) -> None:
    """No readable event before the cut is late; each segment goes on with a late one, or ends."""
    view, reader = stream.view(), EventReader(stream)
    assert all(e.timestamp_us < time_us for e in reader.events(view.head, cut))
    following: dict[int, int] = {}
    for event in reader.events(cut):
        following.setdefault(event.segment_id, event.timestamp_us)
    reached = [segment_id for segment_id, offset in cut.positions.items() if offset >= 0]
    assert all(following.get(segment_id, time_us) >= time_us for segment_id in reached)
    if not any(latest >= time_us for latest in following.values()):
        assert reader.distance(cut, view.tail) == (0, 0)


@pytest.mark.medium
@given(STEPS, st.integers(0, 21))
def test_cut_of_a_time_keeps_its_promise_and_moves_forward_only(
    steps: list[list[tuple[int, int]] | tuple[str, int]], time_us: int
) -> None:
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime, segments=2)
    search, before = TimeSearch(stream, time_us), stream.view().tail
    for step in steps:
        if isinstance(step, list):
            write_times(stream, step)
        elif step[0] == "scale":
            split_or_merge(stream, step[1])
        else:  # often in the middle of a chunk
            truncate(stream, EventReader(stream).next_cut(stream.view().head, step[1]))
            search = TimeSearch(stream, time_us)
        view, cut = stream.view(), EventReader(stream).cut_at(time_us)
        check_promise(stream, time_us, cut)
        assert search.cut(view).cut == cut
        assert locate(view, cut).is_at_or_after(locate(view, before))
        before = cut


def test_truncated_late_events_of_a_chunk_do_not_count() -> None:
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime)
    write_times(stream, [(0, 9), (0, 1), (0, 9)])
    view = stream.view()
    assert dict(EventReader(stream).cut_at(5).positions) == {0: 0}
    truncate(stream, StreamCut(view.stream, view.life, {0: 1}))
    assert dict(EventReader(stream).cut_at(5).positions) == {0: 2}
