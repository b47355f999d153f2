"""The record of a root's maintenance: a state table by which processes share the work.

A process claims a kind of work by compare-and-set, with an end by the storage's clock, and records
the run when it has reached all streams. The claim only saves work: all runs may be repeated, and
two at the same time do no harm.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from pravega_spark.engine.json_codec import DECODE_ERRORS, decode_error_text
from pravega_spark.engine.log.table_sweep import sweep_table
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.processes import has_ended, identity
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.lease_watch import watch_of
from pravega_spark.engine.store.reserve import freeing
from pravega_spark.engine.store.root_marker import read_root
from pravega_spark.engine.tables.maintenance_entry import (
    MAINTENANCE_SCHEMA,
    NOTHING_FAILED,
    Entries,
    FinishedRun,
    MaintenanceEntry,
    RunClaim,
    RunProgress,
    decode_entries,
    encode_entry,
    entry_of,
    overlapping,
    shortened,
    without_old_scopes,
)
from pravega_spark.engine.tables.open_tables import OpenTables
from pravega_spark.engine.tables.row_files import Rows
from pravega_spark.engine.tables.state_table import Decide, StateTable, TableChange, TableState
from pravega_spark.errors import CorruptLog, Damaged, RootChanged, StoreError, without_credentials
from pravega_spark.limits import CLAIM_MS, RECORD_RETAIN_MS, RECORD_SWEEP_COMMITS
from pravega_spark.model import MaintenanceKind
from pravega_spark.root_settings import AUTO

logger = own_logger(__name__)

MAINTENANCE_TABLE: Final = "_maintenance"
"""A folder of the root; no scope has such a name."""
JOB: Final = "job"
"""What does a run: a scheduled job, or a process with ``maintain="auto"``, which is AUTO."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class ClaimedWork:
    """A kind of work that this process has claimed, for all scopes (None) or for some."""

    kind: MaintenanceKind
    scopes: tuple[str | None, ...]
    claim: RunClaim
    progress: RunProgress | None = None
    """The progress of the run that this process continues."""


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

    def entries(self, *, heal: bool = False) -> Entries:
        """Return what is recorded now; one storage call if nothing changed.

        With ``heal``, a record that cannot be read begins again.
        """
        try:
            return self._decode(self.table.read().rows)
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
                f"({decode_error_text(error)}). The next run of maintenance begins it again; it "
                "holds nothing else.",
                path=where,
            ) from error

    def about_now_ms(self) -> int:
        """Return the storage's time within a few seconds, without a call."""
        return self.table.log.clock.now_ms()

    def claim(
        self,
        kind: MaintenanceKind,
        scopes: Iterable[str | None],
        by: str,
        is_wanted: Callable[[Entries, int], bool] = lambda entries, now_ms: True,
    ) -> ClaimedWork | None:
        """Claim a kind of work; None if another process has it, or if it is not wanted any more.

        ``is_wanted`` is asked on the state that the claim is committed on, with the time.
        """
        names = tuple(scopes)
        with self._watch.call(self._runtime):
            now_ms = self._store.time_ms()
        mark = RunClaim(
            self._runtime.token(), worker_text(by), identity(), now_ms, now_ms + CLAIM_MS
        )

        def decide(entries: Entries) -> tuple[Entries | None, ClaimedWork | None]:
            recent = self._is_after_outage()
            if blocking_claim(entries, kind, names, now_ms, is_after_outage=recent):
                return None, None
            if not is_wanted(entries, now_ms):
                return None, None
            mine = [entry_of(entries, kind, scope) for scope in names]
            progress = mine[0].progress if names == (None,) else None
            claimed = {entry.work: replace(entry, claim=mark) for entry in mine}
            return {**entries, **claimed}, ClaimedWork(kind, names, mark, progress)

        return self._change("CLAIM MAINTENANCE", kind, decide)

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

        return self._change("EXTEND MAINTENANCE", work.kind, decide)

    def release(self, work: ClaimedWork, progress: RunProgress | None = None) -> None:
        """End a claim before its end, and record the progress if there is some.

        Does nothing if the claim is another process's by now: that one continues.
        """

        def decide(entries: Entries) -> tuple[Entries | None, None]:
            changed = {
                e.work: replace(e, claim=None, progress=progress or e.progress)
                for e in _claimed(entries, work)
            }
            return ({**entries, **changed} if changed else None), None

        self._change("RELEASE MAINTENANCE", work.kind, decide)

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

        self._change("FINISH MAINTENANCE", kind, decide)
        self._sweep()

    def finish_shares(self, work: ClaimedWork, progress: RunProgress) -> None:
        """Record a run whose last share has just ended, and end the claim of it.

        Does nothing if the claim is another process's by now: that one finishes the run.
        """
        now_ms = self._store.time_ms()
        counts = progress.streams, progress.failed, progress.failures
        run = FinishedRun(worker_text(AUTO), progress.started_ms, now_ms, *counts)

        def decide(entries: Entries) -> tuple[Entries | None, None]:
            changed = {
                entry.work: MaintenanceEntry(work.kind, entry.scope, run)
                for entry in _claimed(entries, work)
            }
            kept = without_old_scopes({**entries, **changed}, now_ms)
            return (kept if changed else None), None

        self._change("FINISH MAINTENANCE", work.kind, decide)
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
        run = FinishedRun(worker_text(by), started_ms, now_ms, streams, len(failures), failures)
        self.finish(kind, scopes, run, work)

    def _change(
        self,
        operation: str,
        kind: MaintenanceKind,
        decide: Callable[[Entries], tuple[Entries | None, _Value]],
    ) -> _Value:
        def change(state: TableState) -> tuple[TableChange | None, _Value]:
            known = self._decode(state.rows)
            entries, value = decide(known)
            if entries is None:
                return None, value
            rows = {work: row for work, row in state.rows.items() if work not in known}
            rows |= {work: encode_entry(entry) for work, entry in entries.items()}
            return TableChange(operation, rows, parameters={"kind": kind.value}), value

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
        with freeing(self._store):
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


def _claimed(entries: Entries, work: ClaimedWork) -> list[MaintenanceEntry]:
    """Return the entries that still have the claim."""
    entered = (entry_of(entries, work.kind, scope) for scope in work.scopes)
    return [e for e in entered if e.claim is not None and e.claim.token == work.claim.token]


def worker_text(by: str) -> str:
    """Return what does a run, for people: ``job on host-1, process 4711``."""
    return f"{by} on {socket.gethostname()}, process {os.getpid()}"


_opened = OpenTables(MaintenanceTable)


def open_maintenance(store: Store, runtime: Runtime = SYSTEM) -> MaintenanceTable:
    """Return this process's table of a root, so that a repeated read costs one storage call."""
    return _opened.get(store, runtime)
