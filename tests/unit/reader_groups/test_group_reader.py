from __future__ import annotations

import itertools
import json
import os
import pickle
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    ObjectClosed,
    ReinitializationRequired,
    StoreError,
    TruncatedData,
)
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.values.limits import POLL_LOCAL_SECONDS
from pravega_spark.values.segments import StreamCut
from tests.harness.fault_plans import Rule
from tests.harness.group_world import NAME, World, drain, expired_after
from tests.harness.small_streams import scale


def test_one_reader_reads_all_events_and_later_ones() -> None:
    world = World(segments=3)
    events = world.write(20)
    reader = world.created().create_reader("a")
    assert sorted(drain(reader)) == sorted(events)
    later = world.write(5)
    assert sorted(drain(reader)) == sorted(later)


def test_event_has_its_pointer_and_the_position_after_it() -> None:
    world = World()
    world.write(2)
    reader = world.created().create_reader("a", deserializer=json.loads)
    first, second = reader.read_next_event(0), reader.read_next_event(0)
    assert first.event is not None
    assert second.event is not None
    assert (first.event.data, str(first.event.pointer)) == (0, "s/t@1:0#0=0")
    assert str(first.position) == '{"s/t":{"0#0":1},"number":3}'
    assert Position.parse(str(second.position)) == second.position == reader.position
    assert first.position != second.position
    with pytest.raises(InvalidInput, match="not a position"):
        Position.parse("[]")


def test_read_without_an_event_in_time_returns_none() -> None:
    world = World()
    reader = world.created().create_reader("a")
    before = world.runtime.monotonic()
    read = reader.read_next_event(1.5)
    assert (read.event, read.checkpoint, read.is_completed) == (None, None, False)
    assert 1.5 <= world.runtime.monotonic() - before < 1.7


def test_segments_are_shared_when_a_reader_joins_and_no_event_is_read_twice() -> None:
    world = World(segments=4)
    group = world.created()
    a = group.create_reader("a")
    events = world.write(40)
    found = [drain_some(a, 7)]
    b = world.group().create_reader("b")
    assert group.distribution() == {"a": 4, "b": 0, None: 0}
    for _ in range(3):
        world.runtime.sleep(3.1)
        found += [drain_some(a, 3), drain_some(b, 3)]
    assert group.distribution() == {"a": 2, "b": 2, None: 0}
    found += [drain(a), drain(b)]
    assert sorted(itertools.chain(*found)) == sorted(events)


def drain_some(reader: object, count: int) -> list[bytes]:
    reads = [reader.read_next_event(0) for _ in range(count)]  # type: ignore[attr-defined]
    return [read.event.data for read in reads if read.event is not None]


def test_successors_are_read_without_a_checkpoint() -> None:
    world = World()
    before = world.write(10)
    scale(world.stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    between = world.write(10)
    ids = [s.segment_id for s in world.stream.view().active.segments]
    scale(world.stream, ids, [(0.0, 1.0)])
    after = world.write(10)
    found = drain(world.created().create_reader("a"))
    assert found[:10] == before
    assert sorted(found[10:20]) == sorted(between)
    assert found[20:] == after


def test_iteration_ends_when_a_sealed_stream_was_read() -> None:
    world = World(segments=2)
    events = world.write(10)
    lifecycle.seal(world.stream)
    group = world.created()
    with group.create_reader("a") as reader:
        assert sorted(e.data for e in reader) == sorted(events)
        assert reader.read_next_event().is_completed
    assert group.is_at_end()
    assert group.online_readers() == []


def test_group_reads_between_its_cuts() -> None:
    world = World()
    events = world.write(10)
    spans = {NAME: (StreamCut(NAME, 1, {0: 3}), StreamCut(NAME, 1, {0: 7}))}
    reader = world.created(streams=spans).create_reader("a")
    assert [e.data for e in reader] == events[3:7]


def test_events_as_arrow() -> None:
    world = World()
    events = world.write(10)
    reader = world.created().create_reader("a")
    first, second = reader.read_events(4, 0), reader.read_events(timeout=0)
    assert first.events.column("event").to_pylist() == events[:4]
    assert second.events.column("offset").to_pylist() == list(range(4, 10))
    assert set(second.events.column("stream").to_pylist()) == {NAME}
    assert reader.read_events(timeout=0).events.num_rows == 0
    assert isinstance(first.events, pa.RecordBatch)
    mixed = world.write(3)
    one = reader.read_next_event(0).event
    assert one is not None
    rest = reader.read_events(timeout=0).events.column("event").to_pylist()
    assert [one.data, *rest] == mixed
    with pytest.raises(InvalidInput, match="at least 1"):
        reader.read_events(0)


def test_others_continue_exactly_where_a_closed_reader_stopped() -> None:
    world = World()
    events = world.write(10)
    group = world.created()
    a = group.create_reader("a")
    assert drain_some(a, 4) == events[:4]
    a.close()
    a.close()
    with pytest.raises(ObjectClosed, match="reader a was closed"):
        a.read_next_event(0)
    assert drain(group.create_reader("b")) == events[4:]


def test_others_continue_at_the_position_at_which_a_reader_was_closed() -> None:
    world = World()
    events = world.write(10)
    group = world.created()
    a = group.create_reader("a")
    reads = [a.read_next_event(0) for _ in range(6)]
    ahead = Position(dict.fromkeys(reads[0].position.offsets, 9))
    with pytest.raises(InvalidInput, match="handed out s/t/0#0 up to 6"):
        a.close_at(ahead)
    a.close_at(str(reads[1].position))
    assert drain(group.create_reader("b")) == events[2:]


def test_event_whose_processing_failed_is_read_again() -> None:
    world = World()
    events = world.write(10)
    group = world.created()

    def fail() -> None:
        with group.create_reader("a") as reader:
            for event in reader:
                if event.data == b"3":
                    raise KeyError("3")

    with pytest.raises(KeyError):
        fail()
    assert drain(group.create_reader("a")) == events[3:]


TABLE = "*_reader_groups/g/_delta_log/*"


def test_error_of_the_body_is_not_hidden_by_a_failure_to_leave(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.write(3)
    group = world.created()

    def fail() -> None:
        with group.create_reader("a") as reader:
            reader.read_next_event(0)
            world.store.rules.add(Rule(StoreError("down"), "put_if_absent", TABLE))
            raise KeyError("body")

    with pytest.raises(KeyError, match="body"):
        fail()
    assert "failed to close reader a of reader group s/g after an error: down" in caplog.text
    world.store.rules.clear()
    with pytest.raises(StoreError, match="down"), group.create_reader("b"):
        world.store.rules.add(Rule(StoreError("down"), "put_if_absent", TABLE))


def test_a_close_that_failed_can_be_called_again() -> None:
    world = World()
    events = world.write(3)
    group = world.created()
    reader = group.create_reader("a")
    assert reader.read_next_event(0).event is not None
    world.store.rules.add(Rule(StoreError("down"), "put_if_absent", TABLE))
    with pytest.raises(StoreError, match="down"):
        reader.close()
    with pytest.raises(ObjectClosed):
        reader.read_next_event(0)
    world.store.rules.clear()
    assert group.online_readers() == ["a"]
    reader.close()
    assert group.online_readers() == []
    assert drain(group.create_reader("b")) == events[1:]
    reader.close()  # does nothing


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("does_exit", [True, False])
def test_forked_child_that_leaves_the_block_does_nothing(does_exit: bool) -> None:
    world = World()
    group = world.created()
    parent, status = os.getpid(), 1
    try:
        with group.create_reader("a") as reader:
            child = os.fork()
            if child == 0 and does_exit:
                sys.exit(3)
            if child != 0:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
                assert group.online_readers() == ["a"]
                reader.read_next_event(0)
        status = 3
    except SystemExit as left:
        status = int(str(left.code))
    finally:
        if os.getpid() != parent:
            os._exit(status)
    assert group.online_readers() == []


def test_expired_reader_is_taken_over_from_its_last_heartbeat() -> None:
    world = World(segments=2)
    events = world.write(30)
    group = world.created()
    a = group.create_reader("a", lease="30 s")
    first = drain_some(a, 5)
    world.runtime.sleep(11)
    first += drain_some(a, 5)  # a heartbeat with the first five processed
    b = world.group().create_reader("b", lease="30 s")
    found = []
    for _ in range(8):
        world.runtime.sleep(5)
        found += drain(b)
    assert group.online_readers() == ["b"]
    assert sorted(first[:5] + found) == sorted(events), "repeated from the last heartbeat on"
    with pytest.raises(ReinitializationRequired, match="lease expired"):
        a.read_next_event(0)
    with pytest.raises(ObjectClosed):
        a.read_next_event(0)
    a.close()
    assert group.online_readers() == ["b"]


def test_reader_whose_first_heartbeat_fails_stays_in_its_group() -> None:
    world = World()
    events = world.write(10)
    group = world.created()
    world.store.rules.add(Rule(StoreError("down"), "put", "*/_leases/a.json", nth=1))
    reader = group.create_reader("a", lease="30 s")
    for n in range(8):
        world.runtime.sleep(9)
        assert drain_some(reader, 1) == events[n : n + 1]
        assert group.expire_readers() == []


def test_reader_expires_as_soon_as_its_own_lease_ends() -> None:
    world = World(segments=2)
    events = world.write(30)
    group = world.created()
    b = world.group().create_reader("b", lease="1 hour")
    found = drain_some(b, 1)
    crashed = group.create_reader("a", lease="30 s")
    crashed.read_next_event(0)
    crashed_at = world.runtime.monotonic()
    world.runtime.sleep(0.051)  # not a whole second, which some storages report
    while group.online_readers() == ["a", "b"]:
        found += drain(b)
        world.runtime.sleep(0.1)
    assert 30 <= world.runtime.monotonic() - crashed_at <= 30.3
    assert sorted(found + drain(b)) == sorted(events)


def test_reader_without_a_lease_leaves_only_by_reader_offline() -> None:
    world = World()
    events = world.write(9)
    group = world.created()
    leaseless = group.create_reader("a", lease=None)
    drain_some(leaseless, 3)
    world.runtime.sleep(21)
    drain_some(leaseless, 1)  # a heartbeat with three processed
    other = world.group().create_reader("b")
    for _ in range(30):
        world.runtime.sleep(3_600)
        assert drain(other) == []
    assert group.expire_readers() == []
    assert group.reader_offline("a")
    world.runtime.sleep(4)
    assert drain(other) == events[3:]


def test_reader_of_the_same_id_waits_for_the_lease_of_the_crashed_one() -> None:
    world = World()
    events = world.write(3)
    group = world.created()
    crashed = group.create_reader("a", lease="30 s")
    drain_some(crashed, 1)
    world.runtime.sleep(20)
    with pytest.raises(IllegalState, match="already in reader group s/g"):
        group.create_reader("a")
    world.runtime.sleep(20)
    with pytest.raises(IllegalState, match="already in reader group s/g"):
        group.create_reader("a")  # perhaps the storage did not answer for a while
    world.runtime.sleep(31)
    assert drain(group.create_reader("a")) == events


def test_reader_that_cannot_reach_its_group_continues_until_its_lease_ends() -> None:
    world = World()
    events = world.write(10)
    group = world.created()
    reader = group.create_reader("a", lease="30 s")
    assert drain_some(reader, 1) == events[:1]
    rules = world.store.rules
    rules.add(Rule(StoreError("down"), "*", "*_reader_groups*"))
    for n in range(1, 6):
        world.runtime.sleep(5)
        assert drain_some(reader, 1) == events[n : n + 1]
    world.runtime.sleep(6)
    with pytest.raises(StoreError, match="down"):
        reader.read_next_event(0)
    rules.clear()
    assert drain(reader) == events[6:], "no other reader took it over"


def test_truncated_events_are_reported_once_and_reading_continues_at_the_head() -> None:
    world = World(segments=2)
    events = world.write(40)
    group = world.created()
    reader = group.create_reader("a")
    found = drain_some(reader, 2)
    world.runtime.sleep(4)
    view = world.stream.view()
    middle = {s: view.segment(s).next_offset - 2 for s in view.active.segment_ids}
    truncate(world.stream, StreamCut(NAME, 1, middle))
    reader.close()
    reader = world.group().create_reader("b")
    with pytest.raises(TruncatedData, match=r"s/t by user at version .* UTC.*at the head"):
        reader.read_next_event(0)
    rest = drain(reader)
    assert len(rest) == 4
    assert set(found).isdisjoint(rest)
    assert set(rest) <= set(events)


def test_reader_of_a_segment_without_a_record_continues_at_its_successors() -> None:
    world = World()
    world.write(10)
    group = world.created()
    reader, other = group.create_reader("a"), world.group().create_reader("b")
    drain_some(reader, 2)
    scale(world.stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    later = world.write(10)
    truncate(world.stream, StreamCut(NAME, 1, dict.fromkeys(ids(world), 0)))
    reader.close()
    with pytest.raises(TruncatedData):
        drain(other)
    assert sorted(drain(other)) == sorted(later)


@pytest.mark.parametrize("count", [0, 3])
def test_truncation_of_segments_without_unread_events_is_not_reported(count: int) -> None:
    world = World()
    events = world.write(count)
    group = world.created()
    a = group.create_reader("a")
    assert drain(a) == events
    scale(world.stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    later = world.write(6)
    truncate(world.stream, StreamCut(NAME, 1, dict.fromkeys(ids(world), 0)))
    assert not world.stream.view().has_segment(0)
    world.runtime.sleep(4)
    assert sorted(drain(a)) == sorted(later)


def test_loss_in_a_segment_without_a_record_names_its_events() -> None:
    world = World()
    world.write(10)
    a = world.created().create_reader("a")
    drain_some(a, 2)
    a.close()
    scale(world.stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    truncate(world.stream, StreamCut(NAME, 1, dict.fromkeys(ids(world), 0)))
    with pytest.raises(TruncatedData, match=r"segment 0#0 \[2, 10\)") as lost:
        world.group().create_reader("b").read_next_event(0)
    assert [(rng.start, rng.end) for rng in lost.value.lost] == [(2, 10)]


def ids(world: World) -> tuple[int, ...]:
    return world.stream.view().active.segment_ids


def test_next_call_answers_a_marker() -> None:
    world = World(segments=2)
    world.write(10)
    group = world.created()
    a, b = group.create_reader("a"), world.group().create_reader("b")
    for reader in (a, b, a, b):
        drain_some(reader, 1)
        world.runtime.sleep(4)
    future = group.initiate_checkpoint("nightly")
    assert group.initiate_checkpoint("nightly")._checkpoint == future._checkpoint
    world.runtime.sleep(4)
    assert a.read_next_event(0).checkpoint == "nightly"
    assert b.read_next_event(0).checkpoint == "nightly"
    assert not future.done()
    a.read_next_event(0)
    assert not future.done()
    b.read_next_event(0)
    checkpoint = future.result(0)
    assert sum(offset for _, offset in checkpoint.stream_cuts[NAME]) == 4
    assert group.last_checkpoint() == checkpoint


@pytest.mark.parametrize("acknowledge", ["next", "checkpoint"])
def test_checkpoint_is_at_the_marker_of_a_reader_that_leaves_before_its_answer_arrives(
    acknowledge: str,
) -> None:
    world = World()
    events = world.write(10)
    group = world.created(acknowledge=acknowledge)
    reader = group.create_reader("a")
    assert drain_some(reader, 2) == events[:2]
    future = group.initiate_checkpoint("nightly")
    world.runtime.sleep(4)
    assert reader.read_next_event(0).checkpoint == "nightly"
    world.store.rules.add(Rule(StoreError("down"), "*", "*_reader_groups*"))
    assert drain_some(reader, 3) == events[2:5], "it reads on while its lease lasts"
    world.store.rules.clear()
    reader.close()
    checkpoint = future.result(0)
    assert dict(checkpoint.stream_cuts[NAME]) == {0: 2}
    assert drain(group.create_reader("b")) == events[5:]
    group.reset(checkpoint)
    assert drain(group.create_reader("c")) == events[2:]


def test_checkpoint_is_at_the_marker_of_a_reader_that_is_lost_before_its_answer_arrives() -> None:
    world = World()
    events = world.write(10)
    group = world.created()
    reader = group.create_reader("a", lease="30 s", max_poll_interval=None)
    assert drain_some(reader, 2) == events[:2]
    future = group.initiate_checkpoint("nightly")
    world.runtime.sleep(4)
    assert reader.read_next_event(0).checkpoint == "nightly"
    world.store.rules.add(Rule(StoreError("down"), "put_if_absent", "*_reader_groups*"))
    for n in range(2, 5):  # its heartbeats arrive
        world.runtime.sleep(11)
        assert drain_some(reader, 1) == events[n : n + 1]
    world.store.rules.clear()
    assert group.reader_offline("a")
    assert dict(future.result(0).stream_cuts[NAME]) == {0: 2}
    assert drain(group.create_reader("b")) == events[2:]


def test_markers_come_in_order_also_to_readers_without_segments() -> None:
    world = World()
    world.write(2)
    group = world.created()
    first, idle = group.create_reader("a"), world.group().create_reader("b")
    first.read_next_event(0)
    idle.read_next_event(0)
    assert not idle.position.offsets
    futures = [group.initiate_checkpoint(name) for name in ("one", "two")]
    world.runtime.sleep(4)
    for reader in (first, idle):
        markers = [reader.read_next_event(0).checkpoint for _ in range(3)]
        assert markers == ["one", "two", None]
    assert all(future.done() for future in futures)


def test_checkpoint_at_the_end_of_data_completes_at_the_end() -> None:
    world = World(segments=2)
    world.write(6)
    lifecycle.seal(world.stream)
    group = world.created()
    reader = group.create_reader("a")
    drain(reader)
    future = group.initiate_checkpoint("end")
    world.runtime.sleep(4)
    assert reader.read_next_event(0).checkpoint == "end"
    assert reader.read_next_event(0).is_completed
    group.reset(future.result(0))
    assert group.is_at_end()


def test_automatic_checkpoints_come_at_their_interval_while_offsets_move() -> None:
    world = World()
    world.write(100)
    group = world.created(checkpoint_interval="10 s")
    reader = group.create_reader("a", automatic_markers=True)
    markers = []
    for _ in range(30):
        world.runtime.sleep(1)
        read = reader.read_next_event(0)
        if read.checkpoint:
            markers.append(world.runtime.monotonic())
    assert len(markers) == 3
    drain(reader)
    before = group.sync.fetch()
    for _ in range(100):
        world.runtime.sleep(1)
        reader.read_next_event(0)
    after = group.sync.fetch()
    assert before is not None
    assert after is not None
    assert after.version - before.version <= 3, "an idle group writes nothing"


def test_calls_between_refreshes_touch_no_storage() -> None:
    world = World()
    world.write(1_000)
    reader = world.created().create_reader("a")
    drain_some(reader, 1)
    world.store.calls.clear()
    drain_some(reader, 900)
    assert world.store.calls == []


def test_two_streams_are_read_by_one_group() -> None:
    world = World(names=("s/t", "s/u"))
    events = world.write(5) + world.write(5, "s/u")
    group = world.created()
    assert sorted(drain(group.create_reader("a"))) == sorted(events)


def test_groups_are_not_pickled() -> None:
    with pytest.raises(TypeError, match=r"pass its name.*StreamManager\.reader_group"):
        pickle.dumps(object.__new__(ReaderGroup))


def test_readers_are_not_pickled() -> None:
    reader = World().created().create_reader("a")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(reader)


def test_heartbeat_that_comes_too_late_does_not_revive_a_reader() -> None:
    world = World()
    world.write(10)
    group = world.created()
    late = group.create_reader("a", lease="20 s")
    drain_some(late, 2)
    world.runtime.sleep(30)
    other = world.group().create_reader("b")
    assert expired_after(group, 21, world.runtime.sleep) == ["a"]
    assert len(drain(other)) == 10
    world.store.rules.add(Rule(StoreError("down"), "get", "*_reader_groups/g/_delta_log/*"))
    for _ in range(2):
        with pytest.raises(StoreError, match="down"):
            late.read_next_event(0)
    world.store.rules.clear()
    with pytest.raises(ReinitializationRequired):
        late.read_next_event(0)


@pytest.mark.medium
def test_readers_of_one_process_that_wait_share_the_polls_of_their_stream() -> None:
    world = World(segments=4, clock=SYSTEM)
    group = world.created()
    readers = [group.create_reader(str(n)) for n in range(4)]
    for _ in range(3):  # the readers share the segments
        for reader in readers:
            reader.read_next_event(0)

    def read(reader: EventStreamReader) -> list[bytes]:
        found = drain(reader, timeout=0.7)
        return found + drain(reader, timeout=0.7)

    world.store.calls.clear()
    tail = group.stream(NAME).tail
    polls = tail._polls
    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(read, reader) for reader in readers]
        time.sleep(0.4)
        asked = world.store.count("get", f"{NAME}/events/_delta_log")
        assert asked <= tail._polls - polls + 8
        assert tail._polls - polls <= 0.4 / POLL_LOCAL_SECONDS[0]
        events = world.write(40)
        found = [event for result in results for event in result.result(timeout=60)]
    assert sorted(found) == sorted(events)


def test_read_that_waits_returns_an_event_soon_after_its_commit() -> None:
    world = World(clock=SYSTEM)
    reader = world.created().create_reader("a")
    assert reader.read_next_event(0).event is None
    with ThreadPoolExecutor(1) as pool:
        delays = []
        for n in range(10):
            result = pool.submit(reader.read_next_event, 30)
            time.sleep(0.03)
            world.write(1)
            began = time.monotonic()
            event = result.result(timeout=30).event
            delays.append(time.monotonic() - began)
            assert event is not None
            assert event.data == b"%d" % n
    assert sorted(delays)[5] < 10, "much less than the timeout, also on a busy machine"
