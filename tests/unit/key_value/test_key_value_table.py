"""A key-value table: its life, puts, gets and iterations."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.layout.epochs import split
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    InvalidInput,
    NoSuchScope,
    NoSuchTable,
    ObjectClosed,
    ScopeNotEmpty,
    StaleIdentity,
    TableSealed,
)
from pravega_spark.key_value.changes import IN_CHUNK
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.entry import TableEntry
from pravega_spark.key_value.index import TableIndex
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.key_value.updates import TablePut
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.values.segments import KeyRange
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.simulated_kills import Killed, kill

T = "s/t"
STRINGS = KeyValueTableConfiguration("string", partitions=3)


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def manager(runtime: FakeRuntime) -> StreamManager:
    made = manager_of(runtime)
    made.create_scope("s")
    return made


def other_of(manager: StreamManager) -> StreamManager:
    """A manager of the same root as another process has it: nothing is shared in memory."""
    return StreamManager(manager.root, runtime=root_of(manager).runtime)


def table_of(
    manager: StreamManager, configuration: KeyValueTableConfiguration = STRINGS
) -> KeyValueTable:
    manager.create_key_value_table(T, configuration)
    return manager.key_value_table(T)


def values(entries: Any) -> dict[Any, bytes]:
    return {one.key: one.value for one in entries if one is not None}


# ----------------------------------------------------------------------------------------- the life


def test_a_table_is_created_once_listed_and_deleted(manager: StreamManager) -> None:
    assert manager.create_key_value_table(T, STRINGS)
    assert not manager.create_key_value_table(T)
    manager.create_key_value_table("s/a", KeyValueTableConfiguration(tags=frozenset({"hot"})))
    assert manager.list_key_value_tables("s") == ["s/a", T]
    assert manager.list_key_value_tables("s", tag="hot") == ["s/a"]
    assert manager.list_streams("s") == []
    assert manager.key_value_table("s/a").configuration.tags == {"hot"}
    table = manager.key_value_table(T)
    assert table.configuration == STRINGS
    with pytest.raises(ScopeNotEmpty, match=r"2 key-value tables \(a, t\)"):
        manager.delete_scope("s")
    assert manager.delete_key_value_table(T)
    assert not manager.delete_key_value_table(T)
    with pytest.raises(NoSuchTable, match="table s/t does not exist"):
        manager.key_value_table(T)
    with pytest.raises(NoSuchTable, match="table s/t does not exist"):
        table.get("k", fresh=True)
    assert manager.delete_scope("s", recursive=True)
    with pytest.raises(NoSuchScope):
        manager.create_key_value_table(T)


def test_info_has_the_state_and_the_segments_of_all_epochs(manager: StreamManager) -> None:
    table = table_of(manager)
    log, (first, second, third) = table._stream, table.info().segments
    merged = KeyRange(first.key_range.low, second.key_range.high)
    halves = split(third.key_range, 2)
    ids = [first.segment_id, second.segment_id, third.segment_id]
    epoch = scale_stream(log, ids, [merged, *halves], life=1)
    manager.update_key_value_table(T, add_tags={"hot"})
    for n in range(20):
        table.put(f"k{n}", b"1")
    table.flush()
    truncate(log, log.view().tail, past_subscribers=True, life=1)
    assert log.view().oldest_epoch == 1  # the first epoch is in the history alone

    info = table.info()
    assert (info.table, info.life, info.state) == (T, 1, "ACTIVE")
    assert info.configuration == STRINGS
    assert info.configuration.tags == {"hot"}
    assert info.segments == epoch.segments
    assert [one.segments for one in info.epochs] == [(first, second, third), epoch.segments]
    assert info.created_ms == info.epochs[0].created_ms
    version = info.version
    manager.seal_key_value_table(T)
    table.close()
    sealed = table.info()  # a closed table can still be read
    assert (sealed.state, sealed.version > version) == ("SEALED", True)
    manager.delete_key_value_table(T)
    with pytest.raises(NoSuchTable):
        table.info()


def test_a_stream_and_a_table_may_have_one_name(manager: StreamManager) -> None:
    table = table_of(manager)
    manager.create_stream(T, StreamConfiguration())
    with manager.create_writer(T) as writer:
        writer.write_event("event").result()
    table.insert("k", b"1")
    assert manager.delete_key_value_table(T)
    assert [event.data for event in manager.read(T)] == [b"event"]


def test_an_object_of_an_earlier_life_is_refused(manager: StreamManager) -> None:
    old = table_of(manager)
    version = old.insert("k", b"old")
    manager.delete_key_value_table(T)
    new = table_of(manager)
    for call in (
        lambda: old.get("k", fresh=True),
        lambda: old.put("k", b"2").result(),
        lambda: old.insert("j", b"2"),
        old.at,
        old.info,
    ):
        with pytest.raises(StaleIdentity):
            call()
    assert new.get("k") is None
    new.insert("k", b"new")
    assert version != new.get("k").version  # type: ignore[union-attr]
    assert new.get("k").value == b"new"  # type: ignore[union-attr]


def test_a_sealed_table_can_be_read(manager: StreamManager) -> None:
    table = table_of(manager)
    table.put("k", "1").result()
    assert manager.seal_key_value_table(T)
    assert not manager.seal_key_value_table(T)
    for call in (
        lambda: table.put("k", "2").result(),
        lambda: table.insert("j", "2"),
        lambda: table.remove("k").result(),
        lambda: other_of(manager).key_value_table(T).put("k", "2"),
    ):
        with pytest.raises(TableSealed, match="table s/t was sealed"):
            call()
    assert table.get("k").value == b"1"  # type: ignore[union-attr]
    assert other_of(manager).key_value_table(T).get("k").value == b"1"  # type: ignore[union-attr]


@pytest.mark.parametrize("point", ["create.row", "delete.row"])
def test_what_a_killed_process_left_half_made_is_finished(
    manager: StreamManager, point: str
) -> None:
    other = other_of(manager)
    if point == "delete.row":
        table_of(other).insert("k", b"1")
    calls = {
        "create.row": lambda: other.create_key_value_table(T, STRINGS),
        "delete.row": lambda: other.delete_key_value_table(T),
    }
    with at_failpoint(point, kill), pytest.raises(Killed):
        calls[point]()
    assert manager.list_key_value_tables("s") == [T]
    if point == "create.row":
        assert manager.key_value_table(T).configuration == STRINGS
        return
    assert not manager.delete_key_value_table(T)
    assert manager.list_key_value_tables("s") == []
    assert table_of(manager).get("k") is None


# ------------------------------------------------------------------------------------ puts and gets


def test_a_put_is_seen_as_soon_as_it_is_acknowledged(manager: StreamManager) -> None:
    table = table_of(manager)
    assert table.get("k") is None
    for n in range(3):
        version = table.put("k", str(n)).result()
        entry = table.get("k")
        assert entry == TableEntry("k", b"%d" % n, version, b"", entry.timestamp_us)  # type: ignore[union-attr]
    table.remove("k").result()
    assert table.get("k") is None
    assert not table.exists("k")


def test_what_others_put_is_seen_after_the_staleness(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    table = table_of(manager)
    other = other_of(manager).key_value_table(T)
    assert table.get("k") is None
    other.put("k", "1").result()
    assert table.get("k") is None  # it may be one second old
    assert table.get("k", fresh=True).value == b"1"  # type: ignore[union-attr]
    other.put("k", "2").result()
    runtime.sleep(1.1)
    assert table.get("k").value == b"2"  # type: ignore[union-attr]


def test_get_all_keeps_the_order_of_the_keys(manager: StreamManager) -> None:
    table = table_of(manager)
    for n in range(300):
        table.put(f"k{n}", str(n))
    table.flush()
    found = table.get_all(["k9", "none", "k10", "k9"])
    assert [None if one is None else one.value for one in found] == [b"9", None, b"10", b"9"]
    with pytest.raises(InvalidInput, match="at most 256"):
        table.get_all([f"k{n}" for n in range(257)])
    with pytest.raises(InvalidInput, match="a list is needed"):
        table.get_all("k1")


def test_values_have_a_limit(manager: StreamManager) -> None:
    table = table_of(manager, KeyValueTableConfiguration(max_value_bytes=4))
    table.put(b"k", b"1234").result()
    for call in (lambda: table.put(b"k", b"12345"), lambda: table.insert(b"j", b"12345")):
        with pytest.raises(InvalidInput, match="larger than 4 bytes"):
            call()
    with pytest.raises(InvalidInput, match="bytes or str"):
        table.put(b"k", 4)  # type: ignore[arg-type]


def test_the_largest_value_is_one_event(manager: StreamManager) -> None:
    limit = (8 << 20) - (8 << 10) - 16
    table = table_of(manager, KeyValueTableConfiguration(max_value_bytes=limit))
    key = b"k" * 8192
    table.put(key, bytes(limit)).result()
    assert len(table.get(key).value) == limit  # type: ignore[union-attr]
    version = table.replace(key, bytes(limit), table.get(key).version)  # type: ignore[union-attr]
    assert table.get(key).version == version  # type: ignore[union-attr]
    with pytest.raises(InvalidInput):
        table.put(key + b"k", b"")


@pytest.mark.parametrize(
    ("configuration", "key", "wrong"),
    [
        (KeyValueTableConfiguration(), b"\x00\xff", 7),
        (KeyValueTableConfiguration(), b"\x00\xff", b""),
        (KeyValueTableConfiguration(primary_key_length=2), b"ab", b"abc"),
        (KeyValueTableConfiguration("long"), -7, 1 << 63),
        (KeyValueTableConfiguration("string"), "zürich", b"zurich"),
    ],
)
def test_keys_of_each_type(
    manager: StreamManager, configuration: KeyValueTableConfiguration, key: Any, wrong: Any
) -> None:
    table = table_of(manager, configuration)
    version = table.put(key, b"1").result()
    assert table.replace(key, b"2", version) == table.get(key).version  # type: ignore[union-attr]
    assert [one.key for one in table.entries()] == [key]
    for call in (table.get, table.exists, table.remove, lambda k: table.put(k, b"")):
        with pytest.raises(InvalidInput):
            call(wrong)


def test_keys_with_a_secondary_part(manager: StreamManager) -> None:
    table = table_of(manager, KeyValueTableConfiguration("string", secondary_key_length=2))
    for primary in ("a", "a\x00", "b"):
        for n in range(4):
            table.insert(primary, f"{primary}{n}", b"%02d" % n)
    assert table.get("a", b"02").value == b"a2"  # type: ignore[union-attr]
    assert table.get("a", b"09") is None
    assert [e.value for e in table.get_all([("b", b"01"), ("a", b"00")]) if e] == [b"b1", b"a0"]
    inside = table.entries(primary="a", secondary_low=b"01", secondary_high=b"02")
    assert [entry.secondary_key for entry in inside] == [b"01", b"02"]
    assert list(table.keys(primary="a", secondary_prefix=b"0")) == [
        ("a", b"%02d" % n) for n in range(4)
    ]
    assert len(list(table.keys(low="a", high="a\x00"))) == 8
    with pytest.raises(InvalidInput, match="is a pair"):
        table.get_all(["a"])
    with pytest.raises(InvalidInput, match="2 bytes"):
        table.get("a")


def test_iterations_are_sorted_bounded_and_continued(manager: StreamManager) -> None:
    table = table_of(manager, KeyValueTableConfiguration("long", partitions=2))
    numbers = [-(2**63), -5, -1, 0, 1, 7, 2**63 - 1]
    for n in reversed(numbers):
        table.put(n, str(n))
    table.flush()
    table.remove(0).result()
    numbers.remove(0)
    assert list(table.keys()) == numbers
    assert list(table.keys(low=-5, high=7)) == [-5, -1, 1, 7]
    assert list(table.keys(high=2**63 - 1)) == numbers
    assert list(table.keys(primary=7)) == [7]
    read = list[int]()
    after: str | None = None
    while True:
        page = table.keys(after=after)
        read += list(itertools.islice(page, 2))
        if page.continuation in (None, after):
            break
        after = page.continuation
    assert list(dict.fromkeys(read)) == numbers


def test_prefixes(manager: StreamManager) -> None:
    table = table_of(manager, KeyValueTableConfiguration())
    keys = [b"a", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff"]
    for key in keys:
        table.put(key, key)
    table.flush()
    for prefix in (b"a", b"a\xff", b"\xff", b"\xff\xff", b"c", b""):
        assert list(table.keys(prefix=prefix)) == sorted(k for k in keys if k.startswith(prefix))


@pytest.mark.parametrize(
    "given",
    [
        {"prefix": "a", "low": "b"},
        {"primary": "a", "high": "b"},
        {"secondary_low": b"b"},
        {"after": "token"},
        {"low": 4},
    ],
)
def test_ranges_that_are_refused(manager: StreamManager, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        table_of(manager).keys(**given)


# ----------------------------------------------------------------------------- readers at a version


def test_a_reader_stays_at_its_version(manager: StreamManager) -> None:
    table = table_of(manager)
    table.update([])
    for n in range(5):
        table.put(f"k{n}", "old")
    table.flush()
    reader = table.at()
    table.put("k1", "new").result()
    table.remove("k2").result()
    table.insert("k9", "new")
    old = {f"k{n}": b"old" for n in range(5)}
    for one in (
        reader,
        table.at(reader.version),
        other_of(manager).key_value_table(T).at(reader.version),
    ):
        assert values(one.entries()) == old
        assert one.get("k1").value == b"old"  # type: ignore[union-attr]
        assert one.exists("k2")
        assert one.get_all(["k9"]) == [None]
    newest = values(table.entries())
    assert newest == {"k0": b"old", "k1": b"new", "k3": b"old", "k4": b"old", "k9": b"new"}
    newest_version = table.at().version
    with pytest.raises(InvalidInput, match=f"the newest one is {newest_version}"):
        table.at(10_000)


# ---------------------------------------------------------------------------------------------- ttl


def test_an_entry_is_hidden_once_its_ttl_is_over(
    manager: StreamManager, runtime: FakeRuntime
) -> None:
    table = table_of(manager, KeyValueTableConfiguration("string", ttl="10 s"))
    table.put("put", "1").result()
    version = table.insert("inserted", "1")
    runtime.sleep(9)
    assert values(table.entries()).keys() == {"put", "inserted"}
    reader = table.at()
    runtime.sleep(2)
    assert table.get("put") is None
    assert not table.exists("inserted")
    assert table.get_all(["put", "inserted"]) == [None, None]
    assert list(table.keys()) == []
    assert reader.get("put") is not None  # its version is of an earlier time
    assert table.insert("inserted", "2") > version
    assert table.get("inserted").value == b"2"  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------- memory


class NothingFolded:
    """A folded table that does not exist: the change log holds everything."""

    def read(self) -> None:
        return None

    def fold_id(self, view: StreamView) -> None:
        return None


def test_values_beyond_the_limit_are_read_from_their_chunks(manager: StreamManager) -> None:
    table = table_of(manager)
    view = table._stream.view()
    table._index = TableIndex(table._stream, view.life, STRINGS, NothingFolded(), value_bytes=2_000)
    for n in range(100):
        table.put(f"k{n:02d}", bytes([n]) * 100)
    table.flush()
    table.get("k00")
    changes = table._index.tables[0]
    held = [change for change in changes.values() if change.value is not IN_CHUNK]
    assert 0 < len(held) <= 20
    for n in range(100):
        assert table.get(f"k{n:02d}").value == bytes([n]) * 100  # type: ignore[union-attr]
    assert {k: v[0] for k, v in values(table.entries()).items()} == {
        f"k{n:02d}": n for n in range(100)
    }


def test_handles_of_one_process_share_their_index() -> None:
    manager = StreamManager("memory://shared-index")
    manager.create_scope("s")
    table = table_of(manager)
    assert manager.key_value_table(T)._index is table._index


def test_a_closed_table_refuses_puts(manager: StreamManager) -> None:
    with table_of(manager) as table:
        table.put("k", "1")
    assert table.get("k").value == b"1"  # type: ignore[union-attr]
    version = table.get("k").version  # type: ignore[union-attr]
    for write in (
        lambda: table.put("k", "2"),
        lambda: table.remove("k"),
        lambda: table.insert("n", "2"),
        lambda: table.replace("k", "2", version),
        lambda: table.remove("k", version=version),
        lambda: table.update([TablePut("k", "2")]),
        lambda: table.update([]),
    ):
        with pytest.raises(ObjectClosed):
            write()
    assert values(table.entries()) == {"k": b"1"}


def test_keys_of_bytes_may_be_given_as_text_and_come_back_as_bytes(manager: StreamManager) -> None:
    sized = KeyValueTableConfiguration(secondary_key_length=2)
    manager.create_key_value_table(T, KeyValueTableConfiguration())
    manager.create_key_value_table("s/pairs", sized)
    with manager.key_value_table(T) as table, manager.key_value_table("s/pairs") as pairs:
        table.put("Zürich", b"1").result()
        table.put("Zürich".encode(), b"2").result()
        table.update([TablePut("Bern", b"3")])
        pairs.put("Zürich", b"4", "01").result()
        zurich = "Zürich".encode()
        for key in ("Zürich", zurich):
            entry = table.get(key)
            assert entry is not None
            assert (entry.key, entry.value) == (zurich, b"2")
            assert [e and e.key for e in table.get_all([key, "Bern"])] == [zurich, b"Bern"]
            assert table.exists(key)
        assert [entry.key for entry in table.entries(prefix="Zü")] == [zurich]
        assert list(table.keys(low="B", high="C")) == [b"Bern"]
        pair = pairs.get("Zürich", "01")
        assert pair is not None
        assert (pair.key, pair.secondary_key, pair.value) == (zurich, b"01", b"4")
        table.remove("Zürich").result()
        assert table.get(zurich, fresh=True) is None
        with pytest.raises(InvalidInput, match="no UTF-8"):
            table.get("\ud800")
