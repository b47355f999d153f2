from __future__ import annotations

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.store import Store
from pravega_spark.manager import manager_over
from pravega_spark.reader_groups.lifecycle import ABANDONED_MS, FOLDER
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.simulated_kills import Killed, kill
from tests.harness.spy_store import Spy


class World:
    def __init__(self, groups: int = 0) -> None:
        self.runtime = FakeRuntime()
        self.store = Spy(memory(self.runtime))
        manager = self.manager()
        manager.create_scope("s")
        manager.create_stream("s/t")
        for n in range(groups):
            manager.create_reader_group(f"s/g{n}", ["s/t"])

    def manager(self, store: Store | None = None) -> StreamManager:
        """Return the manager of another process."""
        return manager_over(store or self.store, self.runtime)

    def announced(self) -> list[str]:
        return [entry.key for entry in self.store.list(FOLDER)]

    def subscribers(self) -> list[str]:
        return [info.name for info in self.manager().list_subscribers("s/t")]


@pytest.mark.medium
def test_retention_of_a_stream_costs_the_same_with_ten_times_as_many_groups() -> None:
    for groups in (4, 40):
        world = World(groups)
        wait_for_maintenance()
        world.store.calls.clear()
        world.manager().retention("s/t").run()
        asked = [(call, key) for call, key in world.store.calls if not key.startswith("s/t/")]
        assert asked.count(("list", FOLDER)) == 1
        assert [key for _, key in asked if key.startswith("s/")] == []


def test_only_a_group_that_holds_data_announces_its_changes_and_withdraws_that() -> None:
    world = World(1)
    group = world.manager().reader_group("s/g0")
    group.reset()
    world.manager().delete_reader_group("s/g0")
    assert world.store.count("put", FOLDER) == 0
    group = world.manager().create_reader_group("s/.h", ["s/t"], retention="manual")
    group.reset()
    world.manager().delete_reader_group("s/.h")
    assert world.store.count("put", FOLDER) == 3
    assert world.announced() == []


@pytest.mark.parametrize("point", ["group.change.noted", "group.change.subscribed"])
def test_retention_of_one_stream_finishes_half_made_changes(point: str) -> None:
    world = World(1)
    with at_failpoint(point, kill), pytest.raises(Killed):
        world.manager().create_reader_group("s/h", ["s/t"], retention="manual")
    world.manager().retention("s/t").run()
    assert world.subscribers() == ["s/h"]
    with at_failpoint(point, kill), pytest.raises(Killed):
        world.manager().delete_reader_group("s/h")
    world.manager().retention("s/t").run()
    assert world.subscribers() == []

    assert len(world.announced()) == 2, "recent: the change itself may not have begun"
    world.runtime.sleep(ABANDONED_MS / 1_000 + 2)
    world.manager().retention("s/t").run()
    assert world.announced() == []
