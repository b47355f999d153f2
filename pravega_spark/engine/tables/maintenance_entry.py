"""What is recorded of a root's maintenance: last run, claim and progress of each kind. Pure.

A row is of one kind, for all scopes or for one. A time that lies in the future was written by a
clock that was ahead, so it proves nothing: the run is due, and the claim has ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.tables.row_files import Row, Rows
from pravega_spark.limits import (
    CLOCK_SKEW_MS,
    OVERDUE_INTERVALS,
    OVERDUE_MS,
    RECORD_FAILURE_CHARACTERS,
    RECORD_FAILURES,
    SCOPE_RECORD_MS,
)
from pravega_spark.model import MaintenanceInfo, MaintenanceKind
from pravega_spark.root_settings import EffectiveSettings
from pravega_spark.units import time_text

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
        return RunProgress(self.started_ms, after, self.streams + streams, failed, named)


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
    return {
        MaintenanceKind.RETENTION: settings.retention_interval_ms,
        MaintenanceKind.SCALING: settings.scaling_interval_ms,
        MaintenanceKind.TRANSACTIONS: settings.transactions_interval_ms,
        MaintenanceKind.COMPACTION: settings.compaction_interval_ms,
        MaintenanceKind.FOLDING: settings.folding_interval_ms,
        MaintenanceKind.SWEEPING: settings.sweeping_interval_ms,
        MaintenanceKind.WATERMARKS: settings.watermarks_interval_ms,
    }


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
    entries: Entries, intervals_ms: Mapping[MaintenanceKind, int], now_ms: int
) -> list[MaintenanceInfo]:
    """Return what is recorded of each kind: first over all scopes, then of single scopes."""
    whole = {work_of(kind, None): MaintenanceEntry(kind) for kind in MaintenanceKind}
    order = {kind: number for number, kind in enumerate(MaintenanceKind)}
    found = {**whole, **entries}.values()
    ordered = sorted(found, key=lambda entry: (order[entry.kind], entry.scope or ""))
    return [_info(entry, intervals_ms[entry.kind], now_ms) for entry in ordered]


def _info(entry: MaintenanceEntry, interval_ms: int, now_ms: int) -> MaintenanceInfo:
    finished_ms, last, claim = entry.finished_ms(now_ms), entry.last, entry.claim
    is_claimed = claim is not None and claim.is_current(now_ms)
    return MaintenanceInfo(
        entry.kind,
        entry.scope,
        interval_ms / 1_000,
        finished_ms is None or now_ms - finished_ms > _overdue_ms(interval_ms),
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
