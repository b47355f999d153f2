"""Each use of the retention mark and of the commit-deletion mark, and a mutant for each wrong use.

Every scenario has versions between the two marks: their commits are stored, their files are not
retained. A mutant is the same source with the other mark, and must fail the scenario of that use.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.backup import copy
from pravega_spark.engine.log import retained, sweep
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.log.follow import LogFollower
from pravega_spark.engine.log.reader import LogReader
from pravega_spark.engine.log.retained import VersionAges, encode_log_domain, pin, raise_horizon
from pravega_spark.engine.log.snapshot import LOG_DOMAIN
from pravega_spark.engine.log.sweep import (
    delete_ended_log,
    delete_old_commits,
    delete_unreferenced_files,
    mark_has_aged,
    sweep_table,
)
from pravega_spark.engine.state.synchronizer import Synchronizer
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import stream_sweep
from pravega_spark.engine.stream.records import OUTCOME_PREFIX, TransactionOutcome
from pravega_spark.errors import CorruptLog
from pravega_spark.retention.retention_set import LogRetentionSet
from pravega_spark.scaling import rates as scaling_rates
from pravega_spark.values.limits import CLEANUP_WAIT_SECONDS, FULL_LISTING_MS
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.loads import BY_EVENTS, PACE, load, stream_with
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.small_tables import event_add, put, raise_marks, table_log, versions
from tests.unit.engine.state.test_synchronizer import add, opened

RETAINED = 8
COMMITS = 4
"""The retention mark and the commit-deletion mark of the scenarios."""


def small_table() -> tuple[FakeRuntime, Any]:
    """A table of 12 versions, a minute apart; each adds a file and removes the one before."""
    runtime = FakeRuntime()
    log = table_log(memory(runtime), runtime)
    for n in range(1, 13):
        runtime.sleep(60)
        log.store.put(f"{log.path}/data/v0/f{n}", b"x")
        put(log, str(n), [event_add(f"data/v0/f{n}", 0, n, 1)], [f"data/v0/f{n - 1}"])
    raise_marks(log, COMMITS, COMMITS)
    raise_horizon(log, 12, RETAINED)
    return runtime, log


def removed_files_go_with_the_retention_mark() -> None:
    _, log = small_table()
    assert delete_unreferenced_files(log).files == RETAINED - 1
    left = [entry.key for entry in log.store.list(f"{log.path}/data")]
    assert f"{log.path}/data/v0/f{RETAINED}" in left, "version 8 holds it"
    assert f"{log.path}/data/v0/f{RETAINED - 1}" not in left, "version 8 removed it"
    raise_horizon(log, 12, RETAINED + 2)
    assert delete_unreferenced_files(log, now_ms=FULL_LISTING_MS).files == 2, "all are listed again"


def next_sweep_uses_the_retention_mark() -> None:
    _, log = small_table()
    delete_unreferenced_files(log)
    raise_horizon(log, 12, RETAINED + 2)
    assert delete_unreferenced_files(log).files == 2


def commits_stay_from_their_own_mark_on() -> None:
    runtime, log = small_table()
    for version in (3, 6, 12):
        maintain(log.reader, version, checkpoint=True)
    mark_has_aged(log)
    runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
    assert delete_old_commits(log) == 2
    assert versions(log)[:2] == [0, 3]


def log_that_ended_is_kept_until_its_commits_may_go() -> None:
    runtime, log = small_table()
    last = versions(log)[-1] + 1
    marks = encode_log_domain(last, last, COMMITS, 1)  # the newest version alone is retained
    log.commit(lambda snapshot: (Body("TEST", domains={LOG_DOMAIN: marks}), None))
    mark_has_aged(log)
    runtime.sleep(CLEANUP_WAIT_SECONDS + 1)
    assert delete_ended_log(log) == 0
    assert versions(log)[:2] == [0, 1]


def late_process_believes_a_log_whose_commits_are_all_there() -> None:
    fresh = table_log(MemoryStore())
    for n in range(6):
        put(fresh, str(n))
    raise_horizon(fresh, 5, 5)
    maintain(fresh.reader, 7)
    first = LogReader(fresh.store, fresh.path).open(below=1)
    assert first is not None
    assert not fresh._follower.was_cleaned_past(first[0])


def versions_between_the_marks_have_an_age() -> None:
    _, log = small_table()
    ages = VersionAges.read(log)
    assert ages.version_at(ages.written_ms(6)) == 6


def search_by_events_finds_versions_between_the_marks() -> None:
    stream = make_stream()
    for n in range(12):
        write(stream, [("k", b"%d" % n)])
    raise_marks(stream.log, COMMITS, COMMITS)
    raise_horizon(stream.log, 12, RETAINED)
    stream = reopen(stream)
    entries = LogRetentionSet(stream, stream.view(), VersionAges.read(stream.log))
    before, after = entries.partition(lambda entry: entry.version <= 6)
    assert before is not None
    assert after is not None
    assert (before.version, after.version) == (6, 7)


def stored_rates_between_the_marks_are_continued() -> None:
    runtime = FakeRuntime()
    stream = stream_with(BY_EVENTS, memory(runtime), runtime)
    load(stream, seconds=100, rate=1)
    view = stream.view()
    rates, _ = scaling_rates.read_rates(stream, view, PACE, runtime.now_ms())
    rates.segments[0].events = (9.0, 9.0, 9.0, 9.0)
    scaling_rates.store_rates(stream, rates)
    for n in range(3):
        put(stream.log, str(n))
    raise_horizon(stream.log, view.version + 3, view.version + 2)
    found, _ = scaling_rates.read_rates(stream, stream.view(), PACE, runtime.now_ms())
    assert found.segments[0].since_ms == rates.segments[0].since_ms
    assert max(found.segments[0].events) > 5.0, "the stored rates decay from 9"


def copy_needs_every_commit_from_its_own_mark_on() -> None:
    _, log = small_table()
    newest = log.refresh()
    log.store.delete([log.reader.key(COMMITS + 1)])
    with pytest.raises(CorruptLog, match=f"version {COMMITS + 1} of the log is missing"):
        copy.copy_log(log, LogReader(MemoryStore(), log.path), newest, is_begun=False)


def compaction_returns_the_version_that_it_released() -> None:
    state = opened(MemoryStore())
    state.initialise({"a": 0})
    for _ in range(3):
        state.update("ADD", add("a"))
    first = state.compact()
    assert first == 0
    assert state.compact() > 0


def outcome_between_the_marks_is_dated_by_its_commit() -> None:
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime)
    for n in range(6):
        write(stream, [("k", b"%d" % n)])
    # The clock of its writer was decades behind.
    behind = TransactionOutcome("t", True, 0, 1, 7, "token")
    domain = f"{OUTCOME_PREFIX}t"
    body = Body("TEST", domains={domain: behind.encode()})
    stream.log.commit(lambda snapshot: (body, None))
    for n in range(4):
        write(stream, [("k", b"%d" % n)])
    raise_marks(stream.log, COMMITS, COMMITS)
    raise_horizon(stream.log, 10, 9)
    day = 86_400_000
    stream_sweep.sweep_stream(stream, grace_ms=day, retain_ms=day, completed_ms=day)
    assert domain in stream.view().snapshot.domains


def commits_are_deleted_although_every_minute_a_sweep_moves_the_retention_mark() -> None:
    runtime = FakeRuntime()
    log = table_log(memory(runtime), runtime)
    for n in range(180):
        put(log, str(n))
        put(log, str(n))
        runtime.sleep(60)
        if n % 20 == 0:
            maintain(log.reader, log.snapshot.version, checkpoint=True)  # type: ignore[union-attr]
        sweep_table(log, grace_ms=60_000, retain_ms=60_000)
    assert versions(log)[1] > 100


def pin_stops_both_marks() -> None:
    runtime, log = small_table()
    pin(log, "backup", keep_ms=10**12)
    raise_marks(log, 13, 13)
    snapshot = log.refresh()
    assert (snapshot.retention_mark, snapshot.commit_deletion_mark) == (RETAINED, COMMITS)
    runtime.sleep(2 * CLEANUP_WAIT_SECONDS)
    sweep_table(log, grace_ms=0, retain_ms=0)
    snapshot = log.refresh()
    assert (snapshot.retention_mark, snapshot.commit_deletion_mark) == (RETAINED, COMMITS)


Use = tuple[Callable[[], None], Any, str, str, str]
SWAP = ("commit_deletion_mark", "retention_mark")
MOVES = "aged_since == snapshot.commit_deletion_set_version"
USES: list[Use] = [
    (removed_files_go_with_the_retention_mark, sweep, "_delete_all", *SWAP[::-1]),
    (
        next_sweep_uses_the_retention_mark,
        sweep,
        "_delete_new",
        *SWAP[::-1],
    ),
    (commits_stay_from_their_own_mark_on, sweep, "delete_old_commits", *SWAP),
    (log_that_ended_is_kept_until_its_commits_may_go, sweep, "delete_ended_log", *SWAP),
    (
        late_process_believes_a_log_whose_commits_are_all_there,
        LogFollower,
        "was_cleaned_past",
        *SWAP,
    ),
    (versions_between_the_marks_have_an_age, VersionAges, "version_at", *SWAP),
    (search_by_events_finds_versions_between_the_marks, LogRetentionSet, "partition", *SWAP),
    (stored_rates_between_the_marks_are_continued, scaling_rates, "_stored", *SWAP),
    (copy_needs_every_commit_from_its_own_mark_on, copy, "copy_log", *SWAP),
    (compaction_returns_the_version_that_it_released, Synchronizer, "compact", *SWAP[::-1]),
    (outcome_between_the_marks_is_dated_by_its_commit, stream_sweep, "_ended_records", *SWAP),
    (
        commits_are_deleted_although_every_minute_a_sweep_moves_the_retention_mark,
        retained,
        "raise_horizon",
        MOVES,
        "True",
    ),
    (pin_stops_both_marks, retained, "raise_horizon", "not is_pinned(snapshot)", "True"),
]


@pytest.mark.parametrize("use", USES, ids=lambda use: use[0].__name__)
def test_right_mark_is_used(use: Use) -> None:
    use[0]()


@pytest.mark.parametrize("use", USES, ids=lambda use: use[0].__name__)
def test_wrong_mark_is_caught(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, owner, name, right, wrong = use
    original = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(original))
    assert right in source
    names = dict(original.__globals__)
    exec(compile(source.replace(right, wrong), f"<mutant of {name}>", "exec"), names)
    mutant = names[name]
    monkeypatch.setattr(owner, name, mutant)
    for module in list(sys.modules.values()):  # also where it was imported by its name
        if getattr(module, name, None) is original:
            monkeypatch.setattr(module, name, mutant)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        scenario()
