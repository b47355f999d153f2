"""Sweeping a stream: raise its horizon, let go what nobody needs, delete dead files, clean the log.

Clocks decide when something may go; that it is safe does not depend on them (``cleanup``).
"""

from __future__ import annotations

from dataclasses import dataclass

from pravega_spark.engine.cleanup import clean_log, mark_stands, raise_horizon, sweep_files
from pravega_spark.engine.crashpoints import crash_point
from pravega_spark.engine.history import HistoryRow, append_history
from pravega_spark.engine.hygiene import maintain
from pravega_spark.engine.records import WRITER_PREFIX
from pravega_spark.engine.snapshot import Snapshot
from pravega_spark.engine.stream import Stream
from pravega_spark.engine.writers import is_anonymous
from pravega_spark.errors import CorruptLog

_SWEEPS_OWN_COMMIT = 1
"""A sweep is a commit itself: without more than that to gain, an idle stream is left alone."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep did: the marks it set, and what it deleted."""

    horizon: int
    cleanup: int
    writers: int
    files: int
    size_bytes: int
    commits: int


def sweep(stream: Stream, *, grace_ms: int, retain_ms: int) -> SweepResult:
    """Sweep a stream once; safe to kill, to repeat and to run twice at once.

    What was staged more than ``grace_ms`` ago and never committed can be committed no more, so
    the grace must be longer than any write or job. Versions older than ``retain_ms`` can be
    travelled to no more.
    """
    view = stream.view()
    now_ms = stream.runtime.now_ms()
    horizon = version_at(stream, now_ms - grace_ms)
    snapshot = view.snapshot
    mark, commits = snapshot.cleanup, 0
    if mark_stands(stream.log, now_ms=now_ms):
        if mark > 0:
            wanted = True if _needs_checkpoint(stream) else None
            maintain(stream.log.reader, snapshot.version, checkpoint=wanted)
            commits = clean_log(stream.log, now_ms=now_ms)
        mark = min(version_at(stream, now_ms - max(grace_ms, retain_ms)), horizon)
    leaving = _leaving(snapshot, horizon)
    gain = max(horizon - snapshot.horizon, mark - snapshot.cleanup)
    if leaving or gain > _SWEEPS_OWN_COMMIT:
        append_history(stream, leaving)
        crash_point("sweep.history")
        snapshot = _raise(stream, horizon, mark, {row.name for row in leaving})
    swept = sweep_files(stream.log)
    return SweepResult(
        snapshot.horizon, snapshot.cleanup, len(leaving), swept.files, swept.size_bytes, commits
    )


def _raise(stream: Stream, horizon: int, mark: int, names: set[str]) -> Snapshot:
    def leaving(snapshot: Snapshot) -> list[str]:
        return [row.name for row in _leaving(snapshot, horizon) if row.name in names]

    return raise_horizon(stream.log, horizon, mark, leaving=leaving)


def _leaving(snapshot: Snapshot, horizon: int) -> list[HistoryRow]:
    """Return the writers without an id of their own whose last commit is below the horizon."""
    rows = []
    for domain in snapshot.names(WRITER_PREFIX):
        if is_anonymous(domain.removeprefix(WRITER_PREFIX)):
            version = int(snapshot.get(domain)[2])  # type: ignore[index]
            if version < horizon:
                rows.append(HistoryRow("writer", version, domain, snapshot.domains[domain]))
    return rows


def _needs_checkpoint(stream: Stream) -> bool:
    """Tell whether clean-up has fewer than the two checkpoints that it always leaves."""
    entries = stream.store.list(f"{stream.path}/_pravega/checkpoint")
    return len(entries) < 2


def version_at(stream: Stream, time_ms: int) -> int:
    """Return the newest version committed at or before a time; the oldest retained if none."""
    snapshot = stream.view().snapshot
    low, high = snapshot.cleanup, snapshot.version
    while low < high:
        middle = (low + high + 1) // 2
        commit = stream.log.reader.commit(middle, light=True)
        if commit is None:
            raise CorruptLog(f"{stream.log.reader.where}: version {middle} of the log is missing.")
        if commit.timestamp_ms <= time_ms:
            low = middle
        else:
            high = middle - 1
    return low
