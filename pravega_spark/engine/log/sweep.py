"""Sweep any table of ours: raise its horizon, delete dead files, and delete old commits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from pravega_spark.engine.log.checkpointing import maintain
from pravega_spark.engine.log.clock_record import Now
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.garbage import (
    cleanup_mark_has_aged,
    delete_old_commits,
    delete_unreferenced_files,
    raise_horizon,
)
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.log.version_pins import is_pinned, release_expired

_SWEEPS_OWN_COMMIT = 1
"""A sweep is a commit itself: without more than that to gain, an idle table is left alone."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep did: the marks it set, and what it deleted."""

    horizon: int
    cleanup: int
    records: int
    """Writers without an id of their own, and outcomes of transactions, that went to history."""
    files: int
    size_bytes: int
    commits: int


@dataclass(frozen=True, slots=True)
class SweepMarks:
    """What a table can do without as of a snapshot, and how many commits went on the way."""

    snapshot: Snapshot
    horizon: int
    cleanup: int
    commits: int


def add_results(first: SweepResult, second: SweepResult) -> SweepResult:
    """Return the first result with what was deleted in both."""
    return replace(
        first,
        files=first.files + second.files,
        size_bytes=first.size_bytes + second.size_bytes,
        commits=first.commits + second.commits,
    )


def sweep_table(log: Log, *, grace_ms: int, retain_ms: int, now: Now | None = None) -> SweepResult:
    """Sweep any table of ours once; safe to kill, to repeat and to run twice at once.

    What was staged more than ``grace_ms`` ago and never committed can be committed no more, so
    the grace must be longer than any write or job. Versions older than ``retain_ms`` can be
    travelled to no more. A table that does not exist has nothing to sweep. ``now`` is the time if
    it is known already.
    """
    if log.refresh(durable=True) is None:
        return SweepResult(0, 0, 0, 0, 0, 0)
    ages = VersionAges.read(log) if now is None else VersionAges(log, now)
    return finish_sweep(log, prepare_sweep(log, ages, grace_ms, retain_ms), grace_ms)


def prepare_sweep(log: Log, ages: VersionAges, grace_ms: int, retain_ms: int) -> SweepMarks:
    """Delete commits below the clean-up mark if it stands; return the marks to be set next."""
    release_expired(log, ages)
    snapshot = log.refresh(durable=True)
    assert snapshot is not None
    horizon = ages.version_at(ages.now_ms - grace_ms)
    mark, commits = snapshot.cleanup, 0
    if cleanup_mark_has_aged(log, ages):
        if mark > 0:
            wanted = True if _needs_checkpoint(log) else None
            maintain(log.reader, snapshot.version, checkpoint=wanted)
            commits = delete_old_commits(log, ages)
        if not is_pinned(snapshot):  # else it cannot move, and is no gain
            mark = min(ages.version_at(ages.now_ms - max(grace_ms, retain_ms)), horizon)
    return SweepMarks(snapshot, horizon, mark, commits)


def finish_sweep(
    log: Log,
    marks: SweepMarks,
    grace_ms: int,
    leaving: Callable[[Snapshot], Collection[str]] = lambda snapshot: (),
    sign: Mapping[str, str] = MappingProxyType({}),
) -> SweepResult:
    """Raise the marks if anything is gained, and delete the files that nothing needs then."""
    snapshot, gone = marks.snapshot, leaving(marks.snapshot)
    gain = max(marks.horizon - snapshot.horizon, marks.cleanup - snapshot.cleanup)
    if gone or gain > _SWEEPS_OWN_COMMIT:
        snapshot = raise_horizon(log, marks.horizon, marks.cleanup, leaving=leaving, sign=sign)
    swept = delete_unreferenced_files(log, grace_ms=grace_ms)
    if swept.files or marks.commits:
        logger.info(
            "sweep of %s, version %d: %d files of %d bytes and %d commits were deleted",
            log.reader.where,
            snapshot.version,
            swept.files,
            swept.size_bytes,
            marks.commits,
        )
    return SweepResult(
        snapshot.horizon, snapshot.cleanup, len(gone), swept.files, swept.size_bytes, marks.commits
    )


def _needs_checkpoint(log: Log) -> bool:
    """Tell whether clean-up has fewer than the two checkpoints that it always leaves."""
    return len(log.store.list(f"{log.path}/_pravega/checkpoint")) < 2


logger = logging.getLogger(__name__)
