from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log.actions import Body, Remove
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream import stream_log as streams
from pravega_spark.engine.stream.records import STREAM_DOMAIN
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    DataLoss,
    InvalidInput,
    InvalidStreamCut,
    NoSuchEvent,
    NoSuchSegment,
    NoSuchStream,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.event_reader import EventReader, json_deserializer
from pravega_spark.manager import StreamManager, manager_over, root_of
from pravega_spark.values.events import Event
from pravega_spark.values.segments import (
    EventPointer,
    SegmentRange,
    StreamCut,
    make_segment_id,
    segment_text,
)
from tests.harness.fake_runtime import NOW_MS, FakeRuntime
from tests.harness.small_streams import make_stream, reopen, scale, write
from tests.harness.small_tables import commit
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized

LEFT, RIGHT = make_segment_id(1, 1), make_segment_id(2, 1)
MERGED = make_segment_id(3, 2)


def put(stream: StreamLog, first: int, last: int, *, plus: int = 0) -> None:
    write(stream, [(f"k{n % 7}", b"%d" % (n + plus)) for n in range(first, last)])


def grown(runtime: FakeRuntime | None = None) -> StreamLog:
    """Write 60 events, 10 a minute, over a split and a merge: 0#0, then 1#1 and 2#1, then 3#2."""
    runtime = runtime or FakeRuntime()
    stream = make_stream(runtime=runtime)
    grow(stream, runtime)
    return stream


def grow(stream: StreamLog, runtime: FakeRuntime, *, plus: int = 0) -> None:
    for first in range(0, 60, 10):
        if first == 20:
            scale(stream, stream.view().active.segment_ids, [(0, 0.5), (0.5, 1)])
        if first == 40:
            scale(stream, stream.view().active.segment_ids, [(0, 1)])
        put(stream, first, first + 10, plus=plus)
        runtime.sleep(60)


def numbers(events: Iterable[Event]) -> list[int]:
    return [int(event.data) for event in events]


def manager_of(stream: StreamLog) -> StreamManager:
    return manager_over(stream.store, stream.runtime)


def recreate(stream: StreamLog) -> None:
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    lifecycle.create(stream, 2, StreamConfiguration())


def remove(stream: StreamLog, *, head: dict[int, int] | None = None, moved: bool = False) -> None:
    """Remove the newest chunk from the log, or give it another path; delete the old file."""

    def decide(snapshot: Snapshot | None) -> Body:
        assert snapshot is not None
        with stream.log.files() as files:
            add = max(files.all(), key=lambda add: int(add.partition["base_offset"]))
        body = Body("TEST", removes=[Remove.of(add, NOW_MS)])
        deleted[:] = [f"{stream.path}/{add.path}"]
        if moved:
            body.adds = [replace(add, path="data/moved.parquet")]
            stream.store.put(f"{stream.path}/data/moved.parquet", stream.store.get(deleted[0]))
        if head is not None:
            record = replace(StreamView(snapshot).record, head=head)
            body.domains = {STREAM_DOMAIN: record.encode()}
        return body

    deleted: list[str] = []
    stream.view()
    commit(stream.log, decide)
    stream.store.delete(deleted)


# ---------------------------------------------------------------------------- between two cuts


def test_events_come_in_order_by_key_and_successors_after_their_predecessors() -> None:
    events = list(EventReader(grown()).events())
    assert sorted(numbers(events)) == list(range(60))
    for key in range(7):
        mine = numbers(event for event in events if event.routing_key == f"k{key}")
        assert mine == list(range(key, 60, 7))
    assert [segment_text(event.segment_id) for event in events][19:21] == ["0#0", "1#1"]
    assert {event.segment_id for event in events[40:]} == {MERGED}


def test_batches_are_the_events_as_arrow() -> None:
    stream = grown()
    found: list[tuple[int, int, bytes]] = []
    for rng, batch in EventReader(stream).batches():
        assert batch.schema.names == ["offset", "routing_key", "timestamp", "event"]
        assert rng.start <= batch.column("offset")[0].as_py()
        assert batch.column("offset")[-1].as_py() < rng.end
        rows = zip(
            batch.column("offset").to_pylist(), batch.column("event").to_pylist(), strict=True
        )
        found += [(rng.segment_id, offset, event) for offset, event in rows]
    events = EventReader(stream).events()
    assert found == [(event.segment_id, event.offset, event.data) for event in events]


def test_start_after_the_end_is_refused_for_events_and_batches_alike() -> None:
    reader = EventReader(grown())
    for read in (reader.events, reader.batches):
        with pytest.raises(InvalidStreamCut, match="lies after the end"):
            read(StreamCut.LATEST, StreamCut.EARLIEST)


def test_deserializer_decodes_events_and_one_that_fails_does_not_count_as_read() -> None:
    stream = make_stream()
    write(stream, [("k", json.dumps({"n": n}).encode()) for n in range(3)])
    write(stream, [("k", b"no json")])
    reader = EventReader(stream, deserializer=json_deserializer)
    events = reader.events()
    assert [next(events).data for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    with pytest.raises(json.JSONDecodeError):
        next(events)
    assert reader.position == StreamCut("s/t", 1, {0: 3})


# ------------------------------------------------------------------------------------ position


@pytest.mark.parametrize("resumed", ["to the tail", "to the same end"])
def test_reading_continues_from_any_position_without_loss_or_repetition(resumed: str) -> None:
    stream = grown()
    everything = [event.pointer for event in EventReader(stream).events()]
    reader = EventReader(stream)
    assert reader.position is None
    tail = stream.view().tail
    for count, _ in enumerate(reader.events(), 1):
        position = reader.position
        assert position is not None
        assert StreamCut.parse(str(position)) == position
        end = tail if resumed == "to the same end" else StreamCut.LATEST
        rest = [event.pointer for event in EventReader(stream).events(position, end)]
        assert len(rest) == len(everything) - count
        assert set(rest) == set(everything[count:])
    assert reader.position == tail


def test_position_at_a_target_before_a_scale_can_be_resumed_to_that_target() -> None:
    stream = make_stream(segments=2)
    put(stream, 0, 20)
    target = stream.view().tail
    scale(stream, [0], [(0, 0.25), (0.25, 0.5)])
    put(stream, 20, 40)
    reader = EventReader(stream)
    read = 0
    for read, _ in enumerate(reader.events(end=target), 1):
        assert reader.position is not None
        assert len(list(EventReader(stream).events(reader.position, target))) == 20 - read
        assert len(list(EventReader(stream).events(reader.position))) == 40 - read
    assert (read, reader.position) == (20, target)


def test_position_of_batches_is_after_the_last_batch() -> None:
    stream = grown()
    reader = EventReader(stream)
    left = 60
    for _, batch in reader.batches():
        left -= batch.num_rows
        assert reader.position is not None
        assert reader.distance(reader.position, StreamCut.LATEST)[0] == left
    assert left == 0


@given(st.data())
def test_reader_that_stops_at_any_event_and_follows_again_misses_and_repeats_nothing(
    data: st.DataObject,
) -> None:
    stream = make_stream()
    written, position, seen = 0, StreamCut.EARLIEST, []
    for _ in range(data.draw(st.integers(1, 5))):
        active = stream.view().active.segment_ids
        if data.draw(st.booleans()):
            ranges = [(0, 1)] if len(active) > 1 else [(0, 0.5), (0.5, 1)]
            scale(stream, active, ranges)
        count = data.draw(st.integers(0, 12))
        if count:
            put(stream, written, written + count)
            written += count
        reader = EventReader(reopen(stream))
        stop = data.draw(st.integers(0, 15))
        for event in reader.follow(position, timeout=0):
            seen.append(int(event.data))
            stop -= 1
            if stop <= 0:
                break
        position = reader.position or position
    seen += numbers(EventReader(stream).events(position))
    assert sorted(seen) == list(range(written))
    for key in range(7):
        assert [n for n in seen if n % 7 == key] == list(range(key, written, 7))


def test_second_read_of_the_same_reader_does_not_disturb_the_first() -> None:
    stream = grown()
    reader = EventReader(stream)
    found = []
    for event in reader.follow(StreamCut.EARLIEST, timeout=0):
        found.append(int(event.data))
        assert len(list(reader.events(end=reader.next_cut(StreamCut.EARLIEST, 5)))) == 5
    assert sorted(found) == list(range(60))


# ------------------------------------------------------------------------------------- follow


class Acting(FakeRuntime):
    """A runtime that runs the next action at each pause."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        super().__init__()
        self.actions = list(actions)
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.pauses.append(seconds)
        if self.actions:
            self.actions.pop(0)()


def test_follow_yields_new_events_and_ends_after_a_timeout_without_any() -> None:
    runtime = Acting()
    stream = make_stream(runtime=runtime)
    put(stream, 0, 3)
    other = reopen(stream)
    runtime.actions = [lambda: put(other, 3, 5), lambda: None, lambda: put(other, 5, 6)]
    began = runtime.monotonic()
    assert numbers(EventReader(stream).follow(StreamCut.EARLIEST, timeout=10)) == list(range(6))
    assert 10 <= runtime.monotonic() - began < 11
    assert numbers(EventReader(stream).follow(timeout=0)) == []


def test_follow_pauses_longer_and_longer(tmp_path: Any) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    runtime = Acting()
    stream = StreamLog(root_of(manager).store, "s/t", runtime)
    assert list(EventReader(stream).follow(timeout=2)) == []
    assert runtime.pauses[0] == pytest.approx(0.001)
    assert max(runtime.pauses) == pytest.approx(0.05)
    assert runtime.pauses[:-1] == sorted(runtime.pauses[:-1])


def test_follow_of_a_live_stream_sees_events_over_a_scale_until_the_seal() -> None:
    runtime = Acting()
    stream = make_stream(runtime=runtime)
    other = reopen(stream)
    runtime.actions = [
        lambda: put(other, 0, 5),
        lambda: scale(other, [0], [(0, 0.5), (0.5, 1)]),
        lambda: put(other, 5, 15),
        lambda: lifecycle.seal(other),
    ]
    reader = EventReader(stream)
    assert sorted(numbers(reader.follow())) == list(range(15))
    assert reader.position == stream.view().tail
    assert numbers(reader.follow(StreamCut.LATEST)) == []


def test_follow_of_a_stream_that_is_created_again_is_stale() -> None:
    runtime = Acting()
    stream = make_stream(runtime=runtime)
    other = reopen(stream)

    runtime.actions = [lambda: recreate(other)]
    with pytest.raises(StaleIdentity, match=r"life 2.*life 1"):
        list(EventReader(stream).follow())


# ------------------------------------------------------------------------------------- ranges


def _read_outside(job: tuple[str, bytes]) -> list[tuple[str, bytes]]:
    root, rng = job
    reader = StreamManager(root).create_reader("s/t")
    return [(str(event.pointer), event.data) for event in reader.read_range(pickle.loads(rng))]


@pytest.mark.medium
def test_ranges_that_other_processes_read_cover_every_event_once(tmp_path: Any) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    stream = streams.open_stream(root_of(manager).store, "s/t")
    put(stream, 0, 30)
    scale(stream, [0], [(0, 0.5), (0.5, 1)])
    put(stream, 30, 60)
    reader = manager.create_reader("s/t")
    jobs = [
        (str(tmp_path), pickle.dumps(replace(rng, start=at, end=min(at + 7, rng.end))))
        for rng in manager.segment_ranges("s/t")
        for at in range(rng.start, rng.end, 7)
    ]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = [row for part in pool.map(_read_outside, jobs) for row in part]
    with ThreadPoolExecutor(2) as threads:
        assert found == [row for part in threads.map(_read_outside, jobs) for row in part]
    assert found == [(str(event.pointer), event.data) for event in reader.events()]


def test_range_or_pointer_of_another_stream_is_refused_by_both_names() -> None:
    stream = make_stream()
    put(stream, 0, 3)
    reader = EventReader(stream)
    both = r"of stream s/other was given to the reader of stream s/t; use a reader of s/other"
    with pytest.raises(InvalidInput, match=both):
        reader.read_range(SegmentRange("s/other", 1, 0, 0, 1))
    with pytest.raises(InvalidInput, match=both):
        reader.fetch(EventPointer("s/other", 1, 0, 0))
    with pytest.raises(StaleIdentity):
        reader.read_range(SegmentRange("s/t", 2, 0, 0, 1))


def test_distance_is_exact_in_events_and_bytes_within_chunks_too() -> None:
    stream = make_stream()
    for first in (0, 10, 20):
        write(stream, [("k", b"x" * n) for n in range(first, first + 10)])
    reader = EventReader(stream)
    for start, end in ((0, 30), (3, 17), (10, 20), (14, 15), (7, 7), (29, 30)):
        cuts = [StreamCut("s/t", 1, {0: offset}) for offset in (start, end)]
        assert reader.distance(*cuts) == (end - start, sum(range(start, end)))
    over = EventReader(grown())
    events, size = over.distance(StreamCut.EARLIEST, StreamCut.LATEST)
    assert (events, size) == (60, sum(len(event.data) for event in over.events()))


def test_next_cut_reaches_the_tail_and_never_skips_over_a_scale() -> None:
    reader = EventReader(grown())
    cut = StreamCut.EARLIEST
    met: list[StreamCut] = []
    while True:
        after = reader.next_cut(cut, 8)
        if met and after == met[-1]:
            break
        assert reader.distance(cut, after)[0] <= 9
        met.append(after)
        cut = after
    assert reader.distance(cut, StreamCut.LATEST) == (0, 0)
    first = reader.next_cut(StreamCut.EARLIEST, 10**6)
    assert list(first) == [(0, 20)]
    with pytest.raises(InvalidInput, match="at least 1"):
        reader.next_cut(cut, 0)


def test_cut_at_a_time_is_before_the_first_events_of_that_time() -> None:
    reader = EventReader(grown())
    for minute in range(7):
        at = (NOW_MS + minute * 60_000) * 1_000
        assert sorted(numbers(reader.events(reader.cut_at(at)))) == list(range(10 * minute, 60))
    assert reader.cut_at(0) == StreamCut("s/t", 1, {0: 0})
    early = reader.cut_at((NOW_MS + 60_000) * 1_000 - 1)
    assert sorted(numbers(reader.events(early))) == list(range(10, 60))


# ------------------------------------------------------------------ layout, through the manager


def test_layout_of_a_scaled_stream_is_returned_by_epoch_time_and_cut() -> None:
    stream = grown()
    manager = manager_of(stream)

    def ids(segments: Iterable[Any]) -> list[str]:
        return [str(segment) for segment in segments]

    assert ids(manager.segments("s/t")) == ["3#2"]
    assert ids(manager.segments("s/t", epoch=1)) == ["1#1", "2#1"]
    assert ids(manager.segments("s/t", time_ms=0)) == ["0#0"]
    for minute, expected in ((1, ["0#0"]), (3, ["1#1", "2#1"]), (5, ["3#2"])):
        assert ids(manager.segments("s/t", time_ms=NOW_MS + minute * 60_000 + 1)) == expected
    assert [(str(s), ids(before)) for s, before in manager.successors("s/t", 0)] == [
        ("1#1", ["0#0"]),
        ("2#1", ["0#0"]),
    ]
    (merged,) = manager.successors("s/t", LEFT)
    assert (str(merged[0]), ids(merged[1])) == ("3#2", ["1#1", "2#1"])
    assert manager.successors("s/t", MERGED) == ()
    everything = manager.segments_between("s/t", StreamCut.EARLIEST, StreamCut.LATEST)
    assert ids(everything) == ["0#0", "1#1", "2#1", "3#2"]
    middle = StreamCut("s/t", 1, {LEFT: 3, RIGHT: 0})
    assert ids(manager.segments_between("s/t", "earliest", middle)) == ["0#0", "1#1", "2#1"]
    assert manager.segment("s/t", 0).next_offset == 20


def test_truncated_segment_is_described_as_before() -> None:
    manager = manager_of(grown())
    (first,), (merged,) = manager.segments("s/t", time_ms=0), manager.segments("s/t")
    assert manager.successors("s/t", first) == manager.successors("s/t", 0) != ()
    assert manager.predecessors("s/t", merged) == manager.predecessors("s/t", MERGED) != ()
    calls = manager.successors, manager.predecessors, manager.segment
    before = [call("s/t", first) for call in calls]
    manager.truncate_stream("s/t", "latest")
    for name in (first, "0#0"):
        assert [call("s/t", name) for call in calls] == before
    assert first in manager.epochs("s/t")[0].segments
    with pytest.raises(NoSuchSegment, match=r"9#2.*Take segments from"):
        manager.successors("s/t", "9#2")


def test_cut_of_another_stream_is_refused_as_such() -> None:
    manager = manager_of(grown())
    with pytest.raises(InvalidStreamCut, match=r"is a cut of stream s/b, and this is stream s/t"):
        manager.distance("s/t", "s/b@1:0#0=0", "latest")
    with pytest.raises(InvalidStreamCut, match="is of life 2 of s/t, and this is life 1"):
        manager.distance("s/t", "s/t@2:0#0=0", "latest")


def test_segments_between_cuts_are_refused_behind_the_head() -> None:
    manager = StreamManager("memory://between-head")
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(2)))
    with manager.create_writer("s/t") as writer:
        writer.write_events([b"a", b"b"], "k")
    before = StreamCut("s/t", 1, {0: 0, 1: 0})
    assert len(manager.segments_between("s/t", before, "latest")) == 2
    manager.truncate_stream("s/t", "latest")
    for call in (manager.segments_between, manager.segment_ranges, manager.distance):
        with pytest.raises(TruncatedData, match="continue from the head"):
            call("s/t", before, "latest")
    assert len(manager.segments_between("s/t", "earliest", "latest")) == 2


# ------------------------------------------------------------------------------ fetch, and loss


def test_fetch_returns_the_event_of_every_pointer_and_of_its_text() -> None:
    reader = EventReader(grown())
    for event in list(reader.events()):
        for pointer in (event.pointer, str(event.pointer)):
            assert reader.fetch(pointer).data == event.data
    with pytest.raises(NoSuchEvent, match="names no event of the stream"):
        reader.fetch(EventPointer("s/t", 1, 0, 20))


def test_chunk_that_moved_under_a_reader_is_looked_up_again() -> None:
    stream = make_stream()
    for n in range(12):
        put(stream, n, n + 1)
    events = EventReader(stream).events()
    found = numbers([next(events)])
    remove(reopen(stream), moved=True)
    assert found + numbers(events) == list(range(12))


def test_missing_chunks_are_data_loss_and_truncated_ones_are_not() -> None:
    stream = make_stream()
    put(stream, 0, 5)
    put(stream, 5, 10)
    reader = EventReader(stream)
    rng = SegmentRange("s/t", 1, 0, 0, 10)
    remove(reopen(stream))
    for call in (lambda: list(reader.read_range(rng)), lambda: reader.fetch("s/t@1:0#0=7")):
        with pytest.raises(DataLoss, match=r"no chunk with offset [57]"):
            call()

    other = make_stream()
    put(other, 0, 5)
    remove(reopen(other), head={0: 5})
    with pytest.raises(TruncatedData, match="continue from the head"):
        list(EventReader(other).read_range(SegmentRange("s/t", 1, 0, 0, 5)))
    with pytest.raises(TruncatedData, match="continue from the head"):
        EventReader(other).fetch("s/t@1:0#0=2")


def test_unknown_chunks_are_looked_up_in_the_newest_version_before_they_are_called_lost() -> None:
    stream = make_stream()
    put(stream, 0, 5)
    other = reopen(stream)
    put(other, 5, 10)
    rng = SegmentRange("s/t", 1, 0, 0, 10)
    assert [ref.rows for ref in stream.chunks(rng)] == [5, 5]

    behind = reopen(stream)
    behind.view()
    recreate(other)
    with pytest.raises(StaleIdentity, match=r"life 2.*life 1"):
        behind.chunks(SegmentRange("s/t", 1, 0, 0, 11))
    lifecycle.seal(other)
    lifecycle.delete(other)
    with pytest.raises(NoSuchStream, match="does not exist: it was deleted"):
        behind.chunks(rng)


# -------------------------------------------------------------------------- processes and copies


def test_reader_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="cannot be pickled; create it where it is used"):
        pickle.dumps(EventReader(make_stream()))


def _open_in_child(results: Any) -> None:
    results.put(streams.open_stream(MemoryStore(), "s/t").name)


@pytest.mark.medium
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_stream_can_be_opened_in_a_child_forked_while_another_thread_opens_one() -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with streams._open._lock:
        child = context.Process(target=_open_in_child, args=(results,))
        child.start()
    assert results.get(timeout=30) == "s/t"
    child.join(30)


# ----------------------------------------------------------------------------- below the head


def chunked() -> StreamLog:
    """Write ten events in two chunks of one segment; the head is in the middle of the second."""
    stream = make_stream(Spy())
    put(stream, 0, 5)
    put(stream, 5, 10)
    truncate(stream, StreamCut("s/t", 1, {0: 7}))
    return stream


BEHIND = StreamCut("s/t", 1, {0: 6})
READS_BEHIND_HEAD: dict[str, Callable[[EventReader], object]] = {
    "events": lambda reader: list(reader.events(BEHIND)),
    "batches": lambda reader: list(reader.batches(BEHIND)),
    "follow": lambda reader: list(reader.follow(BEHIND, timeout=0)),
    "ranges": lambda reader: reader.ranges(BEHIND),
    "distance": lambda reader: reader.distance(BEHIND, StreamCut.LATEST),
    "next_cut": lambda reader: reader.next_cut(BEHIND, 1),
    "read_range": lambda reader: list(reader.read_range(SegmentRange("s/t", 1, 0, 6, 10))),
    "fetch": lambda reader: reader.fetch("s/t@1:0#0=6"),
}


@pytest.mark.parametrize("call", READS_BEHIND_HEAD)
def test_truncated_events_are_not_read_though_their_chunk_still_exists(call: str) -> None:
    stream = chunked()
    with pytest.raises(TruncatedData, match="0#0=7"):
        READS_BEHIND_HEAD[call](EventReader(stream))
    with pytest.raises(TruncatedData, match="0#0=7"):
        READS_BEHIND_HEAD[call](EventReader(reopen(stream)))
    assert EventReader(stream).fetch("s/t@1:0#0=7").data == b"7"


def test_event_of_a_segment_without_a_record_is_truncated_and_not_unknown() -> None:
    stream = chunked()
    scale(stream, [0], [(0, 1)])
    truncate(stream, StreamCut.LATEST)
    assert not stream.view().has_segment(0)
    for call in (lambda r: r.fetch("s/t@1:0#0=8"), READS_BEHIND_HEAD["read_range"]):
        with pytest.raises(TruncatedData, match="1#1=0"):
            call(EventReader(stream))


def test_range_of_a_segment_newer_than_the_known_view_is_read() -> None:
    stream = chunked()
    before = reopen(stream)
    before.view()
    scale(stream, [0], [(0, 1)])
    put(stream, 10, 12)
    (segment,) = stream.view().active.segment_ids
    assert len(before.chunks(SegmentRange("s/t", 1, segment, 0, 2))) == 1


def test_checking_the_head_costs_no_storage_call() -> None:
    stream = chunked()
    stream.chunks(SegmentRange("s/t", 1, 0, 7, 10))
    spy = stream.store
    assert isinstance(spy, Spy)
    spy.calls.clear()
    assert len(stream.chunks(SegmentRange("s/t", 1, 0, 7, 10))) == 1
    assert not spy.calls


# ------------------------------------------------------------------------------ the next life


def _fetched(reader: EventReader) -> Iterator[Event]:
    """Fetch an event of each segment of the first life by its pointer."""
    for segment_id in (0, LEFT, RIGHT, MERGED):
        yield reader.fetch(EventPointer("s/t", 1, segment_id, 3))


def _batched(reader: EventReader) -> Iterator[Event]:
    for rng, batch in reader.batches():
        yield from reader._decode(rng, batch)


def _ranged(reader: EventReader) -> Iterator[Event]:
    for rng in reader.ranges():
        yield from reader.read_range(rng)


READS: dict[str, Callable[[EventReader], Iterator[Event]]] = {
    "events": EventReader.events,
    "batches": _batched,
    "follow": lambda reader: reader.follow(StreamCut.EARLIEST, timeout=0),
    "ranges": _ranged,
    "fetch": _fetched,
}


def next_life(stream: StreamLog, *, swept: bool) -> None:
    """Another process deletes the stream, and creates it with the same layout and other events."""
    other = reopen(stream)
    files = [found.key for found in other.store.list(f"{other.path}/data")]
    recreate(other)
    grow(other, FakeRuntime(), plus=1_000)
    if swept:
        other.store.delete(files)


def read_on(events: Callable[[], Iterator[Event]], found: list[int], most: int = 1_000) -> bool:
    """Read up to ``most`` events; return True if the reader said that the life has ended."""
    try:
        for event in islice(events(), most):
            found.append(int(event.data))
    except (StaleIdentity, NoSuchStream):
        return True
    return False


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("call", READS)
def test_read_never_returns_an_event_of_the_next_life(call: str, swept: bool) -> None:
    """The next life begins at each storage call of the read, in turn; at every third in short."""
    expected = numbers(READS[call](EventReader(grown())))
    for step in itertools.count(0, sized(3, 1)):
        stream = grown()
        spy = Spy(stream.store)
        reader = EventReader(reopen(stream, spy), life=1)
        left = itertools.count(step, -1)

        def at_call(operation: str, key: str, left: Any = left, stream: Any = stream) -> None:
            if next(left) == 0:
                next_life(stream, swept=swept)

        spy.hook = at_call
        found: list[int] = []
        ended = read_on(lambda reader=reader: READS[call](reader), found)  # type: ignore[misc]
        assert found == expected[: len(found)]
        assert ended or len(found) == len(expected)
        if next(left) >= 0:
            break
    assert step > 3


@pytest.mark.parametrize("call", READS)
def test_read_stays_in_its_life_though_its_process_has_opened_the_next(call: str) -> None:
    """The next life begins between two events, and another call of the process refreshes."""
    for count in range(0, 60, 7):
        stream = grown()
        reader = EventReader(stream, life=1)
        events, found = READS[call](reader), list[int]()
        assert not read_on(lambda events=events: events, found, count)  # type: ignore[misc]
        next_life(stream, swept=True)
        assert stream.view().life == 2
        read_on(lambda events=events: events, found)  # type: ignore[misc]
        assert max(found, default=0) < 60
        with pytest.raises(StaleIdentity, match=r"life 2, .*belongs to life 1"):
            next(READS[call](reader))


def test_readers_of_a_handle_belong_to_the_life_in_which_they_were_made() -> None:
    stream = grown()
    handle = manager_of(stream).stream("s/t")
    reader, events = handle.create_reader(), handle.read()
    next_life(stream, swept=False)
    with pytest.raises(StaleIdentity):
        list(reader.events())
    assert set(numbers(handle.read())) == set(range(1_000, 1_060))
    found: list[int] = []
    read_on(lambda: events, found)
    assert max(found, default=0) < 60


def test_range_beyond_the_end_of_its_segment_is_refused_with_the_next_offset() -> None:
    stream = grown()
    reader = EventReader(stream)
    for rng in reader.ranges():
        end = stream.view().segment(rng.segment_id).next_offset
        assert len(list(reader.read_range(replace(rng, end=end)))) == end - rng.start
        for start, last in ((rng.start, end + 1), (end, end + 1), (end + 3, end + 3)):
            with pytest.raises(InvalidInput, match=f"its next offset is {end}\\."):
                reader.read_range(replace(rng, start=start, end=last))
    with pytest.raises(NoSuchSegment):
        list(reader.read_range(replace(rng, segment_id=make_segment_id(9, 2))))


@pytest.mark.parametrize("segment_id", ["0#0", -1, True, 0.0, None])
def test_range_whose_segment_is_no_id_is_refused(segment_id: Any) -> None:
    reader = EventReader(grown())
    with pytest.raises(InvalidInput, match="the segment of a range"):
        reader.read_range(replace(reader.ranges()[0], segment_id=segment_id))


def test_range_that_ends_before_its_start_has_no_length() -> None:
    with pytest.raises(InvalidInput, match=r"\[3, 1\) ends before its start"):
        len(SegmentRange("s/t", 1, 0, 3, 1))
