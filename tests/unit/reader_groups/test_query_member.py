from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.runtime.processes import has_ended, identity
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.subscribers import listed
from pravega_spark.errors import IllegalState, InvalidInput, ReinitializationRequired, StoreError
from pravega_spark.reader_groups import query_member
from pravega_spark.reader_groups.leases import Heartbeat
from pravega_spark.reader_groups.query_member import QUERY, QueryMember, acknowledge_batch
from pravega_spark.retention.run import parse_options, run_retention
from pravega_spark.values.limits import QUERY_LEASE_MS
from pravega_spark.values.segments import StreamCut
from tests.harness.fault_plans import Rule
from tests.harness.group_world import NAME, OpenGroup, World, membership_of
from tests.harness.small_streams import scale

BY_CONSUMPTION = StreamConfiguration(ScalingPolicy.fixed(1), RetentionPolicy.by_consumption())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def joined(group: OpenGroup, stack: ExitStack) -> QueryMember:
    member = QueryMember(group.lifecycle)
    stack.callback(member.leave)
    return member


def cut_at(world: World, positions: Mapping[int, int]) -> dict[str, StreamCut]:
    return {NAME: StreamCut(NAME, world.stream.view().life, positions)}


def newest_version(group: OpenGroup) -> int:
    snapshot = group.log.refresh()
    assert snapshot is not None
    return snapshot.version


def published(world: World) -> Mapping[int, int] | None:
    (found,) = listed(world.stream.view())
    return None if found.cut is None else found.cut.positions


# --------------------------------------------------------------------------------- its batches


def test_finished_batches_move_the_group_and_are_its_checkpoints(stack: ExitStack) -> None:
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
    version = newest_version(group)
    query.finish_batch({NAME: tail})
    query.finish_batch(cut_at(world, {0: 3, 1: 4}))
    assert newest_version(group) == version, "a cut that is not later changes nothing"


def test_query_passes_a_split_and_a_half_read_merge(stack: ExitStack) -> None:
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
    query.finish_batch(cut_at(world, {**before, low: view.segment(low).next_offset}))
    (merged,) = group.state().future
    assert merged.segment_id == max(view.active.segment_ids)
    query.finish_batch({NAME: view.tail})
    state = group.state()
    assert state.cut(NAME) == view.tail
    assert set(state.owned_by(QUERY)) == set(state.assigned)
    assert group.lag().events == 0


def test_query_of_a_sealed_stream_reaches_its_end(stack: ExitStack) -> None:
    world = World(segments=2)
    world.write(10)
    group = world.created()
    query = joined(group, stack)
    lifecycle.seal(world.stream)
    query.finish_batch({NAME: world.stream.view().tail})
    assert group.is_at_end()


@pytest.mark.parametrize("retention", ["automatic", "manual"])
def test_streams_release_what_a_subscribing_query_has_finished(
    retention: str, stack: ExitStack
) -> None:
    world = World()
    lifecycle.update(world.stream, BY_CONSUMPTION)
    world.write(20)
    group = world.created(retention=retention)
    before = published(world)
    joined(group, stack).finish_batch(cut_at(world, {0: 15}))
    assert published(world) == ({0: 15} if retention == "automatic" else before)


def test_next_batch_publishes_what_a_failed_publication_left(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created(retention="automatic")
    query = joined(group, stack)
    world.store.rules.add(Rule(StoreError("down"), "put_if_absent", f"{NAME}/*"))
    query.finish_batch(cut_at(world, {0: 5}))
    world.store.rules.clear()
    assert published(world) == {0: 0}
    query.finish_batch(cut_at(world, {0: 5}))
    assert published(world) == {0: 5}


def test_expired_subscription_of_a_query_is_logged_once(
    stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    lifecycle.update(world.stream, BY_CONSUMPTION)
    group = world.created(retention="automatic")
    query = joined(group, stack)
    world.write(20)
    world.runtime.sleep(60)
    run_retention(world.stream, parse_options(expire="1 s", sweep=False))
    assert listed(world.stream.view()) == []
    query.finish_batch(cut_at(world, {0: 5}))
    query.finish_batch(cut_at(world, {0: 6}))
    (line,) = [r.message for r in caplog.records if "no longer keeps data" in r.message]
    assert "reader group s/g" in line
    group.reset()
    assert published(world) == {0: 6}


def test_idle_query_answers_silent_checkpoints(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created(retention="automatic")
    query = joined(group, stack)
    cut = cut_at(world, {0: 5})
    query.finish_batch(cut)
    asked = group.generate_stream_cuts()
    query.finish_batch(cut)
    assert asked.result(timeout=0).stream_cuts == cut


def test_query_answers_pending_checkpoints(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created()
    query = joined(group, stack)
    asked = group.initiate_checkpoint("nightly")
    assert not asked.done()
    query.finish_batch(cut_at(world, {0: 12}))
    assert asked.result(timeout=0).stream_cuts == cut_at(world, {0: 12})


# ------------------------------------------------------------------------------ one query a group


def test_crashed_query_is_waited_for_and_learns_that_it_was_evicted(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created()
    first = joined(group, stack)
    first.finish_batch(cut_at(world, {0: 5}))
    began = world.runtime.monotonic()
    second = joined(world.group(), stack)
    assert world.runtime.monotonic() - began >= QUERY_LEASE_MS / 1_000
    assert second.cuts() == cut_at(world, {0: 5})
    with pytest.raises(ReinitializationRequired, match="another query took it over"):
        first.check()
    first.leave()
    assert world.group().online_readers() == [QUERY], "an evicted query removes nothing"
    second.refresh()
    with pytest.raises(ReinitializationRequired):
        first.finish_batch(cut_at(world, {0: 20}))
    assert world.group().stream_cuts() == cut_at(world, {0: 5})
    second.finish_batch(cut_at(world, {0: 6}))


def test_query_that_resumes_too_late_leaves_the_lease_to_its_successor(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    group = world.created()
    first = joined(group, stack)
    second = joined(world.group(), stack)
    monkeypatch.setattr(query_member, "_HEARTBEATS_PER_LEASE", 1e6)
    first._keep_lease()  # as its thread does
    heartbeat = group.lifecycle.leases.heartbeat(QUERY)
    assert heartbeat is not None
    assert heartbeat.number == second.number
    with pytest.raises(ReinitializationRequired):
        first.check()


def test_live_query_keeps_other_queries_out(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_query_and_readers_exclude_each_other(stack: ExitStack) -> None:
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


def test_reader_whose_process_has_ended_is_replaced_without_waiting() -> None:
    world = World()
    group = world.created()
    reader = group.create_reader("r")
    with pytest.raises(IllegalState, match="close it first"):
        world.group().create_reader("r")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lease = membership_of(reader).lease
    lease._last = replace(lease._last, process=identity(child.pid))
    world.runtime.sleep(30)
    reader.read_next_event(0)
    child.communicate(b"\n")
    world.group().create_reader("r").close()


def test_reset_evicts_the_query_and_the_next_continues_at_the_new_cuts(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created()
    query = joined(group, stack)
    query.finish_batch(cut_at(world, {0: 9}))
    group.reset(cut_at(world, {0: 4}))
    with pytest.raises(ReinitializationRequired, match="in reader group s/g: the group was reset"):
        query.refresh()
    with pytest.raises(ReinitializationRequired):
        query.finish_batch(cut_at(world, {0: 20}))
    again = joined(group, stack)
    assert (again.generation, again.cuts()) == (1, cut_at(world, {0: 4}))


def test_update_evicts_the_query_which_may_continue_with_its_checkpoint(stack: ExitStack) -> None:
    world = World(names=(NAME, "s/u"))
    world.write(20)
    group = world.created(streams=[NAME])
    query = joined(group, stack)
    query.finish_batch(cut_at(world, {0: 9}))
    group.update(retention="automatic")
    with pytest.raises(ReinitializationRequired, match=r"was updated\. Start the query again"):
        query.finish_batch(cut_at(world, {0: 20}))
    with pytest.raises(ReinitializationRequired, match="the same checkpoint folder"):
        query.check()
    assert query.was_updated
    again = joined(group, stack)
    assert (again.generation, again.cuts()) == (1, cut_at(world, {0: 9}))
    assert again.continues(0)
    group.update(add=["s/u"])
    with pytest.raises(ReinitializationRequired, match="with a new checkpoint folder"):
        again.refresh()
    assert not again.was_updated, "a stream was added, where the query has no position"


# ---------------------------------------------------------------------------- acknowledgements


def test_batches_from_before_an_update_are_acknowledged_where_positions_continue() -> None:
    world = World(names=(NAME, "s/u", "s/v"))
    world.write(20)
    world.write(20, "s/u")
    group = world.created(streams=[NAME, "s/u"], retention="automatic")
    with ExitStack() as stack:
        number = joined(group, stack).number
        group.update(remove=["s/u"], add={"s/u": "s/u@1:0#0=3", "s/v": None})
    done = {name: StreamCut(name, 1, {0: 15}) for name in (NAME, "s/u")}
    assert acknowledge_batch(world.group().lifecycle, 0, done, number)
    found = {name: str(at) for name, at in group.stream_cuts().items()}
    assert found[NAME] == f"{NAME}@1:0#0=15"
    assert found["s/u"] == "s/u@1:0#0=3", "it began again, so that its events are read again"
    assert published(world) == {0: 15}
    group.update(remove=[NAME])
    assert not acknowledge_batch(world.group().lifecycle, 0, done, number)


def test_last_batch_is_acknowledged_for_a_query_that_ended() -> None:
    world = World()
    world.write(20)
    group = world.created(retention="automatic")
    with ExitStack() as stack:
        joined(group, stack).finish_batch(cut_at(world, {0: 5}))
    assert acknowledge_batch(
        world.group().lifecycle, 0, cut_at(world, {0: 15}), group.state().query_number
    )
    assert published(world) == {0: 15}
    assert not acknowledge_batch(group.lifecycle, 0, cut_at(world, {0: 15})), "known"
    assert not acknowledge_batch(group.lifecycle, 0, cut_at(world, {0: 7})), "behind"
    group.reset(cut_at(world, {0: 2}))
    assert not acknowledge_batch(group.lifecycle, 0, cut_at(world, {0: 20})), "another generation"
    assert group.stream_cuts() == cut_at(world, {0: 2})


def test_acknowledgement_leaves_segments_with_a_live_query(stack: ExitStack) -> None:
    world = World()
    world.write(20)
    group = world.created()
    query = joined(group, stack)
    scale(world.stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    world.write(20)
    assert acknowledge_batch(group.lifecycle, 0, {NAME: world.stream.view().tail}, query.number)
    assert group.distribution() == {QUERY: 2, None: 0}
    query.finish_batch({NAME: world.stream.view().tail})


def test_acknowledgement_of_an_earlier_query_is_ignored() -> None:
    world = World()
    world.write(20)
    group = world.created()
    with ExitStack() as stack:
        first = joined(group, stack)
    with ExitStack() as stack:
        second = joined(group, stack)
        second.finish_batch(cut_at(world, {0: 5}))
        assert not acknowledge_batch(group.lifecycle, 0, cut_at(world, {0: 15}), first.number)
        with pytest.raises(IllegalState, match="is read by streaming-query, which report"):
            acknowledge_batch(group.lifecycle, 0, cut_at(world, {0: 15}))
    assert not acknowledge_batch(group.lifecycle, 0, cut_at(world, {0: 15}), first.number)
    assert group.stream_cuts() == cut_at(world, {0: 5})
    assert acknowledge_batch(group.lifecycle, 0, cut_at(world, {0: 15}), second.number)


def test_deleted_stream_does_not_stop_the_query(
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
    query.finish_batch(cut_at(world, {0: 5}) | {"s/u": old})
    assert group.state().cut(NAME) == cut_at(world, {0: 5})[NAME]
    assert "skipped s/u in reader group s/g, which keeps its position" in caplog.text
    with pytest.raises(InvalidInput, match="s/g does not read s/v; it reads s/t, s/u"):
        query.finish_batch({"s/v": StreamCut("s/v", 1, {0: 1})})


def test_group_with_readers_refuses_acknowledgements() -> None:
    world = World()
    world.write(20)
    group = world.created()
    with (
        group.create_reader("r"),
        pytest.raises(IllegalState, match="is read by r, which report their own"),
    ):
        acknowledge_batch(group.lifecycle, 0, cut_at(world, {0: 15}))


# --------------------------------------------------------------------------------------- processes


def test_only_a_process_of_this_machine_is_known_to_have_ended() -> None:
    machine, pid, started = identity().split(" ")
    assert not has_ended(identity())
    assert has_ended(f"{machine} {pid} {int(started) + 1}"), "the process id was reused"
    assert not has_ended(f"elsewhere {pid} {int(started) + 1}")
    for nonsense in ("", machine, f"{machine} x 1", f"{machine} -1 "):
        assert not has_ended(nonsense)


def test_process_has_ended_before_its_parent_waits_for_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = identity(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    while not has_ended(process):
        assert child.returncode is None
    child.wait()
