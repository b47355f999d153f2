"""Readers of one process share a copy of their group's state; each has a lease of its own.

That a copy is shared shows in no answer: it is the same object, or its refreshes are hurried.
"""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from pravega_spark import StreamManager
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.errors import ReinitializationRequired, RootChanged
from pravega_spark.manager import manager_over, root_of
from pravega_spark.reader_groups import transitions
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.reader_groups.table import GroupCodec, _open_states
from tests.harness.folder_state import move
from tests.harness.group_world import World, membership_of

FEW, MANY = 4, 40
FOLDER = "s/_reader_groups/g"


def group_of(manager: StreamManager, segments: int) -> ReaderGroup:
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration(ScalingPolicy.fixed(segments)))
    return manager.create_reader_group("s/g", ["s/t"], checkpoint_interval=None)


def refresh(readers: list[EventStreamReader]) -> list[str | None]:
    """Let each reader look at its group now, and return the markers that they show."""
    found = []
    for reader in readers:
        membership_of(reader).refreshes.hurry()
        found.append(reader.read_next_event(0).checkpoint)
    return found


class Counted:
    """A process with some readers of one group, which join, share the segments and answer."""

    def __init__(self, count: int) -> None:
        world = World(count)
        self.group, self.world = world.created(), world
        self.store = world.store
        self.store.calls.clear()
        self.readers = [self.group.create_reader(f"r{n}") for n in range(count)]
        while set(self.group.distribution().values()) != {0, 1}:
            refresh(self.readers)
        future = self.group.initiate_checkpoint("c")
        while "c" not in refresh(self.readers):
            world.runtime.sleep(1)
        while not future.done():
            refresh(self.readers)
            world.runtime.sleep(1)

    @property
    def version(self) -> int:
        snapshot = self.group.log.snapshot
        assert snapshot is not None
        return snapshot.version

    def figures(self) -> dict[str, int]:
        found = {what: self.store.count(what) for what in ("get", "put", "list")}
        attempts = self.store.count("put_if_absent", FOLDER)
        return {**found, "attempts": attempts, "versions": self.version}


@pytest.mark.medium
def test_calls_of_ten_times_as_many_readers_are_ten_times_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[object] = []
    decode = GroupCodec.decode

    def counted(codec: GroupCodec, rows: Any) -> Any:
        decoded.append(codec)
        return decode(codec, rows)

    monkeypatch.setattr(GroupCodec, "decode", counted)
    few, many = Counted(FEW).figures(), Counted(MANY).figures()
    grown = {what: many[what] / count for what, count in few.items()}
    assert max(grown.values()) <= 11, (grown, few, many)
    assert len(decoded) == 2, "each process decodes the first state, and no change of its own"


def test_readers_of_all_handles_in_a_process_share_one_copy(tmp_path: Path) -> None:
    group = group_of(StreamManager(tmp_path), 2)
    other = StreamManager(tmp_path).reader_group("s/g")
    first, second = group.create_reader("a"), other.create_reader("b")
    assert membership_of(first).sync is membership_of(second).sync is other._lifecycle.sync
    assert membership_of(first)._leases is membership_of(second)._leases
    for reader in (first, second):
        reader.close()


@pytest.mark.medium
def test_copy_of_a_group_that_nobody_uses_is_not_kept(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    group = group_of(manager, 1)
    key = root_of(manager).store, FOLDER
    assert _open_states._used.get(key) is group._lifecycle.sync
    del group
    gc.collect()
    assert key not in _open_states._used


def test_group_whose_folder_was_replaced_is_opened_anew(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    reader = group_of(manager, 1).create_reader("a")
    reader.read_next_event(0)
    hint = tmp_path / "root" / FOLDER / "_pravega/latest.json"
    while not hint.exists():  # written in the background, which would begin the folder again
        time.sleep(0.01)
    move(tmp_path / "root" / FOLDER, tmp_path / "away")
    elsewhere = manager_over(LocalStore(str(tmp_path / "root")))  # as another process has it
    elsewhere.create_reader_group("s/g", ["s/t"], checkpoint_interval=None)
    for number in range(3):
        elsewhere.reader_group("s/g").update(refresh=f"{number + 1} s")
    again = manager.reader_group("s/g")
    assert again.generation == 3
    with again.create_reader("b") as other:
        assert membership_of(other).sync is not membership_of(reader).sync
        with pytest.raises(RootChanged):
            reader.keep_alive()


@pytest.mark.parametrize("is_told", [False, True])
def test_reader_that_hangs_expires_although_its_siblings_live(is_told: bool) -> None:
    world = World(4)
    world.write(100)
    group = world.created()
    hangs, lives = (group.create_reader(name, lease="20 s") for name in ("hangs", "lives"))
    while len(lives.position.offsets) != 2:
        refresh([hangs, lives])
        world.runtime.sleep(1)
    for second in range(60):
        world.runtime.sleep(1)
        lives.read_next_event(0)
        if is_told and second % 5 == 0:
            group.state()
    assert group.online_readers() == ["lives"]
    assert len(lives.position.offsets) == 4
    with pytest.raises(ReinitializationRequired):
        hangs.read_next_event(0)


def test_news_that_a_sibling_has_read_proves_no_lease() -> None:
    world = World(2)
    group, other = world.created(), world.group()
    first, second = (group.create_reader(name, lease="20 s") for name in ("a", "b"))
    refresh([first, second])
    before = membership_of(first).lease.ends_at
    world.runtime.sleep(6)
    membership_of(first).lease.extend()  # a heartbeat whose proof has failed
    other.sync.apply("X", lambda state: transitions.remove_reader(state, "b"))
    membership_of(first).refreshes.schedule(world.runtime.monotonic(), 3.0)
    world.store.calls.clear()
    group.sync.fetch()
    assert world.store.count("get") > 0
    world.store.calls.clear()
    refresh([first])
    assert world.store.count("put", "_leases") == 0
    assert membership_of(first).lease.ends_at == before


def test_readers_that_close_beside_waiting_updates_of_their_own_all_leave(tmp_path: Path) -> None:
    """Each reader closes in one thread while its refresh commits in another."""
    group = group_of(StreamManager(tmp_path), 8)
    readers = [group.create_reader(f"r{n}") for n in range(8)]
    errors: list[BaseException] = []

    def run(call: Any, *arguments: Any) -> None:
        try:
            call(*arguments)
        except ReinitializationRequired:
            pass
        except BaseException as error:
            errors.append(error)

    membership = [membership_of(reader) for reader in readers]
    calls = [threading.Thread(target=run, args=(r._close, {})) for r in readers]
    calls += [
        threading.Thread(target=run, args=(m._step, 0.0, r._selector, None, 0.0))
        for m, r in zip(membership, readers, strict=True)
    ]
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join(60)
    assert not [thread for thread in calls if thread.is_alive()]
    assert errors == []
    assert group.online_readers() == []
    assert group.distribution() == {None: 8}
