from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.log.sweep import sweep_table
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CorruptChunk, CorruptLog, DataLoss, InvalidInput
from pravega_spark.key_value.changes import Change
from pravega_spark.key_value.folded_table import FoldedTable
from pravega_spark.key_value.keys import KeyType, TableKey
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.folded_tables import after, entries, in_parts, scanned, small_groups
from tests.harness.spy_store import Spy

PATH = "scope/_kv_tables/table/table"
NOW_US = 1_700_000_000_123_456


def folded(
    store: Any = None,
    key_type: KeyType = KeyType.BYTES,
    has_secondary: bool = False,
    file_bytes: int = 4_000,
) -> FoldedTable:
    return FoldedTable(
        store or MemoryStore(), PATH, key_type, has_secondary, FakeRuntime(), file_bytes=file_bytes
    )


def again(table: FoldedTable) -> FoldedTable:
    """Return the table as another process opens it."""
    layout = table.layout
    return FoldedTable(
        *(table.log.store, PATH, layout.key_type, layout.has_secondary, FakeRuntime()),
        file_bytes=table.file_bytes,
    )


def numbered(keys: Any, value: bytes | None = b"v", offset: int = 0) -> dict[TableKey, Change]:
    return {
        TableKey(b"%06d" % key): Change(0, offset + at, NOW_US + at, value)
        for at, key in enumerate(keys)
    }


def merge(table: FoldedTable, changes: Any, *, life: int = 1, **options: Any) -> Any:
    state = table.read()
    number = 0 if state is None else state.record.number + 1
    return table.merge(state, entries(changes), {0: number}, number, life, **options)


LONGS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)
PRIMARY = {
    KeyType.BYTES: st.binary(min_size=1, max_size=3),
    KeyType.STRING: st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=2).map(
        str.encode
    ),
    KeyType.LONG: LONGS.map(lambda number: (number + (1 << 63)).to_bytes(8, "big")),
}


@st.composite
def histories(draw: Any) -> Any:
    """Draw a kind of table, and folds: each of some changes, and the size of its parts."""
    key_type, has_secondary = draw(st.sampled_from(KeyType)), draw(st.booleans())
    primary = draw(st.lists(PRIMARY[key_type], min_size=1, max_size=30, unique=True))
    secondary = [b"\x00\x00", b"\x00\x01", b"\xff\x00"] if has_secondary else [b""]
    keys = [TableKey(p, s) for p in primary for s in secondary]
    value = st.none() | st.binary(max_size=60)
    folds = draw(st.lists(st.dictionaries(st.sampled_from(keys), value), min_size=1, max_size=6))
    return key_type, has_secondary, keys, folds, draw(st.integers(1, 9))


@pytest.mark.medium
@given(histories())
def test_every_version_of_a_table_is_a_dict_after_the_same_changes(history: Any) -> None:
    key_type, has_secondary, keys, folds, rows = history
    table = folded(None, key_type, has_secondary, file_bytes=2_600)
    numbers = itertools.count()
    state: dict[TableKey, Change] = {}
    versions: dict[int, dict[TableKey, Change]] = {}
    with small_groups(3):
        for number, fold in enumerate(folds):
            changes = {k: Change(0, next(numbers), NOW_US, v) for k, v in fold.items()}
            done = table.merge(
                table.read(), in_parts(entries(changes), rows), {0: number}, number, 1
            )
            assert done.is_committed
            state = after(state, changes)
            versions[done.version] = state
            assert done.rows == len(state)
    found = again(table)
    for version, expected in versions.items():
        at = found.read_at(version)
        assert scanned(at) == expected
        assert at.get(keys) == expected
    assert scanned(found.read()) == state
    low, high, behind = (sorted(keys)[len(keys) * n // 4] for n in (1, 3, 2))
    part = scanned(found.read(), low=low, high=high)
    assert part == {key: c for key, c in state.items() if low <= key < high}
    rest = scanned(found.read(), low=low, after=behind)
    assert rest == {key: c for key, c in state.items() if key > behind}


@pytest.mark.medium
def test_a_fold_writes_only_the_files_that_its_changes_touch() -> None:
    table = folded(file_bytes=20_000)
    with small_groups(50):
        merge(table, numbered(range(0, 20_000, 2), b"0123456789" * 3))
        before = table.read()
        assert before is not None
        assert len(before.files) >= 5
        done = merge(table, numbered([7_001, 7_002], b"new"))
    found = table.read()
    assert found is not None
    kept = {f.path for f in before.files} & {f.path for f in found.files}
    assert len(kept) >= len(before.files) - 2
    assert done.bytes_replaced < 3 * 40_000
    assert len(scanned(found)) == 10_001


@pytest.mark.medium
def test_small_neighbours_become_one_file_and_large_ones_are_split() -> None:
    table = folded(file_bytes=20_000)
    with small_groups(50):
        for begin in range(0, 4_000, 100):
            merge(table, numbered(range(begin, begin + 100), b"x" * 20))
        sizes = [file.size for file in table.read().files]  # type: ignore[union-attr]
        assert max(sizes) < 40_000
        assert not any(a < 5_000 and b < 5_000 for a, b in itertools.pairwise(sizes)), sizes
        merge(table, numbered(range(4_000), None))
    assert scanned(table.read()) == {}
    assert table.read().files == []  # type: ignore[union-attr]


@pytest.mark.medium
def test_a_cold_get_takes_two_calls_and_a_warm_one_a_single_call() -> None:
    store = Spy()
    table = folded(store, file_bytes=30_000)
    with small_groups(100):
        merge(table, numbered(range(20_000), b"value" * 4))
    state = again(table).read()
    assert state is not None
    assert len(state.files) > 2

    def calls() -> int:
        """The calls for files; a state file may be written in the background."""
        return sum("/data/" in key for _, key in store.calls)

    keys = [TableKey(b"%06d" % n) for n in (3, 19_000)]
    before = calls()
    assert state.get(keys[:1])[keys[0]].value == b"value" * 4
    assert calls() - before == 2
    assert state.get([TableKey(b"%06d" % 1_000)])
    assert calls() - before == 3, "the footer is kept"
    assert state.get([TableKey(b"a"), TableKey(b"0")]) == {}
    assert calls() - before == 3, "keys beyond all files need no call"
    assert len(state.get(keys)) == 2
    assert calls() - before == 6


@pytest.mark.medium
def test_footers_are_kept_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pravega_spark.key_value.folded_files.FOOTER_CACHE_BYTES", 20_000)
    table = folded(file_bytes=20_000)
    with small_groups(20):
        merge(table, numbered(range(20_000)))
        assert len(scanned(table.read())) == 20_000
    footers = table.reader._footers.values()
    assert sum(footer.size for footer in footers) == table.reader._kept_bytes <= 20_000
    assert footers


def test_of_two_folders_one_commits_and_the_other_is_void() -> None:
    table = folded()
    merge(table, numbered(range(10)))
    other = again(table)
    stale = other.read()
    assert merge(table, numbered([3], b"first")).is_committed
    done = other.merge(stale, entries(numbered([3, 11], b"second")), {0: 9}, 9, 1)
    assert not done.is_committed
    found = scanned(again(table).read())
    assert found[TableKey(b"000003")].value == b"first"
    assert len(found) == 10


@pytest.mark.parametrize("begins", [False, True])
def test_a_folder_that_loses_the_race_during_its_commit_is_void(begins: bool) -> None:
    table = folded()
    if not begins:
        merge(table, numbered(range(10)))
    other = again(table)
    race = at_failpoint("commit.before", lambda: merge(other, numbered([3], b"first")))
    with race:
        done = merge(table, numbered([3, 4], b"second"))
    assert race.hits >= 1
    assert not done.is_committed
    assert scanned(again(table).read())[TableKey(b"000003")].value == b"first"


def test_a_fold_of_an_ended_life_touches_nothing() -> None:
    table = folded()
    merge(table, numbered(range(10)))
    stale = table.read()
    assert again(table).end_life(1)
    assert not again(table).end_life(1)
    assert scanned(again(table).read()) == {}
    done = table.merge(stale, entries(numbered([5])), {0: 5}, 5, 1)
    assert not done.is_committed
    assert merge(table, numbered([6]), life=2).is_committed
    assert not merge(again(table), numbered([7]), life=1).is_committed
    assert not again(table).end_life(1), "a later life is left as it is"
    assert list(scanned(again(table).read())) == [TableKey(b"000006")]


def test_the_end_of_a_life_that_was_never_folded_fences_it() -> None:
    table = folded()
    assert table.read() is None
    assert table.end_life(1)
    assert not merge(again(table), numbered([1]), life=1).is_committed


def test_the_first_fold_of_a_life_replaces_what_an_older_one_left() -> None:
    table = folded()
    merge(table, numbered(range(100)), life=1)
    assert merge(table, numbered([500]), life=2).is_committed
    assert list(scanned(again(table).read())) == [TableKey(b"000500")]


def test_expired_entries_leave_with_the_next_fold_and_never_early() -> None:
    table = folded()
    merge(table, numbered(range(10)))
    state = table.read()
    assert state is not None
    paths = [file.path for file in state.files]
    options: Any = {"expired_us": NOW_US + 3, "expired_files": paths}
    merge(table, numbered([50], offset=9), **options)
    assert [int(key.primary) for key in scanned(table.read())] == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("what", ["footer", "page", "short", "empty"])
def test_a_damaged_file_is_an_error_that_names_it(what: str) -> None:
    store = MemoryStore()
    table = folded(store, file_bytes=100_000)
    with small_groups(100):
        merge(table, numbered(range(1_000), b"some value"))
    (file,) = again(table).read().files  # type: ignore[union-attr]
    data = bytearray(store.get(f"{PATH}/{file.path}"))
    if what == "short":
        del data[-40:]
    elif what == "empty":
        data.clear()
    else:
        data[-20 if what == "footer" else 100] ^= 0x40
    store.put(f"{PATH}/{file.path}", bytes(data))
    with pytest.raises(CorruptChunk, match=file.path):
        again(table).read().get([TableKey(b"000003")])  # type: ignore[union-attr]
    with pytest.raises(CorruptChunk, match=file.path):
        scanned(again(table).read())
    with pytest.raises(CorruptChunk, match=file.path):
        merge(again(table), numbered([3]))
    assert again(table).read().version == 0  # type: ignore[union-attr]


@pytest.mark.medium
@given(st.data())
def test_no_flipped_bit_is_returned_as_data(data: Any) -> None:
    store = MemoryStore()
    table = folded(store, file_bytes=100_000)
    with small_groups(20):
        merge(table, numbered(range(100), b"some value"))
    expected = scanned(table.read())
    (file,) = table.read().files  # type: ignore[union-attr]
    stored = bytearray(store.get(f"{PATH}/{file.path}"))
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= 1 << data.draw(st.integers(0, 7))
    store.put(f"{PATH}/{file.path}", bytes(stored))
    try:
        found = scanned(again(table).read())
    except CorruptChunk:
        return
    assert found == expected


def test_a_lost_file_is_an_error_that_names_it() -> None:
    store = MemoryStore()
    table = folded(store)
    merge(table, numbered(range(10)))
    state = again(table).read()
    assert state is not None
    store.delete([f"{PATH}/{state.files[0].path}"])
    with pytest.raises(DataLoss, match=state.files[0].path):
        state.get([TableKey(b"000003")])


def test_files_that_overlap_are_refused() -> None:
    table = folded()
    merge(table, numbered(range(10)))
    state = table.read()
    assert state is not None
    blind = again(table)
    blind._sorted = lambda adds, snapshot: []  # type: ignore[method-assign]
    merge(blind, numbered([3]))
    with pytest.raises(CorruptLog, match="overlap"):
        again(table).read()


def test_old_versions_are_read_until_a_sweep_and_then_refused() -> None:
    table = folded()
    with small_groups(3):
        for number in range(5):
            merge(table, numbered([number], b"%d" % number))
    assert len(scanned(table.read_at(2))) == 3
    assert table.read_before(3).log_version == 3  # type: ignore[union-attr]
    assert table.read_before(99).log_version == 5  # type: ignore[union-attr]
    assert table.read_before(-1) is None
    table.log.runtime.sleep(100)
    swept = sweep_table(table.log, grace_ms=0, retain_ms=0)
    assert swept.files > 0
    assert len(scanned(again(table).read())) == 5
    with pytest.raises(InvalidInput, match="retained"):
        table.read_at(2)


def test_a_fold_whose_staged_files_a_sweep_may_have_deleted_is_void() -> None:
    table = folded()
    for number in range(3):
        merge(table, numbered([number]))

    def sweep() -> None:
        other = again(table)
        other.log.refresh()
        for horizon in (2, 3):  # the commit of the first one makes version 3
            assert raise_horizon(other.log, horizon).horizon == horizon

    stale = table.read()
    with at_failpoint("fold.written", sweep):
        done = table.merge(stale, entries(numbered([60])), {0: 7}, 7, 1)
    assert not done.is_committed
    assert TableKey(b"000060") not in scanned(again(table).read())
