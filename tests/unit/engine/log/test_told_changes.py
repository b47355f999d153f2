"""What state files tell sweeps of the commits that they passed: the same as the commits, for less.

A sweep that reads each commit makes a call more for each append.
"""

from __future__ import annotations

import random

import pytest

from pravega_spark.engine.log import reader, stored_state
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.files import FileChanges
from pravega_spark.engine.log.reader import LogReader
from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.log.snapshot import OPEN_PREFIX
from pravega_spark.engine.log.stored_state import Passed, part_folder, state_key
from pravega_spark.engine.log.sweep import delete_unreferenced_files
from pravega_spark.engine.log.sweep_record import SweepRecord
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.values.limits import FULL_LISTING_MS, STATE_FILE_COMMITS
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.small_tables import commit, event_add, put, table_log
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized


def grown(store: Spy, commits: int, every: int = STATE_FILE_COMMITS) -> Log:
    """A table whose commits add a file each, and remove every other one soon after."""
    log = table_log(store)
    log.maintain = lambda log, version: None
    for n in range(commits):
        removes = [f"data/v0/f{n - 5}"] if n >= 5 and n % 2 else []
        version = put(log, str(n), [event_add(f"data/v0/f{n}", 0, n, 1)], removes)
        if version % every == 0:
            maintain(log.reader, version)
    return log


def gathered(log: LogReader, after: int, last: int) -> FileChanges:
    """All changes of a range, as a sweep joins them."""
    found = FileChanges(after, after)
    for changes in log.changes(after, last):
        found.join(changes)
    return found


def sets(changes: FileChanges) -> tuple[set[str], dict[int, object], dict[str, int], int]:
    removed = {v: (size, sorted(paths)) for v, (size, paths) in changes.removed.items()}
    return set(changes.added_paths()), dict(removed), changes.ended, changes.version


def of_commits(log: LogReader, after: int, last: int) -> FileChanges:
    found = FileChanges(after, after)
    for one in log.span(after, last):
        found.apply(one)
    return found


def note(log: Log, domains: dict[str, str | None]) -> None:
    commit(log, lambda snapshot: Body("TEST", domains=domains))


def reads(store: Spy) -> int:
    return sum(op.startswith("get") and "/_delta_log/" in key for op, key in store.calls)


@pytest.mark.medium
def test_sweeps_of_a_busy_table_read_few_of_its_commits() -> None:
    store = Spy()
    log = grown(store, 4 * STATE_FILE_COMMITS + 40)
    delete_unreferenced_files(log, now_ms=1)
    for n in range(4 * STATE_FILE_COMMITS):
        version = put(log, f"more {n}", [event_add(f"data/v0/more{n}", 1, n, 1)])
        if version % STATE_FILE_COMMITS == 0:
            maintain(log.reader, version)
    store.calls.clear()
    delete_unreferenced_files(log, now_ms=2)
    assert reads(store) < 60, "the commits behind the newest state file, and one for each of four"
    store.calls.clear()
    delete_unreferenced_files(log, now_ms=3 + FULL_LISTING_MS)
    assert reads(store) < 10, "a full listing goes on with the record"


def test_complete_listing_without_a_record_reads_state_files_too() -> None:
    store = Spy()
    log = grown(store, 4 * STATE_FILE_COMMITS + 40)
    store.calls.clear()
    delete_unreferenced_files(log, now_ms=1)
    assert reads(store) < 100


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("seed", range(sized(2, 30)))
def test_any_range_is_told_as_by_its_commits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With files of other releases, torn files, parts, and ranges that begin in the middle."""
    monkeypatch.setattr(reader, "STATE_FILE_COMMITS", 3)
    dice, store = random.Random(seed), Spy()
    log = table_log(store)
    log.maintain = None
    live: list[str] = []
    opened: set[str] = set()
    if seed % 2:  # a large state, of which parts are written
        note(log, {f"pravega.writer.{n}": "[1,1,1]" for n in range(400)})
    for n in range(120):
        adds = [event_add(f"data/v0/f{n}-{k}", 0, 9 * n + k, 1) for k in range(dice.randrange(3))]
        gone = [live.pop(0) for _ in range(dice.randrange(3)) if live]
        live += [add.path for add in adds]
        put(log, str(n), adds, gone)
        if dice.random() < 0.3:
            opened.add(name := f"t{n}")
            note(log, {f"{OPEN_PREFIX}{name}": "[]"})
        elif opened and dice.random() < 0.5:
            note(log, {f"{OPEN_PREFIX}{opened.pop()}": None})
        assert log.snapshot is not None
        if dice.random() < 0.3:
            with pytest.MonkeyPatch.context() as patch:
                if dice.random() < 0.15:  # release 0.1.0 wrote it
                    patch.setattr(Passed, "of", lambda changes: None)
                maintain(log.reader, log.snapshot.version)
            if dice.random() < 0.1:
                store.inner.put(state_key(log.path, log.snapshot.version), b"torn")
    assert log.snapshot is not None
    newest = log.snapshot.version
    assert bool(store.inner.list(part_folder(log.path))) == bool(seed % 2)
    told = 0
    for _ in range(40):
        after = dice.randrange(-1, newest)
        last = dice.randrange(after, newest) + 1
        found, wanted = gathered(log.reader, after, last), of_commits(log.reader, after, last)
        added, *rest = sets(found)
        assert tuple(rest) == sets(wanted)[1:]
        assert set(wanted.added_paths()) <= added
        assert added <= set(of_commits(log.reader, -1, last).added_paths()), "all were committed"
        store.calls.clear()
        gathered(log.reader, after, last)
        told += reads(store) < last - after
    assert told > 3


def test_file_that_a_commit_removes_during_a_full_listing_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The newest version does not name it, and the version before, which is retained, does."""
    log = grown(Spy(), 20)
    for n in range(20):
        log.store.put(f"{log.path}/data/v0/f{n}", b"x" * 10)
    raise_horizon(log, 20, 20)
    delete_unreferenced_files(log, now_ms=1)
    read_on, again = SweepRecord.read_on, iter([True])

    def then_remove(record: SweepRecord, *given: object) -> None:
        read_on(record, *given)  # type: ignore[arg-type]
        if next(again, False):
            put(log, "late", removes=["data/v0/f19"])

    monkeypatch.setattr(SweepRecord, "read_on", then_remove)
    delete_unreferenced_files(log, now_ms=FULL_LISTING_MS + 1)
    assert log.store.exists(f"{log.path}/data/v0/f19")


def test_state_file_that_would_name_too_many_removed_files_names_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who opens the table reads it, and a commit that removes many files costs one call anyway."""
    monkeypatch.setattr(stored_state, "TOLD_PATHS", 3)
    log = grown(Spy(), 10)
    maintain(log.reader, 10)
    few = log.reader.state(10)
    assert few is not None
    assert few.passed is not None
    put(log, "many", removes=["data/v0/f6", "data/v0/f7", "data/v0/f8", "data/v0/f9"])
    maintain(log.reader, 11)
    many = log.reader.state(11)
    assert many is not None
    assert many.passed is None
    assert sets(gathered(log.reader, -1, 11)) == sets(of_commits(log.reader, -1, 11))


def test_file_of_another_release_is_read_and_tells_nothing() -> None:
    log = grown(Spy(MemoryStore()), 10)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Passed, "of", lambda changes: None)
        maintain(log.reader, 8)
    state = log.reader.state(8)
    assert state is not None
    assert state.passed is None
    opened = Log(log.store, log.path, FakeRuntime()).refresh()
    assert opened is not None
    assert opened.version == log.snapshot.version  # type: ignore[union-attr]
