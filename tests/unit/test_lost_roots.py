"""A manager whose root was removed or replaced: none of its verbs does anything.

A process opens a root and calls every verb of StreamManager after another process has moved the
root away, or has replaced it by a root with the same names. Each call raises RootChanged, and the
folder stays the same, byte for byte.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.errors import InvalidInput, RootChanged
from pravega_spark.jobs.stream_tasks import find_root
from pravega_spark.manager import StreamManager, root_of
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.folder_state import wait_for_maintenance
from tests.harness.roots import manager_at
from tests.unit.test_lives import FIRST, READS, SECOND, WRITES, G, S, World

Call = Callable[[World], Any]


def files(folder: Path) -> dict[str, bytes | None]:
    found = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in found}


class Place:
    """One path that holds the first root, the second root, or none."""

    def __init__(self, folder: Path) -> None:
        self.root, self.folder = folder / "root", folder
        self.now = "none"
        self.first = self._made(FIRST)
        self.put("none")
        self.second = self._made(SECOND)
        wait_for_maintenance()
        self.now = "second"

    def _made(self, configuration: Any) -> World:
        world = World.__new__(World)
        world.runtime, world.other = FakeRuntime(), manager_at(self.root)
        self.now = "first"
        world.begin(configuration)
        wait_for_maintenance()
        world.transaction = world.other.list_transactions(S)[0].transaction_id
        world.tail, world.event = world.other.tail(S), next(world.other.read(S)).pointer
        return world

    def put(self, name: str) -> None:
        if self.now != "none":
            self.root.rename(self.folder / self.now)
        if name != "none":
            (self.folder / name).rename(self.root)
        self.now = name

    def opened(self) -> World:
        """Return the first root's world with a manager that has opened it."""
        self.put("first")
        self.first.manager = manager_at(self.root)
        assert self.first.manager.tail(S) == self.first.tail
        return self.first


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("roots"))


CALLS: dict[str, Call] = {
    **{f"{name}-{n}": v.call for name, verbs in WRITES.items() for n, v in enumerate(verbs)},
    **READS,
    "create_scope-other": lambda w: w.manager.create_scope("other"),
    "scope_exists-other": lambda w: w.manager.scope_exists("other"),
    "create_stream-other": lambda w: w.manager.create_stream("s/other"),
    "confirm_clock": lambda w: w.manager.confirm_clock(),
    "backup": lambda w: w.manager.backup("memory://lost-roots"),
    "restore": lambda w: w.manager.restore(),
    "restore_stream": lambda w: w.manager.restore_stream(S),
}


@pytest.mark.medium
@pytest.mark.parametrize("now", ["second", "none"])
@pytest.mark.parametrize("name", CALLS)
def test_no_verb_acts_after_its_root_was_replaced_or_removed(
    place: Place, name: str, now: str
) -> None:
    world = place.opened()
    place.put(now)
    before = files(place.root)
    with pytest.raises(RootChanged):
        CALLS[name](world)
    wait_for_maintenance()
    assert files(place.root) == before
    assert place.root.exists() == (now != "none")
    assert bool(before) == (now != "none")


def write(writer: Any) -> None:
    writer.write_event(b"x").result(30)


def flush(transaction: Any) -> None:
    transaction.write_event(b"x")
    transaction.flush()


OBJECTS: dict[str, Callable[[StreamManager], Callable[[], Any]]] = {
    "writer": lambda m: partial(write, m.create_writer(S)),
    "transactions": lambda m: m.create_transactional_writer(S).begin_transaction,
    "transaction": lambda m: partial(flush, m.create_transactional_writer(S).begin_transaction()),
    "group": lambda m: partial(m.reader_group(G).create_reader, "r"),
    "group's end": lambda m: m.reader_group(G)._lifecycle.delete,
    "retention": lambda m: m.retention(S).run,
    "reader": lambda m: partial(list, m.read(S)),
    "follower": lambda m: partial(next, m.follow(S, "latest")),
    "pickled manager": lambda m: lambda: pickle.loads(pickle.dumps(m)).seal_stream(S),
}


@pytest.mark.parametrize("now", ["second", "none"])
@pytest.mark.parametrize("name", OBJECTS)
def test_no_object_of_a_manager_acts_after_the_root_was_replaced_or_removed(
    place: Place, name: str, now: str
) -> None:
    call = OBJECTS[name](place.opened().manager)
    wait_for_maintenance()
    place.put(now)
    before = files(place.root)
    with pytest.raises(RootChanged):
        call()
    wait_for_maintenance()
    assert files(place.root) == before


def test_new_manager_opens_the_present_root_and_the_old_one_only_its_own(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.put("first")
    old = StreamManager(place.root)
    assert root_of(old).runtime is SYSTEM
    assert old.tail(S) == place.first.tail
    place.put("second")
    new = StreamManager(place.root)
    assert len(new.segments(S)) == 3
    assert pickle.loads(pickle.dumps(new)).tail(S) == new.tail(S)
    with pytest.raises(RootChanged):
        old.tail(S)
    place.put("first")
    assert len(old.segments(S)) == 2
    with pytest.raises(RootChanged):
        new.tail(S)
    place.put("none")
    assert StreamManager(place.root).list_scopes() == []
    assert not place.root.exists()
    with pytest.raises(InvalidInput, match="If it was a root, mount or restore it"):
        find_root(str(place.root))
    assert StreamManager(place.root).create_scope("new")


def test_error_is_true_for_a_manager_that_was_never_used(tmp_path: Path) -> None:
    used, unused = StreamManager(tmp_path / "root"), StreamManager(tmp_path / "root")
    used.create_scope("s")
    (tmp_path / "root").rename(tmp_path / "away")
    for manager in (used, unused):
        with pytest.raises(RootChanged, match=r"that this process opened there: .* was never used"):
            manager.create_scope("x")
    assert StreamManager(tmp_path / "root").create_scope("x")
