"""The files of a history are merged in tiers, and no row is lost, repeated or moved by that."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import deltalake
import pytest

from pravega_spark.engine.log.actions import Add, Body
from pravega_spark.engine.log.sweep import sweep_table
from pravega_spark.engine.stream.history import (
    APPENDS_DOMAIN,
    HistoryRow,
    append_history,
    history_log,
    in_order,
    merge_history,
    order_of,
    plan_merges,
    read_history,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.values.limits import HISTORY_FILE_BYTES
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import DatedDisk, FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import make_stream, reopen
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized

KINDS = ("segment", "writer")


class Past:
    """A stream to whose history rows are appended, one of each kind in each commit."""

    def __init__(self, stream: StreamLog) -> None:
        self.stream = stream
        self.appended = 0

    def append(self, times: int) -> None:
        for _ in range(times):
            n = self.appended
            append_history(
                self.stream, [HistoryRow(kind, n, f"{kind} {n}", "[]") for kind in KINDS]
            )
            self.appended += 1

    def merge(self) -> None:
        log = history_log(self.stream)
        log.refresh()
        merge_history(log)

    def sweep(self, retain_ms: int = 0) -> None:
        sweep_table(history_log(self.stream), grace_ms=0, retain_ms=retain_ms)
        self.merge()

    def live(self) -> list[Add]:
        log = history_log(self.stream)
        log.refresh()
        with log.files() as files:
            return list(files.all())

    def rows(self, record: str) -> list[HistoryRow]:
        return [row for rows in read_history(self.stream, record) for row in rows]

    def check(self) -> None:
        """Every row is found once, the newest first."""
        for kind in KINDS:
            expected = [HistoryRow(kind, n, f"{kind} {n}", "[]") for n in range(self.appended)]
            assert self.rows(kind) == expected[::-1]


@pytest.fixture
def past() -> Past:
    runtime = FakeRuntime()
    return Past(make_stream(Spy(memory(runtime)), runtime))


def small_file(version: int, rows: int, size: int = 1_000, order: int | None = None) -> Add:
    tags = {"rows": str(rows)} | ({} if order is None else {"staged": str(order)})
    return Add(f"data/v{version}/{order}.parquet", {"record": "x"}, size, version, None, tags)


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("most", [1, 30, 1_000])
def test_files_grow_with_the_logarithm_of_the_appends(most: int) -> None:
    chance, files = random.Random(most), list[Add]()
    appended = written = 0
    counts = []
    appends = sized(5_000, 20_000)
    for version in range(appends):
        rows = chance.randint(1, most)
        files.append(small_file(version, rows))
        appended += rows
        if version % 16 == 15:
            for group in plan_merges(files):
                at = files.index(group[0])
                assert tuple(files[at : at + len(group)]) == group, "they are neighbours"
                total = sum(int((add.tags or {})["rows"]) for add in group)
                files[at : at + len(group)] = [
                    small_file(version, total, 1_000, order_of(group[-1]))
                ]
                written += total
            assert files == in_order(files)
        if version in (2_000, appends - 1):
            counts.append(len(files))
    assert max(counts) < 80
    assert written < 4 * appended


def test_full_files_are_never_written_again() -> None:
    full = [small_file(version, 10, HISTORY_FILE_BYTES // 2) for version in range(40)]
    assert plan_merges(full) == []
    halves = [small_file(version, 10, HISTORY_FILE_BYTES // 2 - 1) for version in range(9)]
    assert plan_merges(halves) == [tuple(halves[at : at + 3]) for at in (0, 3, 6)]
    mixed = [*halves[:1], *full[1:20], small_file(20, 10)]
    assert plan_merges(mixed) == []


@pytest.mark.slow
def test_history_is_merged_by_kind_and_keeps_rows_and_order(past: Past) -> None:
    for _ in range(20):
        past.append(16)
        past.sweep()
    assert len(past.live()) == 2 * (1 + 4), "256 appends, and four times 16"
    assert {add.partition["record"] for add in past.live()} == set(KINDS)
    past.check()
    past.append(3)
    past.check()
    assert len(past.live()) == 2 * (1 + 4 + 3)


def test_row_that_was_appended_last_is_found_first_after_a_merge(past: Past) -> None:
    for n in range(16):
        append_history(past.stream, [HistoryRow("epoch", 7, "pravega.epoch.1", str(n))])
        past.stream.runtime.sleep(1)
    expected = [str(n) for n in reversed(range(16))]
    assert [row.value for row in past.rows("epoch")] == expected
    past.merge()
    assert len(past.live()) == 1
    assert [row.value for row in past.rows("epoch")] == expected


def test_merged_files_stay_before_newer_ones(past: Past) -> None:
    for n in range(16):
        append_history(past.stream, [HistoryRow("epoch", 7, "pravega.epoch.1", str(n))])
        past.stream.runtime.sleep(1)
    large = [HistoryRow("epoch", 7, f"pravega.epoch.{n}", "newest") for n in range(1, 300)]
    append_history(past.stream, large)
    past.merge()
    assert len(past.live()) == 2, "a merged and a large one"
    found = past.rows("epoch")
    assert len(found) == 16 + len(large)
    assert next(row.value for row in found if row.name == "pravega.epoch.1") == "newest"


def test_look_costs_no_call_until_it_is_due(past: Past) -> None:
    past.append(15)
    log = history_log(past.stream)
    log.refresh()
    spy = past.stream.store
    assert isinstance(spy, Spy)
    spy.calls.clear()
    merge_history(log)
    assert spy.calls == []
    past.append(1)
    past.merge()
    assert len(past.live()) == 2
    before = history_log(past.stream).refresh()
    past.merge()
    assert history_log(past.stream).refresh() == before


def test_history_of_an_older_release_is_merged(past: Past) -> None:
    past.append(40)
    log = history_log(past.stream)
    log.commit(lambda snapshot: (Body("SWEEP", domains={APPENDS_DOMAIN: None}), None))
    past.sweep()
    assert len(past.live()) == 2
    past.append(16)
    past.sweep()
    assert len(past.live()) == 4
    past.check()


@pytest.mark.parametrize("point", ["history.merged", "commit.before"])
def test_merge_that_is_killed_or_overtaken_changes_no_row(past: Past, point: str) -> None:
    past.append(16)
    with at_failpoint(point, kill), pytest.raises(Killed):
        past.merge()
    past.check()
    assert len(past.live()) == 32
    with at_failpoint(point, past.merge) as reached:  # another sweep at the same time
        past.merge()
    assert reached.hits >= 2
    assert len(past.live()) == 2
    past.append(16)
    with at_failpoint(point, lambda: past.append(2)):
        past.merge()
    past.check()
    stored = past.stream.store.list(f"{past.stream.name}/metadata/data")
    assert len(stored) > len(past.live())
    past.append(1)
    for _ in range(2):
        past.stream.runtime.sleep(3_600)
        past.sweep()
    stored = past.stream.store.list(f"{past.stream.name}/metadata/data")
    assert {entry.key for entry in stored} == {
        f"{past.stream.name}/metadata/{add.path}" for add in past.live()
    }
    past.check()


def test_merge_that_is_killed_after_its_commit_is_complete(past: Past) -> None:
    past.append(16)
    spy = past.stream.store
    assert isinstance(spy, Spy)

    def kill_after(operation: str, key: str) -> None:
        if operation != "put_if_absent" and spy.sent and b'"COMPACT"' in spy.sent[-1][1]:
            spy.hook = None
            kill()

    spy.hook = kill_after
    try:
        past.merge()
        past.merge()
    except Killed:
        pass
    past.check()
    assert len(past.live()) == 2


def test_appends_and_sweeps_of_several_threads(past: Past) -> None:
    errors: list[BaseException] = []

    def run(number: int) -> None:
        stream = reopen(past.stream)
        try:
            for n in range(24):
                if number < 2:
                    name = f"{number} {n}"
                    append_history(stream, [HistoryRow("segment", n, name, "[]")])
                else:
                    sweep_table(history_log(stream), grace_ms=10**9, retain_ms=10**9)
                    Past(stream).merge()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = Counter(row.name for row in past.rows("segment"))
    assert found == Counter(f"{number} {n}" for number in range(2) for n in range(24))
    past.merge()
    assert len(past.live()) < 32


@pytest.mark.medium
def test_damaged_and_lost_files_stay_as_they_are(past: Past) -> None:
    past.append(60)
    segments = in_order(a for a in past.live() if a.partition["record"] == "segment")
    folder = f"{past.stream.name}/metadata"
    past.stream.store.put(f"{folder}/{segments[20].path}", b"damaged")
    past.stream.store.delete([f"{folder}/{segments[40].path}"])
    past.merge()
    kept = {add.path for add in past.live()}
    assert {segments[20].path, segments[40].path} <= kept
    writers = [add for add in past.live() if add.partition["record"] == "writer"]
    assert len(writers) == 1
    assert len(kept) == 1 + 2 + 3


def test_reader_that_a_sweep_overtakes_reads_the_merged_files(past: Past) -> None:
    past.append(40)
    found: list[HistoryRow] = []
    rows: Iterator[list[HistoryRow]] = read_history(past.stream, "segment")
    found += next(rows)
    past.sweep()
    past.append(1)
    past.stream.runtime.sleep(3_600)
    past.sweep()
    assert len(past.stream.store.list(f"{past.stream.name}/metadata/data")) == 4
    for more in rows:
        found += more
    assert {row.name for row in found} >= {f"segment {n}" for n in range(40)}


@pytest.mark.slow
def test_delta_readers_find_each_row_once_at_every_version(tmp_path: Path) -> None:
    runtime = FakeRuntime()
    past = Past(make_stream(DatedDisk(tmp_path, runtime), runtime))
    rows_at: dict[int, int] = {}
    merges = []
    log = history_log(past.stream)
    for n in range(40):
        past.append(1)
        runtime.sleep(600)
        past.sweep(retain_ms=8 * 3_600_000)
        before = max(rows_at, default=-1)
        newest = log.refresh()
        assert newest is not None
        rows_at |= dict.fromkeys(range(before + 1, newest.version + 1), n + 1)
        merges += [c for c in log.reader.span(before, newest.version) if c.operation == "COMPACT"]
    past.check()
    assert len(merges) == 2
    assert not any(add.data_change for commit in merges for add in commit.adds)
    for commit in merges:
        text = (tmp_path / log.reader.key(commit.version)).read_text()
        assert '"dataChange":true' not in text
    table = tmp_path / log.path
    newest = log.refresh()
    assert newest is not None
    versions = range(max(1, newest.retention_mark), newest.version + 1)
    assert len(versions) > 30
    for version in versions:
        read = deltalake.DeltaTable(str(table), version=version).to_pyarrow_table().to_pylist()
        names = sorted(f"{kind} {n}" for kind in KINDS for n in range(rows_at[version]))
        assert sorted(row["name"] for row in read) == names
        assert all(row["record"] == row["name"].split()[0] for row in read)
