"""The change log of a table as a stream: in the order of each key, without a gap or a repeat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from pravega_spark import KeyChange, StreamManager
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import (
    InvalidInput,
    InvalidStreamCut,
    NoSuchTable,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.retention.run import RetentionOptions, run_retention
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.values.segments import KeyRange
from tests.harness.fake_runtime import FakeRuntime, manager_of

NAME = "shop/stock"


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def manager(runtime: FakeRuntime) -> StreamManager:
    manager = manager_of(runtime)
    manager.create_scope("shop")
    return manager


def created(manager: StreamManager, **options: Any) -> KeyValueTable:
    options.setdefault("key_type", "string")
    manager.create_key_value_table(NAME, KeyValueTableConfiguration(**options))
    return manager.key_value_table(NAME)


def log_of(table: KeyValueTable, runtime: FakeRuntime) -> StreamLog:
    """Return the change log as another process has it open."""
    return StreamLog(table._stream.store, table.changelog.name, runtime)


def maintained(table: KeyValueTable, runtime: FakeRuntime) -> None:
    """Fold the table, and truncate its log as far as that is allowed."""
    log = log_of(table, runtime)
    fold(log, folded_table(log, table.configuration))
    run_retention(log, RetentionOptions(root={}))


def applied(changes: Iterable[KeyChange], onto: dict[Any, bytes]) -> dict[Any, bytes]:
    for change in changes:
        if change.value is None:
            onto.pop(change.key, None)
        else:
            onto[change.key] = change.value
    return onto


def entries(table: KeyValueTable) -> dict[Any, bytes]:
    return {entry.key: entry.value for entry in table.entries()}


def test_changes_come_in_order_with_the_versions_of_their_puts(manager: StreamManager) -> None:
    table = created(manager, key_type="long", secondary_key_length=2)
    first = table.put(7, b"1", b"aa").result()
    middle = table.changelog.tail()
    second = table.put(7, b"", b"aa").result()
    third = table.remove(7, b"aa").result()
    changes = list(table.changelog.changes())
    assert [(c.key, c.secondary_key, c.value, c.version) for c in changes] == [
        (7, b"aa", b"1", first),
        (7, b"aa", b"", second),
        (7, b"aa", None, third),
    ]
    assert [change.is_removal for change in changes] == [False, False, True]
    assert all(change.timestamp_us > 0 for change in changes)
    assert list(table.changelog.changes(end=str(middle))) == changes[:1]
    begun = table.changelog.changes()
    assert begun.position is None
    assert next(begun) == changes[0]
    assert begun.position == middle
    assert list(table.changelog.changes(begun.position)) == changes[1:]


def test_a_follower_sees_the_changes_of_others_over_a_split_until_the_table_is_sealed(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    table = created(manager)
    followed = table.changelog.follow("earliest")
    for n in range(40):
        table.put(f"k{n % 8}", b"%d" % n)
        if n == 20:
            table.flush()
            scale_stream(log_of(table, runtime), [0], [KeyRange(0, 0.5), KeyRange(0.5, 1)])
    table.flush()
    manager.seal_key_value_table(NAME)
    values: dict[Any, list[int]] = {}
    for change in followed:
        assert change.value is not None
        values.setdefault(change.key, []).append(int(change.value))
    assert values == {f"k{key}": list(range(key, 40, 8)) for key in range(8)}


def test_entries_at_a_version_and_the_changes_after_it_are_the_table(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    table = created(manager, partitions=3)
    for n in range(30):
        table.put(f"k{n}", b"old").result()
    maintained(table, runtime)
    table.put("k1", b"changed").result()
    reader = table.at()
    assert reader.cut == table.changelog.cut_at(reader.version)
    for n in range(0, 30, 3):
        table.remove(f"k{n}").result()
        table.put(f"new{n}", b"new").result()
    copy = {entry.key: entry.value for entry in reader.entries()}
    assert copy["k1"] == b"changed"
    assert applied(table.changelog.changes(reader.cut), copy) == entries(table)


def read_all(table: KeyValueTable, reader: EventStreamReader) -> list[KeyChange]:
    found = list[KeyChange]()
    while (event := reader.read_next_event(timeout=0).event) is not None:
        found.append(table.changelog.change(event))
    return found


def test_a_group_reads_the_changes_and_holds_them_over_folds(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    table = created(manager, partitions=2)
    log = table.changelog
    table.put("before", b"1").result()
    start = table.at()
    group = manager.create_reader_group("shop/copy", {log.name: start.cut}, retention="manual")
    versions = [table.put(f"k{n % 5}", b"%d" % n).result() for n in range(20)]
    removal = table.remove("k1").result()
    maintained(table, runtime)
    assert log.head() == start.cut, "the fold alone decided what is truncated"
    assert [found.name for found in log.subscribers()] == ["pravega.fold", "shop/copy"]
    with group.create_reader("r") as reader:
        changes = read_all(table, reader)
    assert sorted(change.version for change in changes) == sorted([*versions, removal])
    copy = {entry.key: entry.value for entry in start.entries()}
    assert applied(changes, copy) == entries(table)
    group.publish(group.stream_cuts())
    maintained(table, runtime)
    assert log.head() == log.tail()
    assert manager.delete_reader_group("shop/copy")
    assert [found.name for found in log.subscribers()] == ["pravega.fold"]


def test_readers_of_a_group_share_a_table_and_a_stream(manager: StreamManager) -> None:
    table = created(manager, partitions=2)
    manager.create_stream("shop/orders")
    name = table.changelog.name
    group = manager.create_reader_group("shop/both", ["shop/orders", name])
    table.put("k", b"v").result()
    with manager.create_writer("shop/orders") as writer:
        writer.write_event(b"order").result()
    with group.create_reader("r") as reader:
        read = [reader.read_next_event(timeout=0) for _ in range(2)]
        events = {one.event.pointer.stream: one.event for one in read if one.event}
        position = read[-1].position
    assert type(position).parse(str(position)) == position
    assert table.changelog.change(events[name]).value == b"v"
    with pytest.raises(InvalidInput, match=r"not an event of the change log of table shop/stock"):
        table.changelog.change(events["shop/orders"])
    group.update(remove=[name])
    assert list(group.stream_cuts()) == ["shop/orders"]


def test_truncated_changes_are_refused_with_the_way_on(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    table = created(manager)
    table.put("a", b"1").result()
    start = table.changelog.cut_at(table.at().version)
    late = table.changelog.follow(start)
    for n in range(4):
        table.put("a", b"%d" % n).result()
    maintained(table, runtime)
    for begin in (lambda: table.changelog.changes(start), lambda: late):
        with pytest.raises(TruncatedData, match=r"table shop/stock were folded.*reader group") as e:
            next(begin())
        assert e.value.head == table.changelog.head()
    with pytest.raises(TruncatedData):
        manager.create_reader_group(
            "shop/late", {table.changelog.name: start}, retention="automatic"
        )
    with pytest.raises(TruncatedData, match="version 0 of table shop/stock cannot be read"):
        table.at(0)
    assert list(table.changelog.changes()) == []


def test_wrong_cuts_versions_and_tables_are_refused(manager: StreamManager) -> None:
    table = created(manager)
    table.put("a", b"1").result()
    newest = table.at().version
    with pytest.raises(InvalidInput, match=f"does not exist yet: the newest one is {newest}"):
        table.changelog.cut_at(newest + 1)
    with pytest.raises(InvalidInput, match="does not exist yet"):
        table.at(newest + 1)
    manager.create_stream("shop/orders")
    with pytest.raises(InvalidStreamCut):
        table.changelog.changes(manager.tail("shop/orders"))
    manager.delete_key_value_table(NAME)
    with pytest.raises(NoSuchTable):
        table.changelog.tail()
    created(manager)
    with pytest.raises(StaleIdentity):
        table.changelog.changes()
