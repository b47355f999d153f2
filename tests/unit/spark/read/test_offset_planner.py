from __future__ import annotations

import logging
from typing import Any

import pytest

from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    InvalidOption,
    InvalidStreamCut,
    NoSuchStream,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.manager import StreamManager
from pravega_spark.spark.read import offsets as read_offsets
from pravega_spark.spark.read.discovery import matching_streams
from pravega_spark.spark.read.offsets import OffsetPlanner
from pravega_spark.spark.settings import ReadBound, ReadSettings
from pravega_spark.spark.source_offsets import StreamOffsets, present
from pravega_spark.values.segments import END, StreamCut, make_segment_id
from pravega_spark.values.times import Timestamp
from tests.harness.drawn_lives import DRAWN
from tests.harness.small_streams import created, scale, write
from tests.harness.truncating import truncate


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def fill(stream: StreamLog, count: int, size: int = 10) -> None:
    write(stream, [(f"k{i}", b"x" * size) for i in range(count)])


def planner(root: str, *names: str, clock: Clock | None = None, **settings: Any) -> OffsetPlanner:
    given: dict[str, Any] = {
        "streams": names or ("s/a",),
        "starting": ReadBound("startingOffsets", "earliest"),
    }
    read_settings = ReadSettings(root, **{**given, **settings})
    return OffsetPlanner(read_settings, clock or Clock())


def begin(run: OffsetPlanner) -> None:
    """Begin a new query, as far as its start options are concerned."""
    run.check_start(run.initial_offsets())


def cut(offsets: StreamOffsets, name: str = "s/a") -> dict[int, int]:
    return dict(offsets[name].cut.positions)


def test_start_stays_the_same_within_a_run(root: str) -> None:
    stream = created(root)
    fill(stream, 3)
    run = planner(root, starting=None)
    first = run.initial_offsets()
    fill(stream, 2)
    assert run.initial_offsets() == first
    assert cut(first) == {0: 3}


def test_default_start_is_the_tail_and_explicit_ones_are_resolved(root: str) -> None:
    stream = created(root)
    fill(stream, 5)
    assert cut(planner(root, starting=None).initial_offsets()) == {0: 5}
    assert cut(planner(root).initial_offsets()) == {0: 0}
    offsets = ReadBound("startingOffsets", {"s/a": {0: 2}})
    assert cut(planner(root, starting=offsets).initial_offsets()) == {0: 2}
    marked = ReadBound("startingOffsets", {"s/a": {0: -1}})
    assert cut(planner(root, starting=marked).initial_offsets()) == {0: 5}
    named = ReadBound("startingStreamCut", {"s/a": StreamCut("s/a", 1, {0: 4})})
    assert cut(planner(root, starting=named).initial_offsets()) == {0: 4}


def test_start_that_leaves_out_a_stream_or_is_not_in_it_is_refused(root: str) -> None:
    created(root)
    with pytest.raises(InvalidOption, match=r"startingOffsets names s/b.*also reads s/a"):
        begin(planner(root, starting=ReadBound("startingOffsets", {"s/b": {0: 2}})))
    with pytest.raises(InvalidStreamCut):
        begin(planner(root, starting=ReadBound("startingOffsets", {"s/a": {0: 2}})))


def test_limit_is_shared_over_the_streams_by_backlog(root: str) -> None:
    fill(created(root, "s/a"), 300)
    fill(created(root, "s/b"), 100)
    run = planner(root, "s/a", "s/b", max_events=40)
    end = run.next_offsets(run.initial_offsets(), limited=True)
    assert (cut(end, "s/a"), cut(end, "s/b")) == ({0: 30}, {0: 10})
    end = run.next_offsets(run.initial_offsets(), limited=False)
    assert (cut(end, "s/a"), cut(end, "s/b")) == ({0: 300}, {0: 100})


def test_bytes_limit_is_soft_and_reads_at_least_one_event(root: str) -> None:
    stream = created(root)
    fill(stream, 100, size=50)
    run = planner(root, max_bytes=1_000)
    assert cut(run.next_offsets(run.initial_offsets(), limited=True)) == {0: 20}
    run = planner(root, max_bytes=1)
    assert cut(run.next_offsets(run.initial_offsets(), limited=True)) == {0: 1}


def test_waits_for_the_minimum_but_no_longer_than_the_delay(root: str) -> None:
    stream = created(root)
    clock = Clock()
    run = planner(root, clock=clock, min_events=10, max_trigger_delay_ms=5_000)
    fill(stream, 1)
    at = run.next_offsets(run.initial_offsets(), limited=True)
    assert cut(at) == {0: 1}, "the first batch does not wait, as in Kafka's source"
    fill(stream, 9)
    assert run.next_offsets(at, limited=True) == at
    fill(stream, 1)
    at = run.next_offsets(at, limited=True)
    assert cut(at) == {0: 11}
    fill(stream, 1)
    clock.now += 4.9
    assert run.next_offsets(at, limited=True) == at
    clock.now += 0.2
    assert cut(run.next_offsets(at, limited=True)) == {0: 12}


def test_minimum_never_delays_available_now(root: str) -> None:
    stream = created(root)
    run = planner(root, min_events=10)
    fill(stream, 1)
    run.prepare_available_now()
    at = run.next_offsets(run.initial_offsets(), limited=True)
    assert cut(at) == {0: 1}
    assert run.next_offsets(at, limited=True) == at


def test_available_now_ends_at_the_tail_of_its_start_over_scale_events(root: str) -> None:
    stream = created(root, segments=2)
    fill(stream, 100)
    scale(stream, [0, 1], [(0.0, 1.0)])
    fill(stream, 50)
    scale(stream, [make_segment_id(2, 1)], [(0.0, 0.25), (0.25, 1.0)])
    fill(stream, 30)
    run = planner(root, max_events=37)
    run.prepare_available_now()
    tail = stream.view().tail
    fill(stream, 500)
    at, rounds = run.initial_offsets(), 0
    while (end := run.next_offsets(at, limited=True)) != at:
        at, rounds = end, rounds + 1
        assert rounds < 30
    assert at["s/a"].cut == tail


def test_large_successor_waits_for_its_predecessors(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = created(root, segments=2)
    fill(stream, 100)
    ends = dict(stream.view().tail.positions)
    scale(stream, [0, 1], [(0.0, 1.0)])
    fill(stream, 50)
    monkeypatch.setattr(read_offsets, "PACKED_ROWS", 149)
    run = planner(root)
    at = run.next_offsets(run.initial_offsets(), limited=False)
    assert sum(cut(at).values()) == 0
    assert list(cut(at)) == [make_segment_id(2, 1)], f"after {ends} the successor is next"
    assert cut(run.next_offsets(at, limited=False)) == {make_segment_id(2, 1): 50}
    monkeypatch.setattr(read_offsets, "PACKED_ROWS", 150)
    both = planner(root)
    assert cut(both.next_offsets(both.initial_offsets(), limited=False)) == cut(
        run.next_offsets(at, limited=False)
    )


def test_idle_source_returns_the_same_offset(root: str) -> None:
    stream = created(root)
    fill(stream, 3)
    run = planner(root)
    at = run.next_offsets(run.initial_offsets(), limited=True)
    assert run.next_offsets(at, limited=True) == at
    assert run.next_offsets(at, limited=True) == at
    fill(stream, 1)
    assert cut(run.next_offsets(at, limited=True)) == {0: 4}


def test_remote_stream_is_refreshed_at_most_once_a_second(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = created(root)
    fill(stream, 1)
    monkeypatch.setattr(type(stream.store), "is_local", False)
    refreshes = 0
    real = StreamLog.view

    def view(self: StreamLog, *, refresh: bool = True) -> StreamView:
        nonlocal refreshes
        refreshes += 1
        return real(self, refresh=refresh)

    monkeypatch.setattr(StreamLog, "view", view)
    clock = Clock()
    run = planner(root, clock=clock)
    at = run.initial_offsets()
    for _ in range(100):
        at = run.next_offsets(at, limited=True)
        clock.now += 0.011
    assert refreshes == 2


def test_end_option_bounds_a_streaming_query(root: str) -> None:
    stream = created(root)
    fill(stream, 5)
    run = planner(root, ending=ReadBound("endingOffsets", {"s/a": {0: 3}}))
    at = run.next_offsets(run.initial_offsets(), limited=True)
    assert cut(at) == {0: 3}
    fill(stream, 5)
    assert run.next_offsets(at, limited=True) == at


def test_end_time_bounds_a_query_as_new_events_arrive(root: str) -> None:
    stream = created(root)
    fill(stream, 5)
    late = stream.runtime.now_us() + 10_000_000
    run = planner(root, ending=ReadBound("endingTimestamp", Timestamp(late)))
    at = run.next_offsets(run.initial_offsets(), limited=True)
    assert cut(at) == {0: 5}
    with StreamManager(root).create_writer("s/a") as writer:
        writer.write_event(b"early").result()
    assert cut(run.next_offsets(at, limited=True)) == {0: 6}


def test_start_time_without_a_later_event_follows_the_strategy(root: str) -> None:
    stream = created(root)
    fill(stream, 5)
    late = ReadBound("startingTimestamp", Timestamp(stream.runtime.now_us() + 10_000_000))
    with pytest.raises(InvalidOption, match="no event at or after startingTimestamp"):
        begin(planner(root, starting=late))
    run = planner(root, starting=late, timestamp_strategy="latest")
    assert cut(run.initial_offsets()) == {0: 5}
    early = ReadBound("startingTimestamp", Timestamp(0))
    assert cut(planner(root, starting=early).initial_offsets()) == {0: 0}


def test_pattern_finds_new_streams_and_reads_them_from_their_head(root: str) -> None:
    fill(created(root, "s/a1"), 3)
    created(root, "s/b1")
    clock = Clock()
    run = OffsetPlanner(ReadSettings(root, pattern="s/a.*"), clock)
    at = run.initial_offsets()
    assert list(at) == ["s/a1"]
    fill(created(root, "s/a2"), 2)
    clock.now += 60
    end = run.next_offsets(at, limited=True)
    assert cut(end, "s/a2") == {0: 2}
    assert dict(end["s/a2"].origin.positions) == {0: 0}
    assert matching_streams(root, "s/.1") == ["s/a1", "s/b1"]


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("named", [{"streams": ("s/b",)}, {"streams": (), "pattern": "s/b.*"}])
def test_stream_that_is_no_longer_named_fails_the_query_or_is_dropped(
    root: str, caplog: pytest.LogCaptureFixture, available_now: bool, named: dict[str, Any]
) -> None:
    fill(created(root, "s/a"), 3)
    before = planner(root, "s/a")
    at = before.next_offsets(before.initial_offsets(), limited=True)
    fill(StreamLog(open_store(root), "s/a"), 2)
    fill(created(root, "s/b"), 4)
    run = planner(root, **named)
    if available_now:
        run.prepare_available_now()
    with pytest.raises(InvalidOption, match=r"has read s/a, and the query now reads s/b.* instead"):
        run.next_offsets(at, limited=True)
    lax = planner(root, fail_on_data_loss=False, **named)
    if available_now:
        lax.prepare_available_now()
    end = lax.next_offsets(at, limited=True)
    assert {name: sum(cut(end, name).values()) for name in present(end)} == {"s/b": 4}
    assert "has read s/a, and the query now reads" in caplog.text
    assert lax.next_offsets(end, limited=True) == end


def test_stream_that_is_added_to_the_query_is_read_from_its_head(root: str) -> None:
    fill(created(root, "s/a"), 3)
    before = planner(root, "s/a")
    at = before.next_offsets(before.initial_offsets(), limited=True)
    fill(created(root, "s/b"), 4)
    end = planner(root, "s/a", "s/b").next_offsets(at, limited=True)
    assert (cut(end, "s/a"), cut(end, "s/b")) == ({0: 3}, {0: 4})


def test_truncated_start_fails_or_continues_at_the_head(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = created(root)
    fill(stream, 5)
    fill(stream, 5)
    run = planner(root)
    at = run.initial_offsets()
    truncate(stream, {0: 7})
    with pytest.raises(TruncatedData):
        run.next_offsets(at, limited=True)
    lax = planner(root, fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING):
        assert cut(lax.next_offsets(at, limited=True)) == {0: 10}
    assert "skipped at least 7 events" in caplog.text


def test_query_of_a_restored_stream_is_refused_with_the_next_step(root: str) -> None:
    fill(created(root), 5)
    at = planner(root).initial_offsets()
    StreamManager(root).restore_stream("s/a")
    with pytest.raises(StaleIdentity, match=r"restored from a copy.*with a new checkpoint"):
        planner(root).next_offsets(at, limited=True)


def test_stream_of_a_later_life_fails_or_continues_at_its_head(root: str) -> None:
    stream = created(root)
    fill(stream, 5)
    at = planner(root).initial_offsets()
    manager = StreamManager(root)
    manager.seal_stream("s/a")
    assert dict(planner(root).next_offsets(at, limited=True)["s/a"].cut.positions) == {0: END}
    manager.delete_stream("s/a")
    with pytest.raises(NoSuchStream):
        planner(root).next_offsets(at, limited=True)
    fill(created(root), 2)
    with pytest.raises(StaleIdentity, match="deleted and created again"):
        planner(root).next_offsets(at, limited=True)
    end = planner(root, fail_on_data_loss=False).next_offsets(at, limited=True)
    assert (end["s/a"].life > DRAWN, sum(cut(end).values())) == (True, 2)
    assert at["s/a"].batch_start(end["s/a"]) == end["s/a"].origin


def deleted(root: str, name: str = "s/a") -> None:
    manager = StreamManager(root)
    manager.seal_stream(name)
    manager.delete_stream(name)


NAMED = [
    {"streams": ("s/a", "s/b")},
    {"streams": (), "pattern": "s/.*"},
]


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("named", NAMED)
def test_deleted_stream_of_the_checkpoint_fails_the_query_or_is_dropped(
    root: str, caplog: pytest.LogCaptureFixture, available_now: bool, named: dict[str, Any]
) -> None:
    fill(created(root, "s/a"), 3)
    fill(created(root, "s/b"), 2)
    at = planner(root, **named).initial_offsets()
    deleted(root)
    strict = planner(root, **named)
    lax = planner(root, fail_on_data_loss=False, **named)
    if available_now:
        strict.prepare_available_now()
        lax.prepare_available_now()
    with pytest.raises(NoSuchStream, match=r"s/a does not exist.*new checkpoint.*failOnDataLoss"):
        strict.next_offsets(at, limited=True)
    end = lax.next_offsets(at, limited=True)
    assert {name: cut(end, name) for name in end} == {"s/b": {0: 2}}
    assert lax.next_offsets(end, limited=True) == end
    assert caplog.text.count("continued without stream s/a") == 1


def test_stream_deleted_during_a_query_fails_it_or_is_dropped(root: str) -> None:
    fill(created(root, "s/a"), 3)
    fill(created(root, "s/b"), 2)
    clock = Clock()
    strict = planner(root, clock=clock, pattern="s/.*")
    lax = planner(root, clock=clock, pattern="s/.*", fail_on_data_loss=False)
    at = strict.next_offsets(strict.initial_offsets(), limited=True)
    assert lax.next_offsets(lax.initial_offsets(), limited=True) == at
    deleted(root)
    clock.now += 60
    with pytest.raises(NoSuchStream, match="s/a does not exist"):
        strict.next_offsets(at, limited=True)
    end = lax.next_offsets(at, limited=True)
    assert list(end) == ["s/b"]
    fill(created(root), 4)
    clock.now += 60
    assert sum(cut(lax.next_offsets(end, limited=True)).values()) == 4


def test_query_whose_only_named_stream_was_deleted_fails_in_any_case(root: str) -> None:
    fill(created(root), 3)
    at = planner(root).initial_offsets()
    deleted(root)
    for run in (planner(root), planner(root, fail_on_data_loss=False)):
        with pytest.raises(NoSuchStream, match="s/a does not exist"):
            run.next_offsets(at, limited=True)
        with pytest.raises(NoSuchStream, match="s/a does not exist"):
            run.check_start(run.initial_offsets())
