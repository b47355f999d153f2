"""What a reader's step found is told once, whatever fails between the step and the telling.

The step and the telling are two calls inside one of the reader: a test that dies between them
replaces the second, and what the step finds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    CommitUnknown,
    NoSuchStream,
    ReinitializationRequired,
    StoreError,
    TruncatedData,
)
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.reader_groups.state import Find, SegmentKey
from pravega_spark.reader_groups.table import GroupCodec
from pravega_spark.reader_groups.transitions import add_deleted, clip, forget_handed_over
from pravega_spark.values.segments import SegmentRange, StreamCut
from tests.harness.fault_plans import Rule
from tests.harness.group_world import NAME, World, drain
from tests.harness.releases import run_release
from tests.harness.small_streams import scale
from tests.harness.tiers import sized

OTHER = "s/u"


def told(reader: EventStreamReader, found: list[str] | None = None) -> list[str]:
    """Return what a reader says until it has nothing to read: losses, deletions and events."""
    found = [] if found is None else found
    for _ in range(100):
        try:
            read = reader.read_next_event(0)
        except TruncatedData as error:
            found += [f"{r.stream} [{r.start}, {r.end})" for r in error.lost]
        except NoSuchStream as error:
            found.append(f"{error.stream} is deleted")
        else:
            if read.event is not None:
                found.append(read.event.data.decode())
            elif read.checkpoint is None:
                found += ["end"] * read.is_completed
                return found
    raise AssertionError(found)


def delete_and_create(world: World, name: str) -> None:
    stream = world.streams[name]
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    lifecycle.create(
        stream, stream.known_view().life + 1, StreamConfiguration(ScalingPolicy.fixed(1))
    )


@pytest.mark.parametrize("names", [(NAME,), (NAME, OTHER)])
def test_a_deletion_is_told_where_the_step_meets_it_at_a_segments_end(
    names: tuple[str, ...],
) -> None:
    world = World(names=names)
    world.write(2, NAME)
    reader = world.created().create_reader("a")
    drain(reader)
    scale(world.streams[NAME], [0], [(0.0, 0.5), (0.5, 1.0)])
    world.write(4, NAME)
    world.streams[NAME].view()
    reader._selector.poll()  # the next call meets the sealed segment before it knows of the end
    delete_and_create(world, NAME)
    world.runtime.sleep(4)
    found = told(reader)
    assert f"{NAME} is deleted" in found
    assert found.index(f"{NAME} is deleted") < len(found) - ("end" in found)
    assert told(reader) == (["end"] if len(names) == 1 else [])


def lossy() -> World:
    """A group over two streams, one of which is truncated and the other deleted."""
    world = World(names=(NAME, OTHER))
    world.write(6, NAME)
    world.write(3, OTHER)
    return world


def lose(world: World) -> None:
    truncate(world.streams[NAME], StreamCut(NAME, 1, {0: 4}))
    lifecycle.seal(world.streams[OTHER])
    lifecycle.delete(world.streams[OTHER])


def test_a_deletion_does_not_hide_what_another_stream_lost() -> None:
    world = lossy()
    world.created().create_reader("a").close()
    lose(world)
    found = told(world.group().create_reader("b"))
    assert sorted(found) == ["4", "5", f"{NAME} [0, 4)", f"{OTHER} is deleted"]


def test_each_stream_that_lost_events_is_told_with_its_head() -> None:
    world = lossy()
    reader = world.created().create_reader("a")
    heads = [StreamCut(name, 1, {0: 2}) for name in (NAME, OTHER)]
    for cut in heads:
        truncate(world.streams[cut.stream], cut)
    world.runtime.sleep(4)
    for cut in heads:
        with pytest.raises(TruncatedData, match=f"in {cut.stream} by") as found:
            reader.read_next_event(0)
        assert found.value.head == cut
        assert {rng.stream for rng in found.value.lost} == {cut.stream}
    assert told(reader) == ["2", "3", "4", "5", "8"]


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("acknowledge", ["next", "checkpoint"])
def test_each_find_is_told_once_whichever_call_of_the_step_fails(acknowledge: str) -> None:
    for nth in range(1, 60, sized(3, 1)):
        world = lossy()
        group = world.created(acknowledge=acknowledge)
        reader = group.create_reader("a")
        lose(world)
        world.runtime.sleep(4)
        world.store.rules.add(Rule(StoreError("down"), nth=nth))
        found, failed = list[str](), 0
        for _ in range(4):
            try:
                told(reader, found)
            except (StoreError, CommitUnknown):
                failed += 1
            world.store.rules.clear()
            world.runtime.sleep(4)
        passed = [f"{NAME} [0, 4)"]
        if "0" in found:  # it went on from the version that it knew, whose chunks were there
            passed = ["0", "1", "2", "3"]
        assert sorted(found) == sorted([*passed, "4", "5", f"{OTHER} is deleted"]), nth
        reader.close()
        assert not world.group().state().finds
    assert failed == 0, "the last call was not reached"


def test_what_a_dead_reader_had_to_tell_is_told_by_another() -> None:
    world = lossy()
    group = world.created()
    dead = group.create_reader("dead", lease="30 s")
    lose(world)
    world.runtime.sleep(4)
    dead._finds.tell = lambda: None  # type: ignore[method-assign]
    dead._selector.behind_head |= {NAME, OTHER}
    dead.read_next_event(0)
    assert len(group.state().finds) == 2
    other = world.group().create_reader("b")
    assert told(other) == [], "the dead one may still tell"
    found = list[str]()
    for _ in range(8):
        world.runtime.sleep(5)
        found += told(other)
    assert (f"{OTHER} is deleted" in found, f"{NAME} [0, 4)" in found) == (True, True)
    with pytest.raises(ReinitializationRequired):
        dead.read_next_event(0)
    other.close()
    assert not group.state().finds


def test_a_reader_that_takes_a_loss_over_names_the_head_though_it_knew_no_such_version() -> None:
    world = lossy()
    group = world.created()
    dead = group.create_reader("dead")
    other = world.group()
    other.stream(NAME).view()  # before the truncation
    truncate(world.streams[NAME], StreamCut(NAME, 1, {0: 4}))
    world.runtime.sleep(4)
    dead._finds.tell = lambda: None  # type: ignore[method-assign]
    dead._selector.behind_head |= {NAME}
    dead.read_next_event(0)
    group.reader_offline("dead")
    with pytest.raises(TruncatedData) as info:
        other.create_reader("b").read_next_event(0)
    assert info.value.head == StreamCut(NAME, 1, {0: 4})
    assert "by user at version" in str(info.value)


def test_a_closed_reader_leaves_what_it_has_not_told_and_clears_what_it_has() -> None:
    world = lossy()
    group = world.created()
    reader = group.create_reader("a")
    lose(world)
    world.runtime.sleep(4)
    reader._selector.behind_head |= {NAME, OTHER}
    with pytest.raises(NoSuchStream):
        reader.read_next_event(0)
    reader.close()
    (left,) = group.state().finds.values()
    assert left.lost is not None
    assert told(world.group().create_reader("b"))[0] == f"{NAME} [0, 4)"


def test_finds_are_rows_that_are_read_again() -> None:
    world = lossy()
    group = world.created()
    group.create_reader("a")
    state = add_deleted(group.state(), OTHER, "a")
    lose(world)
    rows = GroupCodec().encode(state)
    assert GroupCodec().decode(rows) == state
    assert rows["find/2"]["value"] == '{"joining":1}'


OLD = """
import sys
from pravega_spark.manager import StreamManager
group = StreamManager(sys.argv[1]).reader_group("s/g")
print(sorted(group.distribution().items(), key=str))
with group.create_reader("old") as reader:
    while (read := reader.read_next_event(0)).event is not None:
        print(read.event.data)
"""


def test_the_previous_release_reads_on_and_drops_what_it_does_not_know(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    for name in (NAME, OTHER):
        manager.create_stream(name)
    with manager.create_writer(NAME) as writer:
        writer.write_event(b"event", "k")
    group = manager.create_reader_group("s/g", [NAME, OTHER])
    reader = group.create_reader("a")
    group._lifecycle.state()
    group._lifecycle.sync.apply("READ", lambda state: add_deleted(state, OTHER, "a"))
    reader.close()
    assert group._lifecycle.state().finds
    output = run_release("0.1.0", OLD, tmp_path)
    assert output == "[(None, 2)]\nb'event'\n"
    assert not manager.reader_group("s/g")._lifecycle.state().finds


def test_a_loss_is_told_once_where_its_segment_is_handed_over_in_the_same_step() -> None:
    world = World(2)
    group = world.created()
    a = group.create_reader("a")
    a.read_next_event(0)  # holds both segments
    world.write(6)
    b = group.create_reader("b")
    truncate(world.stream, world.stream.view().tail)
    found: list[str] = []
    for _ in range(4):
        for reader in (a, b):
            told(reader, found)
        world.runtime.sleep(4)
    losses = [text for text in found if text.startswith(NAME)]
    assert len(losses) == len(set(losses))
    tail = world.stream.view().tail
    assert sorted(losses) == sorted(f"{NAME} [0, {tail.positions[n]})" for n in (0, 1))


def test_a_reader_that_leaves_takes_what_it_handed_out_from_the_losses_that_others_found() -> None:
    group = World(2).created()
    reader = group.create_reader("a")
    reader.read_next_event(0)
    key = SegmentKey(NAME, 0)
    state = group.state()
    find = Find("a", state.readers["a"].number, NAME, SegmentRange(NAME, 1, 0, 2, 12))
    state = replace(state, finds={7: find})

    def lost(handed_out: int, known: dict[int, Find]) -> list[int]:
        found = clip(state, "a", {key: handed_out}, known).finds.values()
        return [one.lost.start for one in found if one.lost is not None]

    assert lost(10, {}) == [10]
    assert lost(12, {}) == []
    assert lost(12, {7: find}) == [2], "a reader that knows of it stands at the head"
    assert forget_handed_over(state, "a", {key: 10}).finds == {}, "the next reader finds [10, 12)"
    assert forget_handed_over(state, "a", {key: 12}).finds == {7: find}
    assert forget_handed_over(state, "b", {key: 10}).finds == {7: find}
