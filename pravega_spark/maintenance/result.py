"""What maintenance did: with one stream, for each kind of work, and in total."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.log.sweep import SweepResult, pending_text
from pravega_spark.values.units import count_text, size_text


@dataclass(frozen=True, slots=True)
class WorkOutcome:
    """What a kind of work did, or of a dry run would do."""

    unit: str
    """A stream, a scope whose own tables were swept, or "" for the root's."""
    kind: MaintenanceKind
    did: str = ""
    """For people; empty if nothing was to be done."""
    left: str = ""
    """What could not be done yet, why, and from when on it can; for people."""
    figures: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    """An error for each thing that failed."""
    version: int = -1
    """The newest version of the stream's log before the work; -1 if it is not known."""
    written_ms: int = -1
    """When the commit of that version was written."""
    due_ms: int = 0
    """When the work is due again without a newer version."""
    checked_ms: int = 0
    """A time before the version was read."""

    def row(self) -> dict[str, Any]:
        """Return the outcome as a JSON object, in which it travels between processes."""
        return {
            "unit": self.unit,
            "kind": self.kind.value,
            "did": self.did,
            "left": self.left,
            "figures": dict(self.figures),
            "failures": dict(self.failures),
            "version": self.version,
            "written_ms": self.written_ms,
            "due_ms": self.due_ms,
            "checked_ms": self.checked_ms,
        }

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> WorkOutcome:
        """Return the outcome of such an object."""
        return cls(**{**row, "kind": MaintenanceKind(row["kind"])})


def unit_text(unit: str) -> str:
    """Return what a unit is, for people."""
    if not unit:
        return "the root's tables"
    return f"stream {unit}" if "/" in unit else f"tables of scope {unit}"


class SweptWork(NamedTuple):
    """The sweeps of a stream or of some tables."""

    did: str
    """What they deleted, for people; empty if nothing."""
    left: str
    """Which files wait, why, and why no mark moved; empty if no file waits."""
    figures: Mapping[str, int]


def swept_work(found: Iterable[SweepResult], now_ms: int, *, dry_run: bool = False) -> SweptWork:
    """Return the sums of some sweeps."""
    figures = Counter(
        dict.fromkeys(("files", "bytes", "commits", "pending_files", "pending_bytes", "unmoved"), 0)
    )
    waits, unmoved = list[str](), dict[str, None]()
    for swept in found:
        figures.update(files=swept.files, bytes=swept.size_bytes, commits=swept.commits)
        for part in swept.pending:
            figures.update(pending_files=part.files, pending_bytes=part.size_bytes)
            waits.append(f"kept {pending_text(part, now_ms)}")
        if swept.unmoved:
            figures["unmoved"] += 1
            unmoved[swept.unmoved] = None
    files, commits = figures["files"], figures["commits"]
    did = ""
    if files or commits:
        size = f"{count_text(files, 'file')} ({size_text(figures['bytes'])})"
        did = (
            f"would delete {size}"
            if dry_run
            else f"deleted {size} and {count_text(commits, 'commit')}"
        )
    return SweptWork(did, "; ".join([*waits, *unmoved]) if waits else "", dict(figures))


FIGURES: Mapping[MaintenanceKind, Sequence[str]] = {
    MaintenanceKind.RETENTION: ("truncated", "events", "bytes", "expired"),
    MaintenanceKind.SCALING: ("splits", "merges"),
    MaintenanceKind.TRANSACTIONS: ("committed", "aborted", "cleared"),
    MaintenanceKind.COMPACTION: ("files_before", "files_after", "bytes_read", "bytes_written"),
    MaintenanceKind.FOLDING: ("folds", "keys", "bytes_written"),
    MaintenanceKind.SWEEPING: (
        *("files", "bytes", "commits", "pending_files", "pending_bytes", "unmoved"),
    ),
    MaintenanceKind.WATERMARKS: ("recorded", "dropped"),
}
"""The figures of each kind, which are sums over all streams."""


@dataclass(frozen=True, slots=True)
class KindResult:
    """What a round did of one kind of maintenance."""

    kind: MaintenanceKind
    looked_at: int = 0
    """Streams, and other tables, that were looked at fully."""
    changed: int = 0
    """Of these, those at which something was done; of a dry run, would be done."""
    figures: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    """An error for each stream or table that failed."""
    claimed_by: str = ""
    """What has claimed this kind, which the round therefore left out; or an empty text."""

    left: int = 0
    """Streams that were left to it."""

    @property
    def left_text(self) -> str:
        """What was left to another job, for people."""
        return f"{count_text(self.left, 'stream')} left to {self.claimed_by}"

    def __str__(self) -> str:
        if self.claimed_by:
            return f"{self.kind.value}: {self.left_text}"
        parts = [f"{count:,} {name.replace('_', ' ')}" for name, count in self.figures.items()]
        looked = f"{self.looked_at:,} looked at, {self.changed:,} changed"
        return f"{self.kind.value}: {looked}, {len(self.failures):,} failed ({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """What one round of maintenance did."""

    streams: int
    """Streams that the round reached, idle and failed ones included."""
    idle: int
    """Of these, those that had nothing new and were not due: one storage call each."""
    kinds: Mapping[MaintenanceKind, KindResult]
    changes: tuple[WorkOutcome, ...] = ()
    """What was done at each stream, or failed, by name; in a dry run then what waits."""
    seconds: float = 0.0
    dry_run: bool = False
    stopped: bool = False
    """Whether the round was stopped before it had reached all streams."""

    @property
    def failures(self) -> dict[str, str]:
        """The error of each thing that failed, with the kind of work before it."""
        return {
            f"{found.kind.value} of {what}": error
            for found in self.kinds.values()
            for what, error in found.failures.items()
        }

    @property
    def failure_lines(self) -> dict[str, str]:
        """The failures for people: kinds of work that failed at a thing by one error share a line.

        So a stream that hangs is not shown once for each kind that was not begun.
        """
        kinds = dict[tuple[str, str], list[str]]()
        for found in self.kinds.values():
            for failure in found.failures.items():
                kinds.setdefault(failure, []).append(found.kind.value)
        return {f"{', '.join(names)} of {what}": error for (what, error), names in kinds.items()}

    def counts(self) -> dict[str, int]:
        """Return all figures as one flat object, such as ``retention_events``."""
        flat = {
            f"{found.kind.value}_{name}": count
            for found in self.kinds.values()
            for name, count in found.figures.items()
        }
        return {"streams": self.streams, "idle": self.idle, "left": self.left, **flat}

    @property
    def left(self) -> int:
        """Streams of which at least one kind was left to another job."""
        return max((found.left for found in self.kinds.values()), default=0)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return a row of unit, kind and text for each change and failure.

        Kinds of work that failed at a unit by one error share a row.
        """
        left = [
            ("all streams", found.kind.value, found.left_text)
            for found in self.kinds.values()
            if found.claimed_by
        ]
        kinds = dict[tuple[str, str], list[str]]()
        for found in self.changes:
            text = "; ".join(filter(None, (found.did, found.left)))
            text = text or "failed: " + "; ".join(found.failures.values())
            kinds.setdefault((found.unit, text), []).append(found.kind.value)
        return left + [
            (unit_text(unit).removeprefix("stream "), ", ".join(names), text)
            for (unit, text), names in kinds.items()
        ]

    def __str__(self) -> str:
        left = f", {self.left:,} left to others" if self.left else ""
        lines = [
            f"{count_text(self.streams, 'stream')}, {self.idle:,} idle{left}, in "
            f"{self.seconds:.1f} s"
        ]
        return "\n".join([*lines, *(f"  {found}" for found in self.kinds.values())])


def no_counts(kinds: Iterable[MaintenanceKind]) -> dict[str, int]:
    """Return the counts of a round that reached nothing."""
    empty = {kind: KindResult(kind, figures=dict.fromkeys(FIGURES[kind], 0)) for kind in kinds}
    return MaintenanceResult(0, 0, empty).counts()


def kind_result(
    kind: MaintenanceKind, outcomes: Iterable[WorkOutcome], listing: Mapping[str, str]
) -> KindResult:
    """Return the sums of the outcomes of a kind; ``listing`` are errors of whole scopes."""
    sums, failures = Counter(dict.fromkeys(FIGURES[kind], 0)), dict(listing)
    looked_at = changed = 0
    for found in outcomes:
        looked_at += 1
        changed += bool(found.did)
        sums.update(found.figures)
        failures |= found.failures
    return KindResult(
        kind, looked_at=looked_at, changed=changed, figures=dict(sums), failures=failures
    )
