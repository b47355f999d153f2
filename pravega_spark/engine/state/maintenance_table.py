"""The record of a root's maintenance: last run, claim and progress of each kind of work.

A process claims a kind of work by compare-and-set, with an end by the storage's clock, and records
the run when it has reached all streams. The claim only saves work: all runs may be repeated, and
two at the same time do no harm.

The record of a root's maintenance: last run, claim and progress of each kind. Pure. A row is
of one kind, for all scopes or for one. A time that lies in the future was written by a clock that
was ahead, so it proves nothing: the run is due, and the claim has ended.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

import pyarrow as pa

from pravega_spark.config.descriptions import MaintenanceInfo, MaintenanceKind
from pravega_spark.config.root_settings import AUTO, EffectiveSettings
from pravega_spark.engine.log.sweep import sweep_table
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, decode_error_text, to_json
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.processes import has_ended, identity
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.state_table import (
    Decide,
    OpenTables,
    Row,
    Rows,
    StateTable,
    TableChange,
    TableState,
)
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.engine.store.root_marker import read_root
from pravega_spark.errors import (
    CorruptLog,
    Damaged,
    PravegaSparkError,
    RootChanged,
    StoreError,
    without_credentials,
)
from pravega_spark.values.limits import (
    CLAIM_MS,
    CLOCK_SKEW_MS,
    OVERDUE_INTERVALS,
    OVERDUE_MS,
    RECORD_FAILURE_CHARACTERS,
    RECORD_FAILURES,
    RECORD_RETAIN_MS,
    RECORD_SWEEP_COMMITS,
    SCOPE_RECORD_MS,
)
from pravega_spark.values.units import time_text

MAINTENANCE_SCHEMA: Final = pa.schema(
    [
        ("work", pa.string()),
        ("kind", pa.string()),
        ("scope", pa.string()),
        ("started", pa.int64()),
        ("finished", pa.int64()),
        ("by", pa.string()),
        ("streams", pa.int64()),
        ("failed", pa.int64()),
        ("failures", pa.string()),
        ("progress", pa.string()),
        ("claim", pa.string()),
        ("claimed_by", pa.string()),
        ("process", pa.string()),
        ("claimed", pa.int64()),
        ("claimed_until", pa.int64()),
    ]
)
NOTHING_FAILED: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RunClaim:
    """A process that does the work now, until it ends or the claim does."""

    token: str
    by: str
    process: str
    """The identity of the process, from which others on its machine see that it has ended."""
    at_ms: int
    until_ms: int

    def is_current(self, now_ms: int) -> bool:
        """Return whether the time is within the claim."""
        return self.at_ms - CLOCK_SKEW_MS <= now_ms < self.until_ms


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A run in several shares: its counts so far, and the stream after which the next continues."""

    started_ms: int
    after: str = ""
    streams: int = 0
    failed: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)

    def add(self, after: str, streams: int, failures: Mapping[str, str]) -> RunProgress:
        """Return the progress after one more share."""
        failed = self.failed + len(failures)
        named = shortened({**self.failures, **failures})
        return RunProgress(
            self.started_ms, after, streams=self.streams + streams, failed=failed, failures=named
        )


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that reached every stream."""

    by: str
    started_ms: int
    finished_ms: int
    streams: int
    failed: int
    failures: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MaintenanceEntry:
    """The record of one kind, over all scopes or over one."""

    kind: MaintenanceKind
    scope: str | None = None
    last: FinishedRun | None = None
    progress: RunProgress | None = None
    claim: RunClaim | None = None

    @property
    def work(self) -> str:
        """The key of the row."""
        return work_of(self.kind, self.scope)

    def finished_ms(self, now_ms: int) -> int | None:
        """Return when the last run finished, unless the record of that cannot be right."""
        if self.last is None or self.last.finished_ms > now_ms + CLOCK_SKEW_MS:
            return None
        return self.last.finished_ms

    def is_due(self, now_ms: int, interval_ms: int) -> bool:
        """Return whether a run is to begin, or to continue."""
        finished_ms = self.finished_ms(now_ms)
        is_old = finished_ms is None or now_ms - finished_ms >= interval_ms
        return is_old or self.progress is not None


Entries = Mapping[str, MaintenanceEntry]
"""The entries by their keys."""


def work_of(kind: MaintenanceKind, scope: str | None) -> str:
    """Return the key of the row of a kind."""
    return kind.value if scope is None else f"{kind.value}/{scope}"


def entry_of(entries: Entries, kind: MaintenanceKind, scope: str | None = None) -> MaintenanceEntry:
    """Return the entry of a kind; an empty one if nothing is recorded."""
    return entries.get(work_of(kind, scope)) or MaintenanceEntry(kind, scope)


def overlapping(
    entries: Entries, kind: MaintenanceKind, scopes: Iterable[str | None]
) -> list[MaintenanceEntry]:
    """Return the entries whose streams are among those of the scopes; None is all scopes."""
    wanted = set(scopes)
    return [
        entry
        for entry in entries.values()
        if entry.kind is kind and (None in wanted or entry.scope is None or entry.scope in wanted)
    ]


def shortened(failures: Mapping[str, str]) -> dict[str, str]:
    """Return as many failures, and as much of each error, as a record holds."""
    named = sorted(failures.items())[:RECORD_FAILURES]
    return {name: text[:RECORD_FAILURE_CHARACTERS] for name, text in named}


def without_old_scopes(entries: Entries, now_ms: int) -> dict[str, MaintenanceEntry]:
    """Return the entries without those of scopes that nobody maintains on their own any more."""

    def is_kept(entry: MaintenanceEntry) -> bool:
        times = [0 if entry.last is None else entry.last.finished_ms]
        times += [0 if entry.claim is None else entry.claim.at_ms]
        return entry.scope is None or now_ms - max(times) < SCOPE_RECORD_MS

    return {work: entry for work, entry in entries.items() if is_kept(entry)}


# ------------------------------------------------------------------------------------- for people


def intervals_ms(settings: EffectiveSettings) -> dict[MaintenanceKind, int]:
    """Return after how long a run of each kind is due again."""
    return {kind: getattr(settings, f"{kind.value}_interval_ms") for kind in MaintenanceKind}


def overdue_text(
    entries: Entries,
    kind: MaintenanceKind,
    scope: str,
    *,
    since_ms: int,
    now_ms: int,
    interval_ms: int,
) -> str | None:
    """Return that a kind has not run for a while, for a stream of ``scope``; None if it has.

    ``since_ms`` is the time from which on the stream needs the runs.
    """
    times = [entry_of(entries, kind, name).finished_ms(now_ms) for name in (None, scope)]
    finished_ms = max((time for time in times if time is not None), default=None)
    waits_ms = now_ms - max(since_ms, finished_ms or 0)
    if waits_ms <= _overdue_ms(interval_ms):
        return None
    if finished_ms is None:
        return f"{kind.value} has never run"
    return f"{kind.value} has not run for {time_text((now_ms - finished_ms) / 1_000)}"


def _overdue_ms(interval_ms: int) -> int:
    return max(OVERDUE_INTERVALS * interval_ms, OVERDUE_MS)


def describe(
    entries: Entries,
    intervals_ms: Mapping[MaintenanceKind, int],
    now_ms: int,
    *,
    since_ms: int = 0,
) -> list[MaintenanceInfo]:
    """Return what is recorded of each kind: first over all scopes, then of single scopes.

    ``since_ms`` is when the root began: before that nothing could run.
    """
    whole = {work_of(kind, None): MaintenanceEntry(kind) for kind in MaintenanceKind}
    order = {kind: number for number, kind in enumerate(MaintenanceKind)}
    found = {**whole, **entries}.values()
    ordered = sorted(found, key=lambda entry: (order[entry.kind], entry.scope or ""))
    return [_info(entry, intervals_ms[entry.kind], now_ms, since_ms) for entry in ordered]


def _info(entry: MaintenanceEntry, interval_ms: int, now_ms: int, since_ms: int) -> MaintenanceInfo:
    finished_ms, last, claim = entry.finished_ms(now_ms), entry.last, entry.claim
    is_claimed = claim is not None and claim.is_current(now_ms)
    return MaintenanceInfo(
        entry.kind,
        entry.scope,
        interval_ms / 1_000,
        now_ms - max(since_ms, finished_ms or 0) > _overdue_ms(interval_ms),
        finished_ms=None if last is None else last.finished_ms,
        age_seconds=None if finished_ms is None else max(0, now_ms - finished_ms) / 1_000,
        by=None if last is None else last.by,
        started_ms=None if last is None else last.started_ms,
        streams=0 if last is None else last.streams,
        failed=0 if last is None else last.failed,
        failures=NOTHING_FAILED if last is None else last.failures,
        claimed_by=claim.by if claim is not None and is_claimed else None,
        claimed_until_ms=claim.until_ms if claim is not None and is_claimed else None,
        streams_so_far=0 if entry.progress is None else entry.progress.streams,
    )


# ------------------------------------------------------------------------------------------- rows


def encode_entry(entry: MaintenanceEntry) -> Row:
    """Return the row of an entry."""
    last, progress, claim = entry.last, entry.progress, entry.claim
    row: dict[str, Any] = dict.fromkeys(MAINTENANCE_SCHEMA.names)
    row |= {"work": entry.work, "kind": entry.kind.value, "scope": entry.scope}
    if last is not None:
        row |= {"started": last.started_ms, "finished": last.finished_ms, "by": last.by}
        row |= {"streams": last.streams, "failed": last.failed}
        row["failures"] = to_json(dict(last.failures))
    if progress is not None:
        row["progress"] = to_json(
            {
                "started": progress.started_ms,
                "after": progress.after,
                "streams": progress.streams,
                "failed": progress.failed,
                "failures": dict(progress.failures),
            }
        )
    if claim is not None:
        row |= {"claim": claim.token, "claimed_by": claim.by, "process": claim.process}
        row |= {"claimed": claim.at_ms, "claimed_until": claim.until_ms}
    return row


def decode_entries(rows: Rows) -> dict[str, MaintenanceEntry]:
    """Return the entries of the rows; kinds that only a newer version knows are left out."""
    known = {kind.value: kind for kind in MaintenanceKind}
    return {
        work: _decode(row, known[row["kind"]]) for work, row in rows.items() if row["kind"] in known
    }


def _decode(row: Row, kind: MaintenanceKind) -> MaintenanceEntry:
    last, progress, claim = None, None, None
    if row["finished"] is not None:
        counts = row["streams"], row["failed"], json.loads(row["failures"])
        last = FinishedRun(row["by"], row["started"], row["finished"], *counts)
    if row["progress"] is not None:
        made = json.loads(row["progress"])
        counts = made["streams"], made["failed"], made["failures"]
        progress = RunProgress(made["started"], made["after"], *counts)
    if row["claim"] is not None:
        times = row["claimed"], row["claimed_until"]
        claim = RunClaim(row["claim"], row["claimed_by"], row["process"], *times)
    return MaintenanceEntry(kind, row["scope"], last, progress, claim)


logger = own_logger(__name__)

MAINTENANCE_TABLE: Final = "_maintenance"
"""A folder of the root; no scope has such a name."""
JOB: Final = "job"
"""What does a run: a scheduled job, or a process with ``maintain="auto"``, which is AUTO."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class ClaimedWork:
    """Kinds of work that this process has claimed at once, for all scopes (None) or for some."""

    kinds: tuple[MaintenanceKind, ...]
    scopes: tuple[str | None, ...]
    claim: RunClaim
    progress: Mapping[MaintenanceKind, RunProgress] = field(default_factory=dict)
    """The progress of the runs that this process continues; all continue after one stream."""
    is_recorded: bool = True
    """Whether others see the claim, and the record holds what is done."""


class MaintenanceTable:
    """The record of one root; thread-safe."""

    def __init__(self, store: Store, runtime: Runtime = SYSTEM) -> None:
        """Name the table; nothing is read yet, and it need not exist."""
        self._store = store
        self._runtime = runtime
        self._watch = watch_of(store)
        self._unswept: int | None = None
        """The first version that this process committed since it last decided whether to sweep."""
        self._open()

    @property
    def root_url(self) -> str:
        """The root of which this is the record."""
        return self._store.url

    def entries(self, *, heal: bool = False, refresh: bool = True) -> Entries:
        """Return what is recorded now; one storage call if nothing changed.

        With ``heal``, a record that cannot be read begins again. Without ``refresh`` it is what
        this process knows, such as after a claim, and costs no call.
        """
        try:
            return self._decode(self.table.read(refresh=refresh).rows)
        except Damaged as error:
            if not heal:
                raise
            self._begin_again(error)
            return {}

    def _decode(self, rows: Rows) -> Entries:
        try:
            return decode_entries(rows)
        except DECODE_ERRORS as error:
            where = self.table.log.reader.where
            raise CorruptLog(
                f"{where}: a row of the record of maintenance is damaged "
                f"({decode_error_text(error)}). The next run of maintenance begins the record "
                "again; no other data is affected.",
                path=where,
            ) from error

    def about_now_ms(self) -> int:
        """Return the storage's time within a few seconds, without a call."""
        return self.table.log.clock.now_ms()

    def claim(
        self,
        kinds: Iterable[MaintenanceKind],
        scopes: Iterable[str | None],
        by: str,
        is_wanted: Callable[[MaintenanceKind, Entries, int], bool] = lambda *found: True,
    ) -> ClaimedWork | None:
        """Claim kinds of work in one commit, as far as no other process has them.

        None if nothing is left. ``is_wanted`` is asked on the state that the claim is committed on,
        with the time. Of kinds that would continue after different streams, those are claimed that
        continue where the first one does.
        """
        wanted, names = tuple(kinds), tuple(scopes)
        mark = self._claim_of(by)
        now_ms = mark.at_ms

        def decide(entries: Entries) -> tuple[Entries | None, ClaimedWork | None]:
            recent = self._is_after_outage()
            free = [
                kind
                for kind in wanted
                if not blocking_claim(entries, kind, names, now_ms, is_after_outage=recent)
                and is_wanted(kind, entries, now_ms)
            ]
            if not free:
                return None, None
            found = {kind: entry_of(entries, kind).progress for kind in free}
            progress = {k: p for k, p in found.items() if p is not None and names == (None,)}
            after = {kind: progress[kind].after if kind in progress else "" for kind in free}
            mine = [kind for kind in free if after[kind] == after[free[0]]]
            work = ClaimedWork(
                tuple(mine), names, mark, {k: p for k, p in progress.items() if k in mine}
            )
            claimed = {e.work: replace(e, claim=mark) for e in _entries_of(entries, work)}
            return {**entries, **claimed}, work

        return self._change("CLAIM MAINTENANCE", wanted, decide)

    def unclaimed(self, progress: Mapping[MaintenanceKind, RunProgress], by: str) -> ClaimedWork:
        """Return work over all scopes of which nothing is recorded, neither now nor at its end.

        For a full disk: the record would use up the space that deletions need.
        """
        return ClaimedWork(tuple(progress), (None,), self._claim_of(by), progress, False)

    def _claim_of(self, by: str) -> RunClaim:
        """Return a claim from now on, which nobody knows yet."""
        with self._watch.call(self._runtime):
            now_ms = self._store.time_ms()
        token, process = self._runtime.token(), identity()
        return RunClaim(token, worker_text(by), process, at_ms=now_ms, until_ms=now_ms + CLAIM_MS)

    def _is_after_outage(self) -> bool:
        """Return whether an outage that this process met ended less than a claim's length ago."""
        seconds = CLAIM_MS / 1_000
        return self._runtime.monotonic() - self._watch.outage_ended(seconds) < seconds

    def extend(self, work: ClaimedWork) -> bool:
        """Move the end of a claim; False if it is another process's by now."""
        with self._watch.call(self._runtime):
            until_ms = self._store.time_ms() + CLAIM_MS

        def decide(entries: Entries) -> tuple[Entries | None, bool]:
            changed = {
                entry.work: replace(entry, claim=replace(entry.claim, until_ms=until_ms))
                for entry in _claimed(entries, work)
                if entry.claim is not None
            }
            return ({**entries, **changed}, True) if changed else (None, False)

        return self._change("EXTEND MAINTENANCE", work.kinds, decide)

    def release(
        self,
        work: ClaimedWork,
        progress: Mapping[MaintenanceKind, RunProgress] = MappingProxyType({}),
    ) -> None:
        """End a claim before its end, and record the progress if there is some.

        Does nothing if the claim is another process's by now: that one continues.
        """

        def decide(entries: Entries) -> tuple[Entries | None, None]:
            changed = {
                e.work: replace(e, claim=None, progress=progress.get(e.kind, e.progress))
                for e in _claimed(entries, work)
            }
            return ({**entries, **changed} if changed else None), None

        self._change("RELEASE MAINTENANCE", work.kinds, decide)

    def finish(
        self,
        kind: MaintenanceKind,
        scopes: Iterable[str | None],
        run: FinishedRun,
        work: ClaimedWork | None = None,
    ) -> None:
        """Record a run that reached all streams of the scopes, and end the claim of it."""
        names = tuple(scopes)
        run = replace(run, failures=shortened(run.failures))

        def decide(entries: Entries) -> tuple[Entries, None]:
            ours = set() if work is None else {entry.work for entry in _claimed(entries, work)}
            changed = {}
            for entry in (entry_of(entries, kind, scope) for scope in names):
                claim = None if entry.work in ours else entry.claim
                changed[entry.work] = MaintenanceEntry(kind, entry.scope, run, None, claim)
            return without_old_scopes({**entries, **changed}, run.finished_ms), None

        self._change("FINISH MAINTENANCE", (kind,), decide)
        self._sweep()

    def finish_shares(
        self, work: ClaimedWork, progress: Mapping[MaintenanceKind, RunProgress]
    ) -> None:
        """Record runs whose last share has just ended, and end the claim of them.

        Does nothing if the claim is another process's by now: that one finishes the runs.
        """
        now_ms, by = self._store.time_ms(), worker_text(AUTO)
        runs = {
            kind: FinishedRun(by, p.started_ms, now_ms, p.streams, p.failed, p.failures)
            for kind, p in progress.items()
        }

        def decide(entries: Entries) -> tuple[Entries | None, None]:
            changed = {
                entry.work: MaintenanceEntry(entry.kind, entry.scope, runs[entry.kind])
                for entry in _claimed(entries, work)
            }
            kept = without_old_scopes({**entries, **changed}, now_ms)
            return (kept if changed else None), None

        self._change("FINISH MAINTENANCE", work.kinds, decide)
        self._sweep()

    def finish_now(
        self,
        kind: MaintenanceKind,
        scopes: Iterable[str | None],
        by: str,
        started_ms: int,
        streams: int,
        failures: Mapping[str, str] = NOTHING_FAILED,
        work: ClaimedWork | None = None,
    ) -> None:
        """Record a run that has just reached all streams of the scopes."""
        now_ms = self._store.time_ms()
        run = FinishedRun(
            by=worker_text(by),
            started_ms=started_ms,
            finished_ms=now_ms,
            streams=streams,
            failed=len(failures),
            failures=failures,
        )
        self.finish(kind, scopes, run, work)

    def _change(
        self,
        operation: str,
        kinds: Iterable[MaintenanceKind],
        decide: Callable[[Entries], tuple[Entries | None, _Value]],
    ) -> _Value:
        named = ", ".join(kind.value for kind in kinds)

        def change(state: TableState) -> tuple[TableChange | None, _Value]:
            known = self._decode(state.rows)
            entries, value = decide(known)
            if entries is None:
                return None, value
            rows = {work: row for work, row in state.rows.items() if work not in known}
            rows |= {work: encode_entry(entry) for work, entry in entries.items()}
            return TableChange(operation, rows, parameters={"kind": named}), value

        try:
            with self._watch.call(self._runtime):
                return self._changed(change)
        except Damaged as error:
            self._begin_again(error)
        except RootChanged:  # another process may have begun the record again
            read_root(self._store, refresh=True)
            self._open()
        except StoreError as error:
            self._check_folder(error)
            raise
        return self._changed(change)

    def _changed(self, change: Decide[_Value]) -> _Value:
        """Commit a change, without the space that the root keeps for deletions (``reserve``)."""
        value = self.table.change(change)[1]
        snapshot = self.table.log.snapshot
        if self._unswept is None and snapshot is not None:
            self._unswept = snapshot.version
        return value

    def _open(self) -> None:
        self.table = StateTable(
            self._store, MAINTENANCE_TABLE, MAINTENANCE_SCHEMA, "work", self._runtime
        )

    def _begin_again(self, error: Damaged) -> None:
        """Delete a record that cannot be read: it only saves work, and its runs are then due.

        A process that still knows the deleted log finds that the version before its next commit
        is missing, and opens the record again.
        """
        logger.warning(
            "the record of maintenance of %s could not be read and begins again, so that all work "
            "is due: %s",
            without_credentials(self._store.url),
            error,
            extra=log_fields("maintain", root=without_credentials(self._store.url)),
        )
        self._store.delete([entry.key for entry in self._store.list(MAINTENANCE_TABLE)])
        self._open()

    def _check_folder(self, error: StoreError) -> None:
        """Raise a clear error if something else lies where the record's folder belongs."""
        if self._store.exists(MAINTENANCE_TABLE):
            where = f"{self._store.url.rstrip('/')}/{MAINTENANCE_TABLE}"
            raise StoreError(
                f"{where} is a file, and the record of maintenance is a folder of that name. "
                "Delete the file; until then no run is recorded.",
                url=where,
            ) from error

    def _sweep(self) -> None:
        """Sweep the table from time to time, so that it does not grow with the number of runs.

        Of all processes, one sees each multiple of RECORD_SWEEP_COMMITS between its first commit
        and its last: every commit is between those of the process that made it.
        """
        log, first = self.table.log, self._unswept
        self._unswept = None
        if first is None or log.snapshot is None:
            return
        if (first - 1) // RECORD_SWEEP_COMMITS < log.snapshot.version // RECORD_SWEEP_COMMITS:
            sweep_table(log, grace_ms=RECORD_RETAIN_MS, retain_ms=RECORD_RETAIN_MS)


def blocking_claim(
    entries: Entries,
    kind: MaintenanceKind,
    scopes: Iterable[str | None],
    now_ms: int,
    *,
    is_after_outage: bool = False,
) -> RunClaim | None:
    """Return the claim of a process that does a part of the work now; None if none does.

    A process of this machine that has ended claims nothing; others are waited for. Soon after an
    outage, in which nobody could extend a claim, also those whose claims have ended.
    """
    for entry in overlapping(entries, kind, scopes):
        claim = entry.claim
        if claim is None or has_ended(claim.process):
            continue
        if claim.is_current(now_ms) or (is_after_outage and claim.until_ms <= now_ms):
            return claim
    return None


def _entries_of(entries: Entries, work: ClaimedWork) -> list[MaintenanceEntry]:
    return [entry_of(entries, kind, scope) for kind in work.kinds for scope in work.scopes]


def _claimed(entries: Entries, work: ClaimedWork) -> list[MaintenanceEntry]:
    """Return the entries that still have the claim."""
    entered = _entries_of(entries, work)
    return [e for e in entered if e.claim is not None and e.claim.token == work.claim.token]


def worker_text(by: str) -> str:
    """Return what does a run, for people: ``job on host-1, process 4711``."""
    return f"{by} on {socket.gethostname()}, process {os.getpid()}"


_opened = OpenTables(MaintenanceTable)


def open_maintenance(store: Store, runtime: Runtime = SYSTEM) -> MaintenanceTable:
    """Return this process's table of a root, so that a repeated read costs one storage call."""
    return _opened.get(store, runtime)


_EXTEND_SECONDS = CLAIM_MS / 3_000


class ClaimKeeper:
    """Keeps a claim from ``start`` to ``end``; if that is short, it commits nothing."""

    def __init__(
        self, table: MaintenanceTable, work: ClaimedWork, every_seconds: float = _EXTEND_SECONDS
    ) -> None:
        self._table = table
        self._work = work
        self._every_seconds = every_seconds
        self._ended = threading.Event()
        self.is_lost = False
        """Whether another process has the claim by now, since this one did not run for a while."""

    def start(self) -> None:
        """Extend the claim from now on."""
        name = f"pravega-claim-{self._work.kinds[0].value}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def end(self) -> None:
        """End the thread, without waiting for a commit that it is making."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._every_seconds):
            try:
                self.is_lost = not self._table.extend(self._work)
            except (PravegaSparkError, OSError) as error:  # the next attempt comes before the end
                kind, root = ", ".join(k.value for k in self._work.kinds), self._table.root_url
                logger.debug(
                    "could not extend the claim on %s of %s: %s",
                    kind,
                    root,
                    error,
                    extra=log_fields("claim", kind=kind, root=root),
                )
            if self.is_lost:
                return
