from __future__ import annotations

import pytest

from pravega_spark.engine.kinds import GROUP
from pravega_spark.engine.state.scopes import Scope
from pravega_spark.engine.stream.subscribers import listed, subscribe
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.repair import release_absent_groups
from tests.harness.group_world import NAME, World

HOLDING = ReaderGroupConfiguration([NAME], retention="manual")
DAY = 86_400


def subscribers(world: World) -> dict[str, int]:
    return {found.name: found.generation for found in listed(world.stream.view())}


def release(world: World) -> None:
    release_absent_groups(world.stream, world.streams.__getitem__)


def remove_group(world: World, *, log: bool = True, row: bool = True) -> None:
    """Remove a group by other means than its deletion."""
    if log:
        world.store.delete([entry.key for entry in world.store.list("s/_reader_groups/g")])
    if row:
        Scope(world.store, "s", world.runtime).drop_row("g", 99, GROUP)


def test_subscription_of_a_removed_group_is_released_after_a_day_of_silence() -> None:
    world = World()
    world.group().create(HOLDING)
    world.group().reset()
    remove_group(world)
    release(world)
    assert subscribers(world) == {"s/g": 1}, "the group may have published recently"
    world.runtime.sleep(DAY + 1)
    release(world)
    assert subscribers(world) == {}
    assert not world.group().exists()
    assert world.group().create(HOLDING)
    assert world.group().generation == 3, "after the generation of the release"
    assert subscribers(world) == {"s/g": 3}


@pytest.mark.parametrize(("log", "row"), [(False, False), (True, False), (False, True)])
def test_subscription_of_a_group_with_a_log_or_a_row_stays(log: bool, row: bool) -> None:
    world = World()
    world.group().create(HOLDING)
    remove_group(world, log=log, row=row)
    world.runtime.sleep(DAY + 1)
    release(world)
    assert subscribers(world) == {"s/g": 0}


def test_release_covers_streams_with_subscriptions_of_different_generations() -> None:
    world = World(names=(NAME, "s/u"))
    for name, generation in ((NAME, 2), ("s/u", 5)):
        subscribe(world.streams[name], "s/g", generation, protect=True)
    world.runtime.sleep(DAY + 1)
    for name in (NAME, "s/u"):
        release_absent_groups(world.streams[name], world.streams.__getitem__)
        assert listed(world.streams[name].view()) == []
    assert world.group().create(HOLDING)
    assert world.group().generation == 7


def test_group_that_publishes_is_not_looked_up() -> None:
    world = World()
    world.group().create(HOLDING)
    world.store.calls.clear()
    release(world)
    assert [key for _, key in world.store.calls if "_reader_groups" in key] == []
