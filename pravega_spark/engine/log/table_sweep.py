"""Sweep a table: raise its horizon, delete unreferenced files, and delete old commits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from types import MappingProxyType

from pravega_spark.engine.log.checkpointing import checkpoint_due, maintain
from pravega_spark.engine.log.clock_record import Now
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.horizon import raise_horizon
from pravega_spark.engine.log.log_cleanup import delete_old_commits, mark_has_aged
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.sweep_record import Waiting
from pravega_spark.engine.log.unreferenced_files import delete_unreferenced_files
from pravega_spark.engine.log.version_ages import UNDATED, VersionAges
from pravega_spark.engine.log.version_pins import (
    Pin,
    expires_ms,
    is_pinned,
    pin_text,
    pins,
    release_expired,
)
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.store.reserve import frees
from pravega_spark.limits import STATE_FILE_COMMITS
from pravega_spark.units import count_text, duration_text, size_text, time_text

logger = own_logger(__name__)

_COMMITS_OF_A_SWEEP = 1
"""A sweep commits once itself, so it leaves a table alone that gains no more than that, unless
the one version removed files."""
_COMMITS_BETWEEN = 32
"""A sweep writes a checkpoint so many commits after the one before, or more if it is large."""


@dataclass(frozen=True, slots=True)
class PendingFiles:
    """Removed files that a sweep could not delete yet, and why; times in ms since 1970.

    A sweep at ``from_ms`` or later deletes the first of them, one at ``until_ms`` or later all of
    them, by the present settings.
    """

    files: int
    size_bytes: int
    reason: str
    from_ms: int
    until_ms: int

    def __str__(self) -> str:
        """Return what waits, why, and from when on the first of it can be deleted."""
        when = datetime.fromtimestamp(self.from_ms / 1_000, timezone.utc)
        size = size_text(self.size_bytes)
        files = count_text(self.files, "file")
        return f"{files}, {size}: {self.reason}; from {when:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The horizon and the marks after a sweep, and the counts of what it deleted."""

    horizon: int
    retention_mark: int
    """The oldest retained version: older ones can be read no longer."""
    commit_deletion_mark: int
    """The version below which commits are deleted, an hour after it was set."""
    records: int
    """Records of writers without an id of their own, and of transactions, moved to history."""
    files: int
    size_bytes: int
    commits: int
    pending: tuple[PendingFiles, ...] = ()
    """Removed files that wait, by reason."""
    unmoved: str = ""
    """Why neither the horizon nor a mark moved, with the next step; empty if one of them did."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """The horizon and retention mark to set after a snapshot, and the commits deleted so far."""

    ages: VersionAges
    grace_ms: int
    retain_ms: int
    snapshot: Snapshot
    horizon: int
    retention_mark: int
    aged_since: int | None
    """The version that set the commit-deletion mark, if that mark may move on now."""
    commits: int

    @property
    def gain(self) -> int:
        """How far the plan moves the horizon or one of the marks, in versions."""
        before, mark = self.snapshot, self.retention_mark
        behind = 0 if self.aged_since is None else mark - before.commit_deletion_mark
        return max(self.horizon - before.horizon, mark - before.retention_mark, behind)


def add_results(first: SweepResult, second: SweepResult) -> SweepResult:
    """Return the first result with the deletions of both, and what waits in both."""
    pending: dict[str, PendingFiles] = {}
    for part in (*first.pending, *second.pending):
        known = pending.get(part.reason)
        pending[part.reason] = part if known is None else _together(known, part)
    return replace(
        first,
        files=first.files + second.files,
        size_bytes=first.size_bytes + second.size_bytes,
        commits=first.commits + second.commits,
        pending=tuple(pending.values()),
    )


def _together(first: PendingFiles, second: PendingFiles) -> PendingFiles:
    return PendingFiles(
        first.files + second.files,
        first.size_bytes + second.size_bytes,
        first.reason,
        min(first.from_ms, second.from_ms),
        max(first.until_ms, second.until_ms),
    )


@frees
def sweep_table(log: Log, *, grace_ms: int, retain_ms: int, now: Now | None = None) -> SweepResult:
    """Sweep a table once; safe to kill, to repeat and to run concurrently.

    Files that were staged more than ``grace_ms`` ago can no longer be committed, so the grace must
    be longer than any write or job. Time travel to versions older than ``retain_ms`` is no longer
    possible. A table that does not exist is not swept. ``now`` is the time if the caller read it.
    """
    if log.refresh(durable=True) is None:
        return SweepResult(0, 0, 0, 0, 0, 0, 0)
    ages = VersionAges.read(log) if now is None else VersionAges(log, now)
    return finish_sweep(log, prepare_sweep(log, ages, grace_ms, retain_ms))


def prepare_sweep(log: Log, ages: VersionAges, grace_ms: int, retain_ms: int) -> SweepPlan:
    """Delete commits below a mark that has aged; plan the next horizon and retention mark."""
    release_expired(log, ages)
    snapshot = log.refresh(durable=True)
    assert snapshot is not None
    plan = plan_marks(snapshot, ages, grace_ms, retain_ms)
    aged_since, commits = None, 0
    if mark_has_aged(log, ages):
        if snapshot.commit_deletion_mark > 0:
            _maintain(log.reader, snapshot)
            commits = delete_old_commits(log, ages)
        aged_since = snapshot.commit_deletion_set_version
    if is_pinned(snapshot):  # then no mark can move
        aged_since = None
    return replace(plan, aged_since=aged_since, commits=commits)


def plan_marks(snapshot: Snapshot, ages: VersionAges, grace_ms: int, retain_ms: int) -> SweepPlan:
    """Return the horizon and the retention mark for a snapshot; changes nothing.

    A pin that has not expired keeps the retention mark.
    """
    horizon = max(snapshot.horizon, ages.version_at(ages.now_ms - grace_ms))
    retained = snapshot.retention_mark
    if not _held(snapshot, ages):
        retained = max(retained, min(ages.version_at(ages.now_ms - retain_ms), horizon))
    return SweepPlan(ages, grace_ms, retain_ms, snapshot, horizon, retained, None, 0)


def _held(snapshot: Snapshot, ages: VersionAges) -> list[Pin]:
    """Return the pins that a sweep at this time does not release."""
    return [pin for pin in pins(snapshot) if expires_ms(pin, ages) > ages.now_ms]


def finish_sweep(
    log: Log,
    plan: SweepPlan,
    drop: Callable[[Snapshot], Collection[str]] = lambda snapshot: (),
    set_on_drop: Mapping[str, str] = MappingProxyType({}),
) -> SweepResult:
    """Commit the plan if it gains anything, and delete the files that are unreferenced then.

    ``drop`` and ``set_on_drop`` are those of :func:`raise_horizon`.
    """
    snapshot, dropped = plan.snapshot, drop(plan.snapshot)
    unmoved = ""
    if dropped or moves_marks(log, plan):
        snapshot = raise_horizon(
            log,
            plan.horizon,
            plan.retention_mark,
            aged_since=plan.aged_since,
            drop=drop,
            set_on_drop=set_on_drop,
        )
    else:
        unmoved = why_unmoved(plan)
    now_ms = plan.ages.now_ms
    deleted = delete_unreferenced_files(log, grace_ms=plan.grace_ms, now_ms=now_ms)
    pending = pending_files(plan, deleted.waiting, log.snapshot or snapshot)
    if deleted.files or plan.commits:
        logger.info(
            "swept %s at version %d: deleted %d files of %d bytes and %d commits%s",
            log.reader.where,
            snapshot.version,
            deleted.files,
            deleted.size_bytes,
            plan.commits,
            "".join(f"; kept {pending_text(part, now_ms)}" for part in pending),
            extra=log_fields("sweep", log.path, snapshot.version),
        )
    return SweepResult(
        snapshot.horizon,
        snapshot.retention_mark,
        snapshot.commit_deletion_mark,
        len(dropped),
        deleted.files,
        deleted.size_bytes,
        plan.commits,
        pending,
        unmoved,
    )


def moves_marks(log: Log, plan: SweepPlan) -> bool:
    """Return whether a plan is worth a commit."""
    return plan.gain > _COMMITS_OF_A_SWEEP or _releases_files(log, plan)


def why_unmoved(plan: SweepPlan) -> str:
    """Return why a plan moves neither the horizon nor a mark."""
    ages, following = plan.ages, plan.snapshot.retention_mark + 1
    if plan.gain:
        return (
            "Only one version can be released, and it removed no files: the sweep waits for more."
        )
    if following > plan.snapshot.version:
        return "The newest version is the oldest retained one: no other can be released."
    held = _held(plan.snapshot, ages)
    if held:
        return " ".join(pin_text(one, ages) for one in held)
    if ages.dated_version(following) is None:
        return f"Versions from {following} on count as new. {UNDATED}"
    return (
        f"Version {following} is younger than the retain of "
        f"{duration_text(plan.retain_ms)} or the grace of {duration_text(plan.grace_ms)}."
    )


def _releases_files(log: Log, plan: SweepPlan) -> bool:
    """Return whether the plan releases exactly one version more, and that one removed files."""
    if plan.retention_mark != plan.snapshot.retention_mark + 1:
        return False
    commit = log.reader.commit(plan.retention_mark, light=False)
    return commit is not None and len(commit.removes) > 0


def pending_files(
    plan: SweepPlan, waiting: Waiting, snapshot: Snapshot
) -> tuple[PendingFiles, ...]:
    """Return why removed files are kept, and how long at most, by the pins of a snapshot."""
    if waiting.files == 0:
        return ()
    wait_ms = max(plan.grace_ms, plan.retain_ms)
    first_ms = plan.ages.written_ms(waiting.first_removal) + wait_ms
    last_ms = plan.ages.written_ms(waiting.last_removal) + wait_ms
    held = _held(snapshot, plan.ages)
    if held:
        end_ms = max(expires_ms(one, plan.ages) for one in held)
        reason = f"a backup pins version {min(pin.version for pin in held)}"
        first_ms, last_ms = max(first_ms, end_ms), max(last_ms, end_ms)
    else:
        reason = f"versions of the last {time_text(wait_ms / 1_000)} hold them"
    return (PendingFiles(waiting.files, waiting.size_bytes, reason, first_ms, last_ms),)


def next_due_ms(result: SweepResult, due_ms: int) -> int:
    """Return when the next sweep deletes what this one could not, or an earlier time."""
    return min([due_ms, *(part.from_ms for part in result.pending)])


def pending_text(pending: PendingFiles, now_ms: int) -> str:
    """Return in one line what waits, why, and for how long."""
    first, last = (max(0, ms - now_ms) / 1_000 for ms in (pending.from_ms, pending.until_ms))
    return (
        f"{count_text(pending.files, 'file')} of {size_text(pending.size_bytes)}: "
        f"{pending.reason}; the first can be deleted in {time_text(first)}, the last in "
        f"{time_text(last)}"
    )


def _maintain(reader: LogReader, snapshot: Snapshot) -> None:
    """Write a checkpoint if one is needed to delete commits; a state file only if it is late.

    Writers leave 1,024 commits between two checkpoints. A table with few commits, such as that of
    a group or of a history, would keep thousands of them for months, so a sweep needs less.
    """
    found, version = reader.listed("checkpoint"), snapshot.version
    domains = len(snapshot.domains)
    is_needed = len(found) < 2 or checkpoint_due(
        reader, version, found[0], _COMMITS_BETWEEN, domains=domains
    )
    if is_needed or version - reader.hint().newest >= STATE_FILE_COMMITS:
        maintain(reader, version, known=snapshot, checkpoint=is_needed or None)
