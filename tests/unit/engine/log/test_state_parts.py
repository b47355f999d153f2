"""Parts of a large state: what they cost, and that they say what their commits say."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.log import checkpoint as log_checkpoint
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.reader import Hint, table_at
from pravega_spark.engine.log.snapshot import PROTOCOL, new_table
from pravega_spark.engine.log.stored_state import (
    Span,
    joined_spans,
    part_folder,
    part_key,
    part_span,
)
from pravega_spark.engine.log.sweep import sweep_table
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.integrity.log_integrity import check_log
from pravega_spark.values.limits import CLEANUP_WAIT_SECONDS, STATE_FILE_COMMITS
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_tables import (
    FILE_BYTES,
    add_ids,
    clean,
    commit,
    event_add,
    put,
    raise_marks,
    table_log,
)
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized

EVERY = 4


class RemoteSpy(Spy):
    is_local = False


def grown(log: Log, ids: int, commits: int, *, every: int = EVERY) -> Log:
    """A log with so many ids, and commits after them; every few ones the state is kept up."""
    first = add_ids(log, ids).version + 1
    for n in range(first, first + commits):
        put(log, str(n), [event_add(f"f{n}", 0, n - first, 1)])
        if n % every == 0:
            maintain(log.reader, n, known=log.snapshot)
    return log


def spans(log: Log) -> list[Span]:
    return log.reader.hint().spans


def opened(log: Log) -> Log:
    """Another process; it finds what the first one knows, both the state and the files."""
    other = Log(log.store, log.path, log.runtime)
    assert other.refresh() == log.snapshot
    with other.files() as files, log.files() as known:
        assert sorted(add.path for add in files.all()) == sorted(add.path for add in known.all())
        assert files.totals() == known.totals()
    return other


# --------------------------------------------------------------------------------- what they cost


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_ids_cost_neither_an_append_nor_an_opening_a_call() -> None:
    calls: dict[int, tuple[int, int]] = {}
    for ids in (1_600, 16_000):
        spy = Spy(memory(FakeRuntime()))
        log = table_log(spy)
        add_ids(log, ids)
        log.maintain = lambda log, version: maintain(log.reader, version, known=log.snapshot)
        spy.calls.clear()
        most = 0
        for n in range(sized(2, 4) * STATE_FILE_COMMITS):
            put(log, str(n))
            if n % 101 == 0:
                reads = Spy(spy.inner)
                assert Log(reads, log.path, log.runtime).refresh() == log.snapshot
                most = max(most, len(reads.calls))
        appending = spy.count("get") + spy.count("get_many")
        calls[ids] = appending, most
    few, many = calls[1_600], calls[16_000]
    assert many[0] <= 1.05 * few[0]
    assert many[1] <= few[1] + 10


@pytest.mark.medium
def test_bytes_that_a_commit_writes_do_not_grow_with_the_ids() -> None:
    """Of as many commits as there are between two state files: these are written once in them."""
    written: dict[int, float] = {}
    for ids in (800, 8_000):
        store = memory(FakeRuntime())
        log = table_log(store)
        commits, sizes = ids // 8, list[int]()
        add_ids(log, ids)
        for n in range(2, 2 + commits):
            put(log, str(n), [event_add(f"f{n}", 0, n, 1)])
            if n % EVERY == 0:
                before = {e.key: e.size for e in store.list(f"{log.path}/_pravega")}
                maintain(log.reader, n, known=log.snapshot, checkpoint=False)
                after = {e.key: e.size for e in store.list(f"{log.path}/_pravega")}
                sizes.append(sum(size for key, size in after.items() if key not in before))
        written[ids] = sum(sizes) / commits
    assert written[8_000] < 2 * written[800]


def test_large_state_is_opened_in_three_round_trips_and_reads_each_object_once() -> None:
    store = memory(FakeRuntime())
    log = grown(table_log(store), 800, 30)
    hint = log.reader.hint()
    assert len(hint.parts) > 1
    for expects_files in (False, True):
        spy = RemoteSpy(store)
        other = Log(spy, log.path, log.runtime)
        if expects_files:
            other.expect_files()
        assert other.refresh() == log.snapshot
        assert spy.count("list") == 1
        assert spy.count("get") + spy.count("exists") == 0
        assert len(set(spy.calls)) == len(spy.calls)
        parts = [key for _, key in spy.calls if key.startswith(part_folder(log.path))]
        assert parts == [part_key(log.path, span) for span in hint.spans]
        read = {key for _, key in spy.calls if key.startswith(log.reader.folder)}
        newest = log.snapshot.version if log.snapshot else 0
        commits = {log.reader.key(n) for n in range(hint.newest, newest + 2)}
        assert read <= commits | {log.reader.folder}


def test_part_is_written_without_reading_the_state_file_or_longer_parts() -> None:
    spy = Spy(memory(FakeRuntime()))
    log = grown(table_log(spy), 800, 4 * EVERY + 1)
    before = spans(log)
    for n in range(EVERY):
        put(log, str(n))
    spy.calls.clear()
    maintain(log.reader, log.snapshot.version, known=log.snapshot)  # type: ignore[union-attr]
    read = {key for operation, key in spy.calls if operation.startswith("get")}
    assert not any("/state/" in key for key in read)
    assert {key for key in read if "/part/" in key} == {part_key(log.path, before[-1])}


def test_state_file_follows_once_an_eighth_as_many_commits_were_made_as_it_has_domains() -> None:
    log = grown(table_log(memory(FakeRuntime())), 800, 99)
    state, parts = log.reader.hint().state, log.reader.hint().parts
    assert state == 1
    assert 0 < len(parts) < 7
    while log.snapshot and log.snapshot.version < 110:
        put(log, "on")
        maintain(log.reader, log.snapshot.version, known=log.snapshot)
    assert log.reader.hint().state == 101
    assert log.reader.state(101).since == 1  # type: ignore[union-attr]
    opened(log)


def test_few_domains_have_a_state_file_each_time() -> None:
    log = grown(table_log(memory(FakeRuntime())), 8, 30)
    assert log.reader.spans() == []
    assert log.reader.hint() == Hint(28, -1)


# ---------------------------------------------------------------------------------- what they say


def changed(log: Log, dice: random.Random, live: list[str]) -> None:
    """Commit a change of any kind."""
    version = log.snapshot.version + 1 if log.snapshot else 0
    domains: dict[str, str | None] = {
        f"pravega.writer.{dice.randrange(40)}": dice.choice([None, f"[1,{version},{version}]"])
        for _ in range(dice.randrange(3))
    }
    domains |= {f"pravega.open.{dice.randrange(5)}": dice.choice([None, "{}"])}
    body = Body("TEST", domains=domains)
    if dice.random() < 0.1:
        body = Body("TEST", domains=domains, protocol=PROTOCOL)
    if dice.random() < 0.1:
        table = new_table({"a": "long", f"c{version}": "long"}, [], "id", log.path, version)
        body = Body("TEST", domains=domains, metadata=table)
    commit(log, lambda snapshot: body)
    removed = [live.pop(dice.randrange(len(live)))] if live and dice.random() < 0.4 else []
    live.append(f"f{version}")
    put(log, "files", [event_add(live[-1], dice.randrange(2), version, 1)], removed)


@pytest.mark.medium
@pytest.mark.long(slow=False)
@pytest.mark.parametrize("seed", range(sized(1, 15)))
@pytest.mark.parametrize("damage", ["none", "hint", "torn", "lost", "last", "foreign", "state"])
def test_whatever_is_lost_the_state_and_the_files_are_those_of_the_commits(
    seed: int, damage: str
) -> None:
    dice = random.Random(f"{seed} {damage}")
    runtime = FakeRuntime()
    store = memory(runtime)
    log, live = table_log(store, runtime), list[str]()
    add_ids(log, 600)
    for _ in range(30):
        changed(log, dice, live)
        if dice.random() < 0.6 and log.snapshot:
            known = log.snapshot if dice.random() < 0.7 else None
            maintain(log.reader, log.snapshot.version, known=known, checkpoint=False)
        if dice.random() < 0.1:
            damaged(log, dice, damage)
    assert log.reader.spans()
    damaged(log, dice, damage)
    log.refresh()
    other = opened(log)
    with other.files() as files:
        assert files.totals() == FileTotals(len(live), FILE_BYTES * len(live))
    bare = MemoryStore()
    for entry in store.list(log.reader.folder):
        bare.put(entry.key, store.get(entry.key))
    plain = Log(bare, log.path, runtime).reader
    for version in range(0, log.snapshot.version + 1 if log.snapshot else 0, 3):
        state, files = table_at(log.reader, version)
        expected, known_files = table_at(plain, version)
        assert state.at("") == expected.at("")
        assert sorted(a.path for a in files.all()) == sorted(a.path for a in known_files.all())


def damaged(log: Log, dice: random.Random, damage: str) -> None:
    found = log.reader.spans()
    keys = [part_key(log.path, span) for span in found]
    if damage == "hint":
        log.store.delete([log.reader.hint_key])
    elif damage == "state":
        log.store.delete(e.key for e in log.store.list(f"{log.path}/_pravega/state"))
    elif keys and damage == "torn":
        log.store.put(key := dice.choice(keys), log.store.get(key)[:-7])
    elif keys and damage == "lost":
        log.store.delete([dice.choice(keys)])
    elif log.reader.hint().parts and damage == "last":
        log.store.put(part_key(log.path, log.reader.hint().spans[-1]), b"")
    elif keys and damage == "foreign":
        other = table_log(memory(FakeRuntime()))
        add_ids(other, 600)
        span = dice.choice(found)
        while other.snapshot and other.snapshot.version < span.version:
            put(other, "other")
            if other.snapshot.version == span.since:
                maintain(other.reader, span.since, known=other.snapshot)
        maintain(other.reader, span.version, known=other.snapshot)
        for entry in other.store.list(part_folder(other.path)):
            log.store.put(entry.key, other.store.get(entry.key))


def test_part_of_versions_that_a_restore_dropped_is_not_used() -> None:
    store = memory(FakeRuntime())
    log = grown(table_log(store), 800, 10)
    stored = {e.key: store.get(e.key) for e in store.list(f"{log.path}/_pravega")}
    for version in range(6, 12):  # as if an older copy had been put in its place
        store.delete([log.reader.key(version)])
    again = table_log(store, log.runtime)
    while again.snapshot and again.snapshot.version < 12:
        put(again, "other")
    for key, data in stored.items():
        store.put(key, data)
    opened(again)


def test_process_that_dies_between_a_part_and_the_hint_leaves_only_work() -> None:
    log = grown(table_log(memory(FakeRuntime())), 800, 10)
    before = log.reader.hint()
    for _ in range(EVERY):
        put(log, "more")

    def die() -> None:
        raise KeyboardInterrupt

    version = log.snapshot.version if log.snapshot else 0
    with at_failpoint("maintain.state", die), pytest.raises(KeyboardInterrupt):
        maintain(log.reader, version, known=log.snapshot)
    assert log.reader.hint() == before
    assert max(log.reader.spans()).version == version
    opened(log)
    put(log, "later")
    maintain(log.reader, version + 1, known=log.snapshot)
    assert log.reader.hint().newest == version + 1
    opened(log)


def test_slow_process_that_writes_the_hint_late_takes_nothing_away() -> None:
    log = grown(table_log(memory(FakeRuntime())), 800, 7)
    slow = Log(log.store, log.path, log.runtime)
    version, known = 8, log.snapshot

    def others() -> None:
        for _ in range(9):
            put(log, "others")
            maintain(log.reader, log.snapshot.version, known=log.snapshot)  # type: ignore[union-attr]

    assert known is not None
    with at_failpoint("maintain.state", others):
        put(log, "more")
        maintain(slow.reader, known.version + 1)
    assert log.reader.hint().newest < log.snapshot.version  # type: ignore[union-attr]
    assert version
    opened(log)


def test_torn_part_that_is_to_be_joined_brings_a_state_file() -> None:
    log = grown(table_log(memory(FakeRuntime())), 800, 3 * EVERY)
    assert len(spans(log)) == 2
    for span in spans(log):
        log.store.put(part_key(log.path, span), b"torn")
    for _ in range(EVERY):
        put(log, "more")
    version = log.snapshot.version if log.snapshot else 0
    maintain(log.reader, version, known=log.snapshot)
    assert log.reader.hint().newest == version
    spy = Spy(log.store)
    assert Log(spy, log.path, log.runtime).refresh() == log.snapshot
    assert spy.count("list") == 0


def test_hint_of_an_earlier_release_ends_the_parts() -> None:
    log = grown(table_log(memory(FakeRuntime())), 800, 10)
    state, checkpoint, _ = log.reader.hint()
    log.store.put(log.reader.hint_key, b'{"state":%d,"checkpoint":%d}' % (state, checkpoint))
    assert log.reader.hint().parts == ()
    opened(log)
    put(log, "more")
    maintain(log.reader, log.snapshot.version, known=log.snapshot)  # type: ignore[union-attr]
    assert spans(log) == [Span(log.snapshot.version, state)]  # type: ignore[union-attr]
    opened(log)


# -------------------------------------------------------------------------------- what knows them


def test_cleanup_deletes_the_parts_below_it_and_no_other() -> None:
    runtime = FakeRuntime()
    log = grown(table_log(memory(runtime), runtime), 800, 40)
    old = log.reader.spans()
    assert old
    assert clean(log, runtime, 30) > 0
    for n in range(10):
        put(log, str(n))
        maintain(log.reader, log.snapshot.version, known=log.snapshot)  # type: ignore[union-attr]
    found = log.reader.spans()
    assert found
    assert any(span.version > 30 for span in old)
    assert not [span for span in found if span.version <= 30]
    opened(log)
    assert raise_marks(log, 45, 45)


@pytest.mark.medium
def test_sweeps_of_a_large_state_write_no_more_checkpoints_than_its_commits_pay_for() -> None:
    checkpoints: dict[int, int] = {}
    for ids in (8, 12_800):
        runtime = FakeRuntime()
        spy = Spy(memory(runtime))
        log = table_log(spy, runtime)
        add_ids(log, ids)
        for _ in range(10):
            for n in range(40):
                put(log, str(n))
            runtime.sleep(2 * CLEANUP_WAIT_SECONDS)
            sweep_table(log, grace_ms=0, retain_ms=0)
        checkpoints[ids] = spy.count("put", ".checkpoint.parquet")
    assert 2 * checkpoints[12_800] <= checkpoints[8]


@pytest.mark.medium
def test_check_says_that_a_part_is_torn_and_that_commits_after_it_are_lost() -> None:
    log = grown(table_log(memory(FakeRuntime())), 800, 10)
    key = part_key(log.path, max(log.reader.spans()))
    data = log.store.get(key)
    log.store.put(key, data[:50])
    found = check_log(log, "t")
    assert found is not None
    assert [(d.path, d.reason) for d in found.rebuilt] == [
        (key, "it is torn, and not used; the next state file takes its place")
    ]
    log.store.put(key, data)
    log.store.delete(log.reader.key(version) for version in range(5, 12))
    log.store.delete([log.reader.hint_key])
    lost = check_log(Log(log.store, log.path, log.runtime), "t")
    assert lost is not None
    reason = "it exists, and the newest commit is version 4: commits are lost"
    assert (key, reason) in [(d.path, d.reason) for d in lost.damage]


@pytest.mark.parametrize(
    "name", ["latest.json", "00000000000000000001.json", f"{1:020d}-1.json", f"{1:020d}-{'x' * 20}"]
)
def test_other_keys_are_no_parts(name: str) -> None:
    assert part_span(f"t/_pravega/part/{name}") is None


def test_parts_that_follow_one_another_are_found_by_their_names() -> None:
    names = [Span(4, 0), Span(8, 4), Span(8, 0), Span(12, 8), Span(14, 9), Span(3, 12), Span(0, 0)]
    assert joined_spans(0, names) == [Span(8, 0), Span(12, 8)]
    assert joined_spans(5, names) == []


@pytest.mark.medium
def test_background_maintenance_uses_the_state_that_its_process_knows() -> None:
    spy = Spy(memory(FakeRuntime()))
    log = table_log(spy)
    add_ids(log, 16_000)
    done: list[Callable[[], object]] = []

    def keep_up(log: Log, version: int) -> None:
        future = log_checkpoint.maintain_in_background(log, version)
        assert future is not None
        future.result(30)
        done.append(future.result)

    log.maintain = keep_up
    for n in range(2 * STATE_FILE_COMMITS):
        if n == STATE_FILE_COMMITS:
            spy.calls.clear()
        put(log, str(n))
    assert len(done) == 2
    assert log.reader.hint().parts
    assert not any("/state/" in key for _, key in spy.calls)
