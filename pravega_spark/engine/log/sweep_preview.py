"""What a sweep of a table would delete, as far as the log and the record of the last sweep show it.

Nothing is written, and nothing is listed: staged files that no commit named, old commits and state
files are found only by a sweep itself, once it has committed the marks.
"""

from __future__ import annotations

from pravega_spark.engine.log.clock_record import Now
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.sweep_record import removed_around
from pravega_spark.engine.log.table_sweep import (
    SweepResult,
    moves_marks,
    pending_files,
    plan_marks,
    why_unmoved,
)
from pravega_spark.engine.log.version_ages import VersionAges


def preview_sweep(log: Log, *, grace_ms: int, retain_ms: int, now: Now) -> SweepResult:
    """Return what a sweep at this time would do with removed files, and which ones would wait.

    The horizon and the retention mark are those that it would set. Costs a read of each commit
    since the last sweep, as the sweep would. A table that does not exist has nothing to sweep.
    """
    snapshot = log.refresh()
    if snapshot is None:
        return SweepResult(0, 0, 0, 0, 0, 0, 0)
    plan = plan_marks(snapshot, VersionAges(log, now), grace_ms, retain_ms)
    moves = moves_marks(log, plan)
    horizon, mark = plan.horizon, plan.retention_mark
    if not moves:
        horizon, mark = snapshot.horizon, snapshot.retention_mark
    deleted, waiting = removed_around(log, snapshot, mark)
    return SweepResult(
        horizon,
        mark,
        snapshot.commit_deletion_mark,
        0,
        deleted.files,
        deleted.size_bytes,
        0,
        pending_files(plan, waiting, snapshot),
        "" if moves else why_unmoved(plan),
    )
