"""Creation, repair, reset and deletion of reader groups, also of groups that hold data."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pravega_spark.engine.kinds import GROUP
from pravega_spark.engine.state.scopes import Scope
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.subscribers import listed
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    ConfigMismatch,
    IllegalState,
    InvalidName,
    InvalidStreamCut,
    NoSuchReaderGroup,
    NoSuchStream,
    ReinitializationRequired,
    TruncatedData,
)
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.state import Phase
from pravega_spark.values.segments import StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.group_world import NAME, World, drain
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import reopen, scale, write
from tests.harness.spy_store import Spy

PLAIN = ReaderGroupConfiguration([NAME])


def subscriptions(world: World, name: str = NAME) -> dict[str, tuple[int, str]]:
    """The subscribers of a stream, each with its generation and cut."""
    found = listed(world.streams[name].view())
    return {info.name: (info.generation, str(info.cut)) for info in found}


def test_creation_is_idempotent_for_an_equal_configuration_only() -> None:
    world = World()
    assert world.group().create(PLAIN)
    assert not world.group().create(ReaderGroupConfiguration({NAME: None}))
    with pytest.raises(ConfigMismatch, match="generation 0"):
        world.group().create(ReaderGroupConfiguration([NAME], refresh="9 s"))
    assert world.group().configuration == PLAIN


def test_concurrent_creators_create_one_group() -> None:
    world = World()
    first, second = world.group(), world.group()
    raced: list[bool] = []

    def race(operation: str, key: str) -> None:
        if operation == "put_if_absent" and "_reader_groups" in key and not raced:
            raced.append(True)
            raced[:] = [second.create(PLAIN)]

    world.store.hook = race
    assert first.create(PLAIN), "it claimed the group first"
    assert raced == [False]
    assert world.group().generation == 0


def test_creation_whose_response_was_lost_is_one_creation() -> None:
    world = World()
    world.store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", "*_reader_groups*", nth=1))
    assert world.group().create(PLAIN)
    assert world.group().generation == 0


def test_groups_need_existing_streams_and_valid_names() -> None:
    world = World()
    with pytest.raises(NoSuchStream):
        world.group().create(ReaderGroupConfiguration(["s/none"]))
    assert not world.group().exists()
    with pytest.raises(InvalidName, match="scope/group"):
        world.group("g")
    with pytest.raises(InvalidName, match="reader group"):
        world.group("s/_g")
    with pytest.raises(NoSuchReaderGroup, match="s/other does not exist"):
        world.group("s/other").create_reader("a")


def test_generation_continues_when_the_name_of_a_deleted_group_is_used_again() -> None:
    world = World()
    events = world.write(4)
    group = world.created()
    reader = group.create_reader("a")
    drain(reader)
    assert group.delete()
    assert not group.delete()
    assert not world.group("s/never").delete()
    with pytest.raises(NoSuchReaderGroup):
        group.lag()
    world.runtime.sleep(5)
    with pytest.raises(ReinitializationRequired, match="was deleted"):
        reader.read_next_event(0)
    assert group.create(PLAIN)
    assert group.generation == 2
    assert drain(group.create_reader("a")) == events


def test_groups_of_a_scope_are_listed() -> None:
    world = World()
    for name in ("s/g", "s/a", "s/gone"):
        world.group(name).create(PLAIN)
    world.group("s/gone").create_reader("r")
    assert world.group("s/gone").delete()
    assert world.store.list("s/_reader_groups/gone/_leases") == []
    assert sorted(Scope(world.store, "s").rows(GROUP)) == ["a", "g"]


HOLDING = ReaderGroupConfiguration([NAME], retention="automatic", checkpoint_interval="5 s")


@pytest.mark.parametrize("point", ["group.change.noted", "group.change.subscribed"])
def test_group_that_holds_data_is_active_only_after_it_has_subscribed(point: str) -> None:
    world = World()
    world.write(4)
    with at_failpoint(point, kill), pytest.raises(Killed):
        world.group().create(HOLDING)
    known = world.group().sync.fetch()
    assert known is not None
    assert known.state.phase is Phase.CHANGING
    assert not world.group().create(HOLDING), "finished by the next caller"
    assert subscriptions(world) == {"s/g": (0, f"{NAME}@1:0#0=0")}
    with at_failpoint(point, kill), pytest.raises(Killed):
        world.group().reset({NAME: StreamCut(NAME, 1, {0: 2})})
    reader = world.group().create_reader("a")
    assert len(drain(reader)) == 2
    assert subscriptions(world) == {"s/g": (1, f"{NAME}@1:0#0=2")}
    with at_failpoint(point, kill), pytest.raises(Killed):
        world.group().delete()
    with pytest.raises(NoSuchReaderGroup):
        world.group().state()
    assert subscriptions(world) == {}
    assert world.group().create(HOLDING)
    assert subscriptions(world) == {"s/g": (3, f"{NAME}@1:0#0=0")}


def test_group_that_changes_its_streams_unsubscribes_from_former_ones() -> None:
    world = World(names=(NAME, "s/u"))
    group = world.group()
    group.create(ReaderGroupConfiguration([NAME, "s/u"], retention="automatic"))
    assert set(subscriptions(world)) == set(subscriptions(world, "s/u")) == {"s/g"}
    with at_failpoint("group.change.noted", kill), pytest.raises(Killed):
        group.reset(HOLDING)
    group.reset(PLAIN)
    assert subscriptions(world) == subscriptions(world, "s/u") == {}
    assert group.state().former_streams == {}
    assert group.state().phase is Phase.ACTIVE


class Mover:
    """Another process that moves the head just before chosen calls of a stream's store."""

    def __init__(self, world: World, at: Callable[[int], bool], moves: int = 0) -> None:
        self.world, self.at, self.calls, self.moves = world, at, 0, moves
        self.stream = reopen(world.stream)
        self.store = Spy(world.store.inner)
        self.store.hook = self._called

    def _called(self, operation: str, key: str) -> None:
        self.calls += key.startswith(f"{NAME}/")
        if key.startswith(f"{NAME}/") and self.at(self.calls):
            self.move()

    def move(self) -> None:
        """Truncate everything; every other move scales, too, so that records are deleted."""
        self.moves += 1
        write(self.stream, [("k", b"later")])
        if self.moves % 2 == 0:
            scale(self.stream, self.stream.view().active.segment_ids, [(0.0, 1.0)])
        truncate(self.stream, StreamCut.LATEST, past_subscribers=True)


def run_lifecycle(world: World, store: Spy) -> None:
    """Create, reset and delete a group that holds data."""
    group = world.group(store=store)
    assert group.create(HOLDING)
    group.reset()
    state = group.state()
    assert state.phase is Phase.ACTIVE
    assert subscriptions(world)["s/g"][0] == state.generation == group.generation
    assert not world.group(store=store).create(HOLDING)
    assert group.delete()
    assert subscriptions(world) == {}


@pytest.mark.medium
@pytest.mark.parametrize("drops_records", [False, True])
def test_head_that_moves_breaks_no_step_of_a_group_that_holds_data(drops_records: bool) -> None:
    quiet = Mover(filled(), lambda call: False)
    run_lifecycle(quiet.world, quiet.store)
    assert quiet.calls > 10
    for step in range(1, quiet.calls + 1):
        mover = Mover(filled(), step.__eq__, moves=int(drops_records))
        run_lifecycle(mover.world, mover.store)
        assert mover.moves == 1 + drops_records


def filled() -> World:
    world = World()
    world.write(4)
    return world


def test_group_that_the_head_passed_begins_at_it_and_its_reader_learns_so_once() -> None:
    world = filled()
    group = world.group()
    with at_failpoint("group.change.noted", Mover(world, lambda call: False, moves=1).move):
        assert group.create(HOLDING)
    assert subscriptions(world) == {"s/g": (0, f"{NAME}@1:1#1=0")}
    write(world.stream, [("k", b"new")])
    reader = group.create_reader("a")
    with pytest.raises(TruncatedData, match="were truncated before they were read"):
        reader.read_next_event(0)
    assert drain(reader) == [b"new"]


@pytest.mark.parametrize("retention", ["manual", "none"])
def test_group_that_holds_data_refuses_a_truncated_cut_before_it_changes(
    retention: str,
) -> None:
    world = filled()
    truncate(world.stream, StreamCut(NAME, 1, {0: 3}))
    behind = ReaderGroupConfiguration({NAME: f"{NAME}@1:0#0=2"}, retention=retention)
    group = world.group()
    if retention == "none":
        assert group.create(behind), "its readers raise TruncatedData once and continue at the head"
        return
    with pytest.raises(TruncatedData, match=r"=2 lies below the head .* use s/t@1:0#0=3"):
        group.create(behind)
    assert Scope(world.store, "s", world.runtime).rows(GROUP) == {}
    assert not group.exists()
    group.create(ReaderGroupConfiguration([NAME], retention=retention))
    for to in (behind, {NAME: f"{NAME}@1:0#0=2"}):
        with pytest.raises(TruncatedData, match="lies below the head"):
            group.reset(to)
    assert (group.generation, group.state().phase) == (0, Phase.ACTIVE)
    assert group.reset({NAME: f"{NAME}@1:0#0=3"}) == 1


def test_stream_that_begins_another_life_breaks_no_step_of_a_creation() -> None:
    def recreate() -> None:
        configuration = world.stream.view().record.configuration
        lifecycle.seal(world.stream)
        lifecycle.delete(world.stream)
        lifecycle.create(world.stream, 2, configuration)

    quiet = Mover(filled(), lambda call: False)
    quiet.world.group(store=quiet.store).create(HOLDING)
    for step in range(1, quiet.calls + 1):
        world = filled()
        mover = Mover(world, step.__eq__)
        mover.move = recreate  # type: ignore[method-assign]
        assert world.group(store=mover.store).create(HOLDING)
        assert world.group().state().phase is Phase.ACTIVE
        assert world.stream.view().life == 2


@pytest.mark.medium
def test_groups_change_while_the_head_moves_as_fast_as_it_can() -> None:
    world = filled()
    mover, done = Mover(world, lambda call: False), threading.Event()

    def race() -> None:
        while not done.is_set():
            mover.move()

    racer = threading.Thread(target=race)
    racer.start()
    try:
        for _ in range(5):
            run_lifecycle(world, Spy(world.store.inner))
    finally:
        done.set()
        racer.join()
    assert mover.moves > 0


def test_automatic_retention_publishes_checkpoints() -> None:
    world = World()
    world.write(10)
    world.group().create(HOLDING)
    reader = world.group().create_reader("a")
    drain(reader)
    for _ in range(6):
        world.runtime.sleep(4)
        reader.read_next_event(0)
    assert subscriptions(world) == {"s/g": (0, f"{NAME}@1:0#0=10")}


def test_manual_retention_publishes_the_cuts_of_the_user() -> None:
    world = World()
    world.write(10)
    group = world.group()
    group.create(ReaderGroupConfiguration([NAME], retention="manual"))
    group.publish({NAME: StreamCut(NAME, 1, {0: 6})})
    assert subscriptions(world) == {"s/g": (0, f"{NAME}@1:0#0=6")}
    with pytest.raises(InvalidStreamCut, match="cannot publish"):
        group.publish({NAME: f"{NAME}@1:0#0=5"})
    group.reset(PLAIN)
    with pytest.raises(IllegalState, match="only a group with 'manual'"):
        group.publish({NAME: f"{NAME}@1:0#0=7"})
