from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import pytest

from pravega_spark.engine.processes import has_ended, identity
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.subscribers import listed
from pravega_spark.errors import IllegalState, InvalidInput, ReinitializationRequired, StoreError
from pravega_spark.model import StreamCut
from pravega_spark.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.reader_groups import query_member
from pravega_spark.reader_groups.query_member import LEASE_MS, QUERY, QueryMember, acknowledge_batch
from pravega_spark.reader_groups.reader_leases import Heartbeat
from pravega_spark.retention.retention_run import RetentionOptions, act
from tests.harness.engine import scale
from tests.harness.fault_plans import Rule
from tests.harness.group_world import NAME, OpenGroup, World

BY_CONSUMPTION = StreamConfiguration(ScalingPolicy.fixed(1), RetentionPolicy.by_consumption())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def joined(group: OpenGroup, stack: ExitStack) -> QueryMember:
    member = QueryMember(group.lifecycle)
    stack.callback(member.leave)
    return member


def place(world: World, positions: Mapping[int, int]) -> dict[str, StreamCut]:
    return {NAME: StreamCut(NAME, world.stream.view().life, positions)}


def published(world: World) -> Mapping[int, int] | None:
    (found,) = listed(world.stream.view())
    return None if found.cut is None else found.cut.positions


# ----------------------------------------------------------------------------------- its position


def test_finished_batches_move_the_group_on_and_are_its_checkpoints(stack: ExitStack) -> None:
    world = World(segments=2)
    world.write(100)
    group = world.created()
    query = joined(group, stack)
    assert group.distribution() == {QUERY: 2, None: 0}
    assert group.lag().events == 100
    tail = world.stream.view().tail
    query.finish_batch({NAME: tail})
    assert group.lag().events == 0
    assert group.stream_cuts() == {NAME: tail}
    last = group.last_checkpoint()
    assert last is not None
    assert last.stream_cuts == {NAME: tail}
    version = group.log.refresh().version
    query.finish_batch({NAME: tail})
    query.finish_batch(place(world, {0: 3, 1: 4}))
    assert group.log.refresh().version == version, "what is not later changes nothing"


def test_query_goes_over_a_split_and_a_half_read_merge(stack: ExitStack) -> None:
    world = World(segments=2)
    world.write(40)
    scale(world.stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    world.write(40)
    group = world.created()
    query = joined(group, stack)
    query.finish_batch({NAME: world.stream.view().tail})
    assert len(group.state().owned_by(QUERY)) == 3
    before = query.cuts()[NAME].positions
    low, high = sorted(world.stream.view().active.segment_ids)[-2:]
    world.write(40)
    scale(world.stream, [low, high], [(0.0, 0.5)])
    world.write(40)
    view = world.stream.view()
    query.finish_batch(place(world, {**before, low: view.segment(low).next_offset}))
    (merged,) = group.state().future
    assert merged.segment_id == max(view.active.segment_ids)
    query.finish_batch({NAME: view.tail})
    state = group.state()
    assert state.cut(NAME) == view.tail
    assert set(state.owned_by(QUERY)) == set(state.assigned)
    assert group.lag().events == 0


def test_query_of_a_sealed_stream_comes_to_its_end(stack: ExitStack) -> None:
    world = World(segments=2)
    world.write(10)
    group = world.created()
    query = joined(group, stack)
    lifecycle.seal(world.stream)
    query.finish_batch({NAME: world.stream.view().tail})
    assert group.is_at_end()


@pytest.mark.parametrize("retention", ["automatic", "manual"])
def test_streams_let_go_what_a_subscribing_query_has_finished(
    retention: str, stack: ExitStack
) -> None:
    world = World()
    lifecycle.update(world.stream, BY_CONSUMPTION)
    world.write(20)
    group = world.created(retention=retention)
    before = published(world)
    joined(group, stack).finish_batch(place(world, {0: 15}))
    assert published(world) == ({0: 15} if retention == "automatic" else before)


def test_what_was_not_told_to_the_streams_is_told_by_the_next_batch(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created(retention="automatic")
    query = joined(group, stack)
    world.store.rules.add(Rule(StoreError("down"), "put_if_absent", f"{NAME}/*"))
    query.finish_batch(place(world, {0: 5}))
    world.store.rules.clear()
    assert published(world) == {0: 0}
    query.finish_batch(place(world, {0: 5}))
    assert published(world) == {0: 5}


def test_query_that_was_expired_is_told_to_whoever_reads_logs(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    lifecycle.update(world.stream, BY_CONSUMPTION)
    group = world.created(retention="automatic")
    query = joined(group, stack)
    world.write(20)
    world.runtime.sleep(60)
    act(world.stream, RetentionOptions(expire_ms=1_000, sweep=False))
    assert listed(world.stream.view()) == []
    query.finish_batch(place(world, {0: 5}))
    query.finish_batch(place(world, {0: 6}))
    (line,) = [r.message for r in caplog.records if "no longer keeps data" in r.message]
    assert "reader group s/g" in line
    group.reset()
    assert published(world) == {0: 6}


def test_idle_query_tells_what_the_streams_have_not_heard(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created(retention="automatic")
    query = joined(group, stack)
    cut = place(world, {0: 5})
    query.finish_batch(cut)
    asked = group.generate_stream_cuts()
    query.finish_batch(cut)
    assert asked.result(timeout=0).stream_cuts == cut


def test_query_answers_the_checkpoints_that_others_ask_for(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created()
    query = joined(group, stack)
    asked = group.initiate_checkpoint("nightly")
    assert not asked.done()
    query.finish_batch(place(world, {0: 12}))
    assert asked.result(timeout=0).stream_cuts == place(world, {0: 12})


# ------------------------------------------------------------------------------ one query a group


def test_dead_query_is_waited_for_and_told_that_it_was_taken_over(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created()
    first = joined(group, stack)
    first.finish_batch(place(world, {0: 5}))
    began = world.runtime.monotonic()
    second = joined(world.group(), stack)
    assert world.runtime.monotonic() - began >= LEASE_MS / 1_000
    assert second.cuts() == place(world, {0: 5})
    with pytest.raises(ReinitializationRequired, match="another query took it over"):
        first.check()
    first.leave()
    assert world.group().online_readers() == [QUERY], "who was taken over takes nothing along"
    second.refresh()
    with pytest.raises(ReinitializationRequired):
        first.finish_batch(place(world, {0: 20}))
    assert world.group().stream_cuts() == place(world, {0: 5})
    second.finish_batch(place(world, {0: 6}))


def test_query_that_wakes_up_too_late_leaves_the_lease_to_its_successor(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    group = world.created()
    first = joined(group, stack)
    second = joined(world.group(), stack)
    monkeypatch.setattr(query_member, "_HEARTBEATS_PER_LEASE", 1e6)
    first._keep_lease()  # what its thread does
    heartbeat = group.lifecycle.leases.heartbeat(QUERY)
    assert heartbeat is not None
    assert heartbeat.number == second.number
    with pytest.raises(ReinitializationRequired):
        first.check()


def test_living_query_keeps_others_out(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    group = world.created()
    first = joined(group, stack)
    sleep = world.runtime.sleep

    def alive(seconds: float) -> None:
        sleep(seconds)
        first._extend_lease()

    monkeypatch.setattr(world.runtime, "sleep", alive)
    with pytest.raises(IllegalState, match="which is alive in process"):
        QueryMember(world.group().lifecycle)
    first.refresh()


def test_query_whose_process_has_ended_is_not_waited_for(stack: ExitStack) -> None:
    world = World()
    group = world.created()
    first = joined(group, stack)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = identity(child.pid)
    assert not has_ended(process)
    child.communicate(b"\n")
    group.lifecycle.leases.extend(QUERY, Heartbeat(first.number, {}, process))
    began = world.runtime.monotonic()
    joined(world.group(), stack)
    assert world.runtime.monotonic() == began


def test_query_and_readers_are_not_in_one_group_at_once(stack: ExitStack) -> None:
    world = World()
    group = world.created()
    query = joined(group, stack)
    with pytest.raises(IllegalState, match=r"cannot join .* s/g, which streaming-query reads"):
        group.create_reader("r")
    query.leave()
    assert group.online_readers() == []
    with group.create_reader("r") as reader:
        sleep = world.runtime.sleep

        def reading(seconds: float) -> None:
            sleep(seconds)
            reader.read_next_event(0)

        world.runtime.sleep = reading  # type: ignore[method-assign]
        with pytest.raises(IllegalState, match="is read by r, which is alive"):
            QueryMember(world.group().lifecycle)
        world.runtime.sleep = sleep  # type: ignore[method-assign]


def test_reader_without_a_lease_is_not_waited_for() -> None:
    world = World()
    group = world.created()
    with (
        group.create_reader("r", lease=None),
        pytest.raises(IllegalState, match="read by r, whose lease is too long to wait for"),
    ):
        QueryMember(world.group().lifecycle)


def test_reader_whose_process_has_ended_makes_way_for_one_of_its_name() -> None:
    world = World()
    group = world.created()
    reader = group.create_reader("r")
    with pytest.raises(IllegalState, match="close it first"):
        world.group().create_reader("r")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    reader._membership._process = identity(child.pid)
    world.runtime.sleep(30)
    reader.read_next_event(0)
    child.communicate(b"\n")
    world.group().create_reader("r").close()


def test_reset_ends_the_query_and_the_next_goes_on_where_the_group_is(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created()
    query = joined(group, stack)
    query.finish_batch(place(world, {0: 9}))
    group.reset(place(world, {0: 4}))
    with pytest.raises(ReinitializationRequired, match="in reader group s/g: the group was reset"):
        query.refresh()
    with pytest.raises(ReinitializationRequired):
        query.finish_batch(place(world, {0: 20}))
    again = joined(group, stack)
    assert (again.generation, again.cuts()) == (1, place(world, {0: 4}))


# ------------------------------------------------------------------- what others say for the query


def test_last_batch_is_acknowledged_for_a_query_that_ended() -> None:
    world = World()
    world.write(20)
    group = world.created(retention="automatic")
    with ExitStack() as stack:
        joined(group, stack).finish_batch(place(world, {0: 5}))
    assert acknowledge_batch(
        world.group().lifecycle, 0, place(world, {0: 15}), group.state().query_number
    )
    assert published(world) == {0: 15}
    assert not acknowledge_batch(group.lifecycle, 0, place(world, {0: 15})), "known"
    assert not acknowledge_batch(group.lifecycle, 0, place(world, {0: 7})), "behind"
    group.reset(place(world, {0: 2}))
    assert not acknowledge_batch(group.lifecycle, 0, place(world, {0: 20})), "of another generation"
    assert group.stream_cuts() == place(world, {0: 2})


def test_acknowledgement_leaves_segments_with_a_living_query(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created()
    query = joined(group, stack)
    scale(world.stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    world.write(20)
    assert acknowledge_batch(group.lifecycle, 0, {NAME: world.stream.view().tail}, query.number)
    assert group.distribution() == {QUERY: 2, None: 0}
    query.finish_batch({NAME: world.stream.view().tail})


def test_what_is_said_for_a_query_counts_no_more_when_another_has_joined() -> None:
    world = World()
    world.write(20)
    group = world.created()
    with ExitStack() as stack:
        first = joined(group, stack)
    with ExitStack() as stack:
        second = joined(group, stack)
        second.finish_batch(place(world, {0: 5}))
        assert not acknowledge_batch(group.lifecycle, 0, place(world, {0: 15}), first.number)
        with pytest.raises(IllegalState, match="is read by streaming-query, which report"):
            acknowledge_batch(group.lifecycle, 0, place(world, {0: 15}))
    assert not acknowledge_batch(group.lifecycle, 0, place(world, {0: 15}), first.number)
    assert group.stream_cuts() == place(world, {0: 5})
    assert acknowledge_batch(group.lifecycle, 0, place(world, {0: 15}), second.number)


def test_stream_that_is_gone_or_in_another_life_does_not_stop_the_query(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(names=(NAME, "s/u"))
    world.write(20)
    world.write(20, "s/u")
    group = world.created()
    query = joined(group, stack)
    other = world.streams["s/u"]
    old = other.view().tail
    lifecycle.seal(other)
    lifecycle.delete(other)
    query.finish_batch(place(world, {0: 5}) | {"s/u": old})
    assert group.state().cut(NAME) == place(world, {0: 5})[NAME]
    assert "skipped s/u in reader group s/g, which keeps its position" in caplog.text
    with pytest.raises(InvalidInput, match="s/g does not read s/v; it reads s/t, s/u"):
        query.finish_batch({"s/v": StreamCut("s/v", 1, {0: 1})})


def test_readers_say_by_themselves_how_far_they_are() -> None:
    world = World()
    world.write(20)
    group = world.created()
    with (
        group.create_reader("r"),
        pytest.raises(IllegalState, match="is read by r, which report their own"),
    ):
        acknowledge_batch(group.lifecycle, 0, place(world, {0: 15}))


# --------------------------------------------------------------------------------------- processes


def test_only_of_this_machine_a_process_is_known_to_be_gone() -> None:
    machine, pid, started = identity().split(" ")
    assert not has_ended(identity())
    assert has_ended(f"{machine} {pid} {int(started) + 1}"), "the number was given again"
    assert not has_ended(f"elsewhere {pid} {int(started) + 1}")
    for nonsense in ("", machine, f"{machine} x 1", f"{machine} -1 "):
        assert not has_ended(nonsense)


def test_process_that_nobody_has_waited_for_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = identity(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    while not has_ended(process):
        assert child.returncode is None
    child.wait()
