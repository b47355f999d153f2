"""Copies of a root that all live on: each refuses what another made, or it means the same there.

Random sequences of appends, puts, folds, re-creations, copies, backups and restores. A pointer, a
cut or a version of an entry that a root accepts must lead to what it was made for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import PravegaSparkError
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_source import folded_table
from pravega_spark.key_value.table_configuration import KeyValueTableConfiguration
from pravega_spark.key_value.table_entry import KeyVersion
from pravega_spark.manager import StreamManager
from pravega_spark.model import EventPointer, StreamCut
from tests.harness.backup_world import copy_objects, manager_of, stream_of
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.tiers import sized

S, K, LOG, WRITER = "s/t", "s/k", "s/_kv_tables/k", "w"
STRINGS = KeyValueTableConfiguration("string")


@dataclass
class Root:
    """A root, and what it must hold."""

    store: Store
    seed: int
    events: list[bytes] = field(default_factory=list)
    entries: dict[str, bytes] = field(default_factory=dict)

    @property
    def manager(self) -> StreamManager:
        return manager_of(self.store, FakeRuntime(self.seed))

    def check(self) -> None:
        assert [event.data for event in self.manager.read(S)] == self.events
        table = self.manager.key_value_table(K)
        assert {entry.key: entry.value for entry in table.entries()} == self.entries


class Copies:
    """Some roots that began as one, and the objects that each of them made."""

    def __init__(self, seed: int) -> None:
        self.chance, self.steps, self.values = random.Random(seed), list[str](), 0
        first = Root(MemoryStore(), 1)
        first.manager.create_scope("s")
        first.manager.create_stream(S)
        first.manager.create_key_value_table(K, STRINGS)
        self.roots = [first]
        self.pointers: list[tuple[EventPointer, bytes]] = []
        self.cuts: list[tuple[StreamCut, bytes]] = []
        self.versions: list[tuple[str, KeyVersion, bytes]] = []

    def value(self) -> bytes:
        self.values += 1
        return b"%d" % self.values

    def step(self) -> None:
        root = self.chance.choice(self.roots)
        verbs = [self.append, self.append, self.put, self.put, self.fold, self.create_again]
        verbs += [self.copy, self.back_up, self.restore]
        verb = self.chance.choice(verbs)
        self.steps.append(f"{verb.__name__} in {self.roots.index(root)}")
        verb(root)
        root.check()

    def append(self, root: Root) -> None:
        data, cut = self.value(), root.manager.tail(S)
        with root.manager.create_writer(S, WRITER) as writer:
            assert writer.last_event_number <= len(root.events)
            pointer = writer.write_event(data).result()
        root.events.append(data)
        self.pointers.append((pointer, data))
        self.cuts.append((cut, data))

    def put(self, root: Root) -> None:
        key, value = self.chance.choice("abc"), self.value()
        with root.manager.key_value_table(K) as table:
            version = table.put(key, value).result()
        root.entries[key] = value
        self.versions.append((key, version, value))

    def fold(self, root: Root) -> None:
        log = stream_of(root.store, LOG, FakeRuntime(root.seed))
        fold(log, folded_table(log, STRINGS), ttl_ms=None)

    def create_again(self, root: Root) -> None:
        manager = root.manager
        if self.chance.random() < 0.5:
            manager.seal_stream(S)
            manager.delete_stream(S)
            assert manager.create_stream(S)
            root.events = []
        else:
            manager.delete_key_value_table(K)
            assert manager.create_key_value_table(K, STRINGS)
            root.entries = {}

    def copy(self, root: Root) -> None:
        self.add(root, copy_objects(root.store))

    def back_up(self, root: Root) -> None:
        target = MemoryStore()
        root.manager.backup(target.url)
        self.add(root, target)

    def add(self, root: Root, store: Store) -> None:
        if len(self.roots) == 4:
            return
        made = Root(store, 2 + self.values * 7 + len(self.roots), list(root.events))
        made.entries = dict(root.entries)
        assert made.manager.restore().failed == {}
        made.check()
        self.roots.append(made)

    def restore(self, root: Root) -> None:
        assert root.manager.restore().failed == {}

    def show_all(self) -> None:
        """Show every object to every root."""
        for root in self.roots:
            manager = root.manager
            for pointer, data in self.pointers:
                try:
                    found = manager.fetch_event(pointer).data
                except PravegaSparkError:
                    continue
                assert found == data, (pointer, found, data)
            for cut, data in self.cuts:
                try:
                    events = [event.data for event in manager.read(S, cut)]
                except PravegaSparkError:
                    continue
                assert events[0] == data, (cut, events, data)
            with manager.key_value_table(K) as table:
                for key, version, value in self.versions:
                    present = table.get(key)
                    try:
                        table.replace(key, value, version)
                    except PravegaSparkError:
                        continue
                    assert present is not None
                    assert present.value == value, (key, version, present.value, value)


def test_no_copy_takes_what_another_made() -> None:
    for seed in range(sized(60, 5_000)):
        copies = Copies(seed)
        try:
            for _ in range(random.Random(seed).randrange(4, 16)):
                copies.step()
            copies.show_all()
        except BaseException:
            print(f"seed {seed}: {'; '.join(copies.steps)}")
            raise
