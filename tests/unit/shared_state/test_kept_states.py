"""A shared state beside retention: the newest state stays, and one that is gone is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.errors import IllegalState
from pravega_spark.manager import manager_over
from pravega_spark.shared_state.revisioned_stream import write_state
from pravega_spark.shared_state.state_synchronizer import StateSynchronizer
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.releases import run_release
from tests.harness.spy_store import Spy

S = "s/state"


def add(number: int, added: int) -> int:
    return number + added


def one(_: int, updates: list[int]) -> None:
    updates.append(1)


class World:
    def __init__(self, policy: RetentionPolicy | None = None, store: Any = None) -> None:
        self.runtime = FakeRuntime()
        runtime = self.runtime
        self.manager = manager_of(runtime) if store is None else manager_over(store, runtime)
        self.manager.create_scope("s")
        self.manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1), policy))

    def open(self) -> StateSynchronizer:
        return self.manager.state_synchronizer(S, add)

    def state(self) -> int:
        with self.open() as found:
            found.fetch_updates()
            state: int = found.get_state()
            return state

    def retain(self) -> Any:
        self.runtime.sleep(3_600)
        return self.manager.stream(S).retention().run(sweep=False, sample_every=0)

    def head(self) -> int:
        (offset,) = self.manager.stream(S).head().positions.values()
        return offset


POLICIES = [
    RetentionPolicy.by_time("1 minute"),
    RetentionPolicy.by_size(1),
    RetentionPolicy.by_consumption(maximum="1 minute"),
]


@pytest.mark.medium
@pytest.mark.parametrize("policy", POLICIES, ids=["time", "size", "consumption"])
def test_retention_stops_at_the_first_state_and_then_at_the_last_compaction(
    policy: RetentionPolicy,
) -> None:
    world = World(policy)
    shared = world.open()
    assert shared.initialize(0)
    for _ in range(5):
        shared.update_state(one)
        world.retain()
    assert world.head() == 0
    assert world.state() == 5
    shared.compact()
    for _ in range(3):
        shared.update_state(one)
        world.retain()
    result = world.manager.stream(S).retention().explain()
    assert "shared state" in [claim.holder for claim in result.claims]
    assert world.head() == 6, "the events before the compaction went"
    assert world.state() == 8
    assert not world.open().initialize(0)
    shared.compact()
    world.retain()
    assert world.head() == 10
    assert world.state() == 8


def test_a_compaction_that_was_killed_before_its_mark_counts(monkeypatch: Any) -> None:
    world = World(POLICIES[0])
    shared = world.open()
    shared.initialize(0)
    shared.update_state(one)
    monkeypatch.setattr(shared, "_move_mark", lambda _: None)
    shared.compact()
    shared.update_state(one)
    world.retain()
    world.retain()
    assert world.head() == 2
    assert world.state() == 2


def test_to_say_that_a_state_begins_costs_no_call() -> None:
    store = Spy()
    log = World(store=store).manager.revisioned_stream(S)
    latest = log.write_unconditionally(b"U")
    wait_for_maintenance()
    store.calls.clear()
    latest = write_state(log, latest, b"I0") or latest
    calls = [operation for operation, _ in store.calls]
    store.calls.clear()
    assert log.write_conditionally(latest, b"U")
    assert calls == [operation for operation, _ in store.calls]


def test_a_state_that_is_gone_is_an_error_and_comes_back_from_a_process_that_knows_it() -> None:
    world = World()
    shared = world.open()
    shared.initialize(0)
    shared.update_state(one)
    world.manager.truncate_stream(S, "latest")
    for call in (world.state, lambda: world.open().initialize(7)):
        with pytest.raises(IllegalState, match=r"is gone: nothing lies after .*compact"):
            call()
    shared.update_state(one)
    with pytest.raises(IllegalState, match="begins with an update"):
        world.state()
    shared.compact()
    assert world.state() == 2


def test_marks_of_other_revisioned_streams_hold_nothing() -> None:
    world = World(POLICIES[0])
    log = world.manager.revisioned_stream(S)
    mark = log.write_unconditionally(b"1")
    log.write_unconditionally(b"2")
    assert log.compare_and_set_mark(None, mark)
    world.retain()
    world.retain()
    assert world.head() == 2


OLD = """
import sys
import pravega_spark
manager = pravega_spark.StreamManager(sys.argv[1])
shared = manager.state_synchronizer("s/state", lambda number, added: number + added)
shared.initialize(0)
shared.update_state(lambda state, updates: updates.append(1))
if "compact" in sys.argv:
    shared.compact()
    shared.compact()
print(shared.get_state())
"""


@pytest.mark.medium
def test_the_release_before_shares_a_state_with_this_one(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    shared = manager.state_synchronizer(S, add)
    assert shared.initialize(0)
    assert run_release("0.1.0", OLD, tmp_path) == "1\n"
    shared.compact()
    assert run_release("0.1.0", OLD, tmp_path, "compact") == "2\n"
    shared.update_state(one)
    assert shared.get_state() == 3
    view = shared._log._view()
    assert view.kept_place is not None
    assert view.kept_place.positions[0] > 0, "the mark of the old compaction"
    manager.update_stream(
        S, StreamConfiguration(ScalingPolicy.fixed(1), RetentionPolicy.by_size(1))
    )
    manager.stream(S).retention().run(sweep=False, sample_every=0)
    assert run_release("0.1.0", OLD, tmp_path) == "4\n"
