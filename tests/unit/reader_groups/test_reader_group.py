from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest

from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.engine.log.sweep import sweep_table
from pravega_spark.engine.state.scopes import Scope
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    CheckpointFailed,
    InvalidInput,
    InvalidStreamCut,
    NoSuchReaderGroup,
    ReinitializationRequired,
    TruncatedData,
)
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups import transitions
from pravega_spark.reader_groups.checkpoint_future import CheckpointFuture
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.lifecycle import GroupLifecycle
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.reader_groups.state import GroupState
from pravega_spark.retention.stream_retention import StreamRetention
from pravega_spark.values.limits import KEPT_CHECKPOINTS
from pravega_spark.values.segments import StreamCut
from tests.harness.group_world import NAME, OpenGroup, World, drain
from tests.harness.small_streams import scale, write

PLAIN = ReaderGroupConfiguration([NAME])


def test_reset_to_the_last_checkpoint_and_to_cuts() -> None:
    world = World()
    events = world.write(9)
    group = world.created()
    reader = group.create_reader("a")
    for _ in range(3):
        reader.read_next_event(0)
    checkpoint = group.initiate_checkpoint()
    world.runtime.sleep(4)
    assert reader.read_next_event(0).checkpoint == "checkpoint-3"
    drain(reader)
    assert checkpoint.done()
    for _ in range(2):
        assert group.reset() == group.generation
        world.runtime.sleep(4)
        with pytest.raises(ReinitializationRequired, match="the group was reset"):
            reader.read_next_event(0)
        reader = group.create_reader("a")
        assert drain(reader) == events[3:], "the same cut again"
    group.reset({NAME: f"{NAME}@1:0#0=7"})
    assert drain(group.create_reader("a")) == events[7:]
    group.reset(PLAIN)
    assert group.configuration == PLAIN
    assert drain(group.create_reader("a")) == events
    group.reset()
    assert drain(group.create_reader("a")) == events, "no checkpoint yet: the configured start"
    with pytest.raises(InvalidStreamCut, match="does not read s/x"):
        group.reset({"s/x": StreamCut("s/x", 1, {0: 0})})
    with pytest.raises(NoSuchReaderGroup):
        world.group("s/never").reset()


def test_a_reset_of_one_stream_leaves_the_others_where_their_readers_say() -> None:
    world = World(names=(NAME, "s/u"))
    again = world.write(4, NAME)
    world.write(4, "s/u")
    group = world.created()
    reader = group.create_reader("a")
    drain(reader)
    world.runtime.sleep(21)
    drain(reader)  # its heartbeat reports all, and no commit does
    assert group.stream_cuts()["s/u"].positions[0] == 0
    group.reset({NAME: "earliest"})
    assert drain(group.create_reader("b")) == again


def test_reset_to_segments_without_a_record_is_refused() -> None:
    world = World()
    world.write(4)
    group = world.created()
    checkpoint = group.initiate_checkpoint("c").result(0)
    scale(world.stream, [0], [(0.0, 1.0)])
    (new,) = world.stream.view().active.segment_ids
    truncate(world.stream, StreamCut(NAME, 1, {new: 0}))
    with pytest.raises(TruncatedData, match="use s/t@1:1#1=0"):
        group.reset(checkpoint)
    assert group.generation == 0


def test_reset_fails_pending_checkpoints() -> None:
    world = World()
    group = world.created()
    group.create_reader("a")
    future = group.initiate_checkpoint("c")
    with pytest.raises(TimeoutError, match="not complete after 1"):
        future.result(timeout=1)
    group.reset()
    with pytest.raises(CheckpointFailed, match="the group was reset"):
        future.result(1)
    group.create_reader("a")
    again = group.initiate_checkpoint("c")
    group.cancel_outstanding_checkpoints()
    with pytest.raises(CheckpointFailed, match="cancelled"):
        again.done()


@pytest.mark.parametrize("see", [CheckpointFuture.result, CheckpointFuture.done])
def test_future_that_was_complete_stays_complete(
    see: Callable[[CheckpointFuture], object],
) -> None:
    world = World()
    group = world.created()
    futures = [group.initiate_checkpoint(name) for name in ("first", "second")]
    for future in futures:
        assert see(future)
    for number in range(KEPT_CHECKPOINTS + 1):
        group.initiate_checkpoint(f"later-{number}")
    assert [future.result(0).name for future in futures] == ["first", "second"]
    group.reset()
    assert all(future.done() for future in futures)
    assert futures[0].result(0).stream_cuts == {NAME: StreamCut(NAME, 1, {0: 0})}


def test_checkpoint_does_not_wait_for_an_expired_reader() -> None:
    world = World(segments=2)
    world.write(6)
    group = world.created()
    reader = group.create_reader("a", lease="20 s")
    reader.read_next_event(0)
    future = group.initiate_checkpoint("c")
    cut = future.result(timeout=60).stream_cuts[NAME]
    assert sum(offset for _, offset in cut) == 0, "its recorded offsets"
    assert group.online_readers() == []


def test_silent_cuts_show_no_marker_and_record_nothing() -> None:
    world = World()
    world.write(6)
    group = world.created()
    reader = group.create_reader("a")
    reader.read_next_event(0)
    reader.read_next_event(0)
    future = group.generate_stream_cuts()
    world.runtime.sleep(4)
    recorded = group.state().assigned
    assert reader.read_next_event(0).event is not None
    assert future.result(0).stream_cuts == {NAME: StreamCut(NAME, 1, {0: 2})}
    assert group.last_checkpoint() is None
    assert group.state().assigned == recorded
    assert group.stream_cuts() == {NAME: StreamCut(NAME, 1, {0: 0})}


def test_silent_checkpoints_displace_no_complete_one() -> None:
    world = World()
    group = world.created()
    waited = [group.initiate_checkpoint(f"c{n}") for n in range(KEPT_CHECKPOINTS)]
    cuts = [group.generate_stream_cuts() for _ in range(2 * KEPT_CHECKPOINTS)]
    assert [future.result(0).name for future in waited] == [f"c{n}" for n in range(8)]
    assert cuts[-1].done()
    kept = [checkpoint.silent for checkpoint in group.state().checkpoints]
    assert (kept.count(False), kept.count(True)) == (KEPT_CHECKPOINTS, KEPT_CHECKPOINTS)


def test_reader_offline_unassigns_the_segments() -> None:
    world = World()
    events = world.write(6)
    group = world.created()
    reader = group.create_reader("a")
    positions = [reader.read_next_event(0).position for _ in range(4)]
    ahead = Position(dict.fromkeys(positions[0].offsets, 99))
    with pytest.raises(InvalidInput, match="has 6 events"):
        group.reader_offline("a", ahead)
    assert group.reader_offline("a", positions[1])
    assert not group.reader_offline("a")
    assert drain(group.create_reader("b")) == events[2:]
    assert group.reader_offline("b")
    assert group.stream_cuts() == {NAME: StreamCut(NAME, 1, {0: 2})}, "the last recorded offset"


def test_reader_without_any_heartbeat_expires() -> None:
    world = World()
    events = world.write(3)
    group = world.created()

    def joined(state: GroupState) -> GroupState:
        """As an older version left a reader whose heartbeat the store refused."""
        state = transitions.join(state, ".x", 20_000)
        return transitions.acquire(state, ".x", state.readers[".x"].number)

    group.sync.apply("JOIN", joined)
    reader = world.group().create_reader("a")
    assert reader.read_next_event(0).event is None
    world.runtime.sleep(25)
    assert drain(reader) == []
    world.runtime.sleep(25)
    assert drain(reader) == events
    assert group.online_readers() == ["a"]


def test_cuts_need_positions_that_cover_the_group() -> None:
    world = World(segments=2)
    world.write(10)
    group = world.created()
    reader = group.create_reader("a")
    early = reader.read_next_event(0).position
    drain(reader)
    cuts = group.cuts_at([str(early)])
    assert sum(offset for _, offset in cuts[NAME]) == 1
    assert group.cuts_at([early, reader.position])[NAME] == world.stream.view().tail
    with pytest.raises(InvalidInput, match=r"do not name s/t/0#0, s/t/1#0, which readers"):
        group.cuts_at([])


def test_crashed_reader_goes_offline_at_its_last_heartbeat() -> None:
    world = World()
    events = world.write(9)
    group = world.created()
    reader = group.create_reader("a", lease="30 s")
    for _ in range(3):
        reader.read_next_event(0)
    world.runtime.sleep(11)
    reader.read_next_event(0)  # a heartbeat with three events processed
    assert group.reader_offline("a")
    assert drain(group.create_reader("b")) == events[3:]


def test_lag_is_exact_by_segment_and_in_total() -> None:
    world = World(segments=2)
    world.write(10)
    group = world.created()
    world.runtime.sleep(60)
    lag = group.lag()
    assert (lag.events, lag.seconds, len(lag.segments)) == (10, 60.0, 2)
    info = [world.stream.view().segment(s).size_bytes for s in (0, 1)]
    assert [s.size_bytes for s in lag.segments] == info
    assert {s.reader for s in lag.segments} == {None}
    reader = group.create_reader("a")
    drain(reader)
    assert {s.reader for s in group.lag().segments} == {"a"}
    reader.close()
    assert group.lag().events == 0
    world.write(3)
    assert group.lag().events == 3


def test_lag_starts_at_the_last_heartbeats_though_no_offset_was_recorded() -> None:
    world = World()
    world.write(10)
    group = world.created()
    reader = group.create_reader("a", lease="30 s")
    for _ in range(4):
        reader.read_next_event(0)
    assert group.lag().events == 10
    world.runtime.sleep(11)
    reader.read_next_event(0)  # a heartbeat with four events processed
    assert group.stream_cuts() == {NAME: StreamCut(NAME, 1, {0: 0})}
    assert group.lag().events == 6
    group.reset()
    assert group.lag().events == 10, "the heartbeat is of another generation"


def test_lag_ends_at_the_end_cut() -> None:
    world = World()
    world.write(10)
    spans = {NAME: (None, StreamCut(NAME, 1, {0: 4}))}
    group = world.created(streams=spans)
    assert group.lag().events == 4
    truncate(world.stream, StreamCut(NAME, 1, {0: 6}))
    assert group.lag().events == 0


def test_sql_reads_the_state_of_a_group_at_every_version(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    Scope(store, "s").create()
    stream = StreamLog(store, NAME)
    lifecycle.create(stream, 1, StreamConfiguration())
    write(stream, [("k", b"1"), ("k", b"2")])
    group = OpenGroup(GroupLifecycle(store, "s/g", lambda name: StreamLog(store, name)))
    group.create(PLAIN)
    with group.create_reader("a") as reader:
        reader.read_next_event(1)
        path = str(tmp_path / "s" / "_reader_groups" / "g")
        rows = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
        found = {row["key"]: row for row in rows}
        segment = found["segment/s/t/0#0"]
        assert (segment["state"], segment["reader"], segment["offset"]) == ("assigned", "a", 0)
        assert set(found) == {"group", "reader/a", "segment/s/t/0#0"}
    operations = [h["operation"] for h in deltalake.DeltaTable(path).history()]
    assert operations == ["LEAVE", "READ", "JOIN", "CREATE READER GROUP"]
    assert group.stream_cuts() == {NAME: StreamCut(NAME, 1, {0: 1})}


def test_group_continues_after_a_sweep() -> None:
    world = World()
    events = world.write(8)
    group = world.created()
    reader = group.create_reader("a")
    for n in range(4):
        read = reader.read_next_event(0)
        assert read.event is not None
        assert read.event.data == events[n]
        group.generate_stream_cuts()
        world.runtime.sleep(3.5)
    world.runtime.sleep(10)
    sweep_table(group.sync.table.log, grace_ms=1_000, retain_ms=1_000)
    assert drain(reader) == events[4:]
    assert world.group().online_readers() == ["a"]


def _use_in_child(group: ReaderGroup, results: Any) -> None:
    results.put((group.lag().events, group.online_readers(), group.generation))
    with group.create_reader("child") as reader:
        event = reader.read_next_event(timeout=5).event
    results.put(None if event is None else event.data)


@pytest.mark.medium
def test_group_works_in_a_forked_child(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"one")
    group = manager.create_reader_group("s/g", ["s/t"])
    assert group.lag().events == 1
    fork = multiprocessing.get_context("fork")
    results: Any = fork.Queue()
    child = fork.Process(target=_use_in_child, args=(group, results))
    child.start()
    assert results.get(timeout=60) == (1, [], 0)
    assert results.get(timeout=60) == b"one"
    child.join(60)
    assert child.exitcode == 0
    assert group.lag().events == 0


def test_time_out_of_a_checkpoint_names_the_reader_that_it_waits_for() -> None:
    world = World()
    group = world.created()
    a, b = group.create_reader("a"), group.create_reader("b")
    asked = group.initiate_checkpoint("c")
    with pytest.raises(
        TimeoutError, match="c is not complete after 0 s: it waits for reader a, b,"
    ):
        asked.result(0)
    a.read_next_event(0)
    a.read_next_event(0)
    with pytest.raises(TimeoutError, match="it waits for reader b, which"):
        asked.result(0)
    b.close()
    a.close()


def test_explanation_of_retention_names_the_reader_for_whom_a_checkpoint_waits() -> None:
    world = World()
    world.write(4)
    group = world.created(retention="automatic")
    a, _ = group.create_reader("a"), group.create_reader("b")
    lifecycle.update(world.stream, StreamConfiguration(retention=RetentionPolicy.by_consumption()))
    retention = StreamRetention(world.stream, 1, lambda: None)
    assert retention.explain().awaited == ()
    group.initiate_checkpoint("c")
    a.read_next_event(0)
    a.read_next_event(0)
    text = "checkpoint c of reader group s/g waits for reader b"
    assert retention.explain().awaited == (text,)
    assert f"  {text}\n" in f"{retention.explain()}\n"
