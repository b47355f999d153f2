"""Backups and restores of key-value tables: a copy has each entry, also the folded ones, once."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import (
    BadKeyVersion,
    CorruptLog,
    NoSuchScope,
    NoSuchStream,
    NoSuchTable,
    PravegaSparkError,
    StaleIdentity,
    TableSealed,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.manager import StreamManager
from pravega_spark.retention.run import RetentionOptions, run_retention
from tests.harness import failpoints
from tests.harness.backup_world import copy_objects, manager_of
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill
from tests.harness.tiers import sized

NAME, LOG = "s/k", "s/_kv_tables/k"


@contextlib.contextmanager
def at_visit(point: str, nth: int, action: Callable[[], object]) -> Iterator[None]:
    """Run an action at the n-th visit of a failpoint."""
    visits = itertools.count(1)
    failpoints.register(point, lambda: next(visits) == nth and action())
    try:
        yield
    finally:
        failpoints.register(point, None)


class Shop:
    """A root with one table, of which a part is folded, and truncated from its change log."""

    def __init__(self, **options: Any) -> None:
        self.runtime = FakeRuntime()
        self.store = memory(self.runtime)
        self.manager = self.opened(self.store)
        self.manager.create_scope("s")
        options = {"partitions": 2, "tags": frozenset({"hot"}), **options}
        self.manager.create_key_value_table(NAME, KeyValueTableConfiguration("string", **options))
        self.expected = dict[str, bytes]()

    def opened(self, store: Store) -> StreamManager:
        """Open a root as another process does."""
        return manager_of(store, self.runtime)

    def table(self, store: Store | None = None) -> KeyValueTable:
        return self.opened(store or self.store).key_value_table(NAME)

    def put(self, *keys: str, value: bytes = b"1", store: Store | None = None) -> None:
        with self.table(store) as table:
            for key in keys:
                table.put(key, value + key.encode()).result()
                self.expected[key] = value + key.encode()

    def remove(self, key: str) -> None:
        self.table().remove(key).result()
        del self.expected[key]

    def fold(self, store: Store | None = None) -> None:
        """Fold the table, and truncate its change log."""
        log = StreamLog(store or self.store, LOG, self.runtime)
        table = folded_table(log, self.table(store).configuration)
        ttl_ms = self.table(store).configuration.ttl_ms
        assert fold(log, table, ttl_ms=ttl_ms).is_published
        run_retention(log, RetentionOptions(root={}))

    def backup(self) -> Store:
        copy = memory(self.runtime)
        self.done = self.manager.backup(copy.url)
        return copy

    def entries(self, store: Store | None = None) -> dict[str, bytes]:
        return {str(entry.key): entry.value for entry in self.table(store).entries()}


def folded_shop(**options: Any) -> Shop:
    """A shop with entries in the folded table alone, in both, and in the change log alone."""
    shop = Shop(**options)
    shop.put("a", "b", "c", "d")
    shop.remove("b")
    shop.fold()
    shop.put("c", "e", value=b"2")
    shop.remove("d")
    return shop


def test_a_copy_has_all_entries_with_their_versions_at_the_version_that_the_backup_names() -> None:
    shop = folded_shop()
    copy = shop.backup()
    before, wanted = shop.table().at(), dict(shop.expected)
    shop.put("a", "f", value=b"later")
    shop.fold()
    assert shop.done.versions == {}
    assert shop.done.key_value_tables.keys() == {NAME}
    assert shop.entries(copy) == wanted == {"a": b"1a", "c": b"2c", "e": b"2e"}
    table = shop.table(copy)
    assert list(table.entries()) == list(before.entries())  # with versions and times
    exact = table.at(shop.done.key_value_tables[NAME])
    assert list(exact.entries()) == list(before.entries())
    opened = shop.opened(copy)
    assert opened.list_key_value_tables("s", tag="hot") == [NAME]
    entry = table.get("a")
    assert entry is not None
    table.replace("a", b"new", entry.version)
    shop.expected = {**wanted, "a": b"new"}
    shop.fold(copy)
    assert shop.entries(copy) == shop.expected


def test_a_restored_copy_has_all_entries_in_versions_of_the_next_life() -> None:
    shop = folded_shop(ttl="1 hour")
    old = shop.table().get("a")
    copy = shop.backup()
    opened = shop.opened(copy)
    stale = shop.table(copy)
    done = opened.restore()
    assert (done.failed, done.missing, done.streams) == ({}, (), {})
    life = done.key_value_tables[NAME].life
    assert life is not None
    assert shop.entries(copy) == shop.expected
    table = shop.table(copy)
    entry = table.get("a")
    assert entry is not None
    assert old is not None
    assert (entry.version.segment_id, entry.version.offset) == old.version[1:]
    assert (old.version.life, entry.version.life) == (1, life)
    assert table.configuration == shop.table().configuration
    assert table.configuration.tags == {"hot"}
    with pytest.raises(BadKeyVersion):
        table.replace("a", b"new", old.version)
    with pytest.raises(StaleIdentity):
        stale.get("a", fresh=True)
    shop.put("y", store=copy)  # the newest commit of the folded table is that of the restore
    assert shop.opened(copy).restore().key_value_tables[NAME].life != life
    assert shop.entries(copy) == shop.expected
    shop.put("a", "z", value=b"3", store=copy)
    shop.fold(copy)
    assert shop.entries(copy) == shop.expected
    assert not shop.opened(copy).restore().failed
    assert shop.entries(copy) == shop.expected
    shop.runtime.sleep(3_601)
    assert shop.entries(copy) == {}


def test_a_table_that_was_never_folded_and_a_sealed_one_are_copied_and_restored() -> None:
    for is_folded in (False, True):
        shop = folded_shop() if is_folded else Shop()
        shop.put("x")
        shop.manager.seal_key_value_table(NAME)
        copy = shop.backup()
        for _ in range(2):
            assert shop.entries(copy) == shop.expected
            with pytest.raises(TableSealed):
                shop.table(copy).put("y", b"1").result()
            assert shop.opened(copy).restore().failed == {}


def test_a_deleted_table_is_not_in_the_copy_and_can_be_created_there() -> None:
    shop = folded_shop()
    shop.manager.create_stream("s/t")
    with at_failpoint("backup.folded", lambda: shop.manager.delete_key_value_table(NAME)) as hit:
        copy = shop.backup()
    assert hit.hits
    assert shop.done.key_value_tables == {}
    for _ in range(2):
        opened = shop.opened(copy)
        with pytest.raises(NoSuchTable):
            shop.table(copy)
        assert opened.restore().failed == {}
    assert opened.create_key_value_table(NAME, KeyValueTableConfiguration("string"))
    assert shop.entries(copy) == {}
    shop.expected = {}
    shop.put("n", store=copy)
    shop.fold(copy)
    assert shop.entries(copy) == shop.expected


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_folds_and_truncations_at_any_moment_of_a_backup_leave_the_copy_whole() -> None:
    for point in ("folded", "pinned", "file", "files", "log", "table"):
        for visit in range(1, sized(3, 4)):
            shop = folded_shop()
            before = dict(shop.expected)

            def grow(shop: Shop = shop) -> None:
                shop.put("n", "a", value=b"3")
                shop.fold()

            with at_visit(f"backup.{point}", visit, grow):
                copy = shop.backup()
            found = shop.entries(copy)
            assert found in (before, shop.expected), (point, visit)
            opened = shop.opened(copy)
            assert opened.restore().failed == {}
            assert shop.entries(copy) == found


@pytest.mark.medium
def test_a_killed_backup_of_a_table_is_finished_with_its_newer_state() -> None:
    for point in ("pinned", "folded", "file", "files", "log", "table", "marker"):
        shop = folded_shop()
        copy = memory(shop.runtime)
        with at_failpoint(f"backup.{point}", kill), pytest.raises(Killed):
            shop.manager.backup(copy.url)
        shop.put("k", "a", value=b"4")
        shop.fold()
        shop.manager.backup(copy.url)
        assert shop.entries(copy) == shop.expected, point


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_a_killed_restore_never_shows_a_part_of_a_table_and_is_finished() -> None:
    points = ("planned", "aside", "closed", "cleared", "replaced", "last", "opened", "folded")
    for point in points:
        for visit in range(1, sized(4, 7), 2):
            shop = folded_shop()
            copy = shop.backup()
            try:
                with at_visit(f"restore.{point}", visit, kill):
                    shop.opened(copy).restore()
            except Killed:
                try:
                    found = shop.entries(copy)
                except CorruptLog:
                    found = shop.expected
                assert found == shop.expected, (point, visit)
            assert shop.opened(copy).restore().failed == {}
            assert shop.entries(copy) == shop.expected, (point, visit)


def test_a_table_whose_change_log_lost_its_end_goes_back_with_its_folded_table() -> None:
    shop = folded_shop()
    wanted = dict(shop.expected)
    version = shop.table().at().version
    copy = copy_objects(shop.store, wanted=lambda key: f"{LOG}/events/data/" in key)
    shop.put("c", "g", value=b"9")
    copy = copy_objects(shop.store, copy, lambda key: f"{LOG}/events/data/" not in key)
    done = shop.opened(copy).restore()
    assert done.failed == {}
    assert done.key_value_tables[NAME].version == version
    assert done.key_value_tables[NAME].dropped_events == 2
    assert shop.entries(copy) == wanted
    shop.expected = wanted
    shop.put("c", "h", value=b"new", store=copy)
    shop.fold(copy)
    assert shop.entries(copy) == shop.expected


def test_a_folded_table_that_is_ahead_of_the_rest_goes_back_or_is_refused() -> None:
    shop = folded_shop()
    wanted = dict(shop.expected)
    copy = copy_objects(shop.store, wanted=lambda key: f"{LOG}/table/" not in key)
    shop.put("c", "g", value=b"9")
    shop.fold()
    copy = copy_objects(shop.store, copy, lambda key: f"{LOG}/table/" in key)
    done = shop.opened(copy).restore()
    assert done.failed == {}
    assert shop.entries(copy) == wanted
    for lost in ("data/", "_delta_log/", ""):
        damaged = copy_objects(shop.store, wanted=lambda key: f"{LOG}/table/{lost}" not in key)  # noqa: B023
        found = shop.opened(damaged).restore()
        assert list(found.failed) == [f"{LOG}/table"], lost
        with pytest.raises(CorruptLog):
            shop.entries(damaged)
        log = StreamLog(damaged, LOG, shop.runtime)
        with pytest.raises(CorruptLog):
            fold(log, folded_table(log, shop.table().configuration))


def test_the_scope_lists_the_tables_that_a_restore_finds() -> None:
    shop = folded_shop()
    shop.manager.update_key_value_table(NAME, add_tags=["new"], remove_tags=["hot"])
    copy = copy_objects(shop.store, wanted=lambda key: "/_scope/" not in key)
    assert shop.opened(copy).restore().failed == {}
    assert shop.opened(copy).list_key_value_tables("s", tag="new") == [NAME]
    assert shop.table(copy).configuration.tags == {"new"}
    assert shop.entries(copy) == shop.expected
    empty = copy_objects(shop.store, wanted=lambda key: LOG not in key)
    assert shop.opened(empty).restore().missing == (LOG,)
    assert shop.opened(empty).list_key_value_tables("s") == []


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("none", NoSuchScope, "scope none does not exist"),
        ("s/none", NoSuchStream, "stream s/none does not exist"),
        ("none/x", NoSuchStream, "stream none/x does not exist"),
        ("s/gone", NoSuchStream, "stream s/gone does not exist"),
        (NAME, NoSuchStream, "a table is backed up with its scope: back up 's'"),
    ],
)
def test_a_name_without_a_stream_is_refused_before_the_target_is_claimed(
    name: str, kind: type[PravegaSparkError], message: str
) -> None:
    shop = Shop()
    shop.manager.create_stream("s/gone")
    shop.manager.seal_stream("s/gone")
    shop.manager.delete_stream("s/gone")
    target = memory(shop.runtime)
    with pytest.raises(kind, match=message):
        shop.manager.backup(target.url, name)
    assert list(target.list("")) == []
    shop.manager.backup(target.url, "s")
    assert shop.opened(target).list_key_value_tables("s") == [NAME]


def test_a_version_from_before_a_restore_is_named_with_its_life() -> None:
    shop = Shop()
    shop.put("a")
    copy = shop.backup()
    version = shop.table(copy).at().version
    life = shop.opened(copy).restore().key_value_tables[NAME].life
    table = shop.table(copy)
    with pytest.raises(StaleIdentity, match=f"version {version} of table s/k is of its") as stale:
        table.at(version)
    assert (stale.value.name, stale.value.life, stale.value.current_life) == (NAME, 1, life)
    assert "life 1, which ended" in str(stale.value)
    assert "Give a version of that life" in str(stale.value)
    assert table.at(table.at().version).version > version
