"""Horizon, clean-up mark, and the deletion of what no retained version can need.

A staged file's folder names the log version at which it was staged (``data/v<version>/``). The
horizon is committed first; from then on nothing staged below it can be committed, so a file below
it that no retained version holds can be deleted whatever any clock says. The clean-up mark, at or
below the horizon, is the oldest retained version of the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pravega_spark.config import CLEANUP_WAIT_SECONDS
from pravega_spark.engine.actions import Body, to_json
from pravega_spark.engine.checkpoint import checkpoint_key, digest_key
from pravega_spark.engine.crashpoints import crash_point
from pravega_spark.engine.log import Log
from pravega_spark.engine.snapshot import LOG_DOMAIN, Snapshot
from pravega_spark.engine.statefile import state_key, state_version

_STAGED = re.compile(r".*/data/v(\d+)/[^/]+")
_DELETE_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep deleted."""

    files: int
    size_bytes: int


def raise_horizon(
    log: Log,
    horizon: int,
    cleanup: int = 0,
    *,
    leaving: Callable[[Snapshot], Iterable[str]] = lambda snapshot: (),
) -> Snapshot:
    """Commit a new horizon, and with it a clean-up mark; neither ever moves back.

    ``leaving`` names the domains that the state can do without from then on.
    """

    def decide(snapshot: Snapshot | None) -> Body | None:
        assert snapshot is not None
        wanted = max(snapshot.horizon, min(horizon, snapshot.version))
        mark = max(snapshot.cleanup, min(cleanup, wanted))
        gone: dict[str, str | None] = dict.fromkeys(leaving(snapshot))
        if (wanted, mark) == (snapshot.horizon, snapshot.cleanup) and not gone:
            return None
        value = to_json({"horizon": wanted, "cleanup": mark})
        return Body(
            "SWEEP",
            parameters={"horizon": wanted, "cleanup": mark},
            metrics={"numDomainsRemoved": len(gone)},
            domains={LOG_DOMAIN: value, **gone},
        )

    return log.commit(decide)


def sweep_files(log: Log) -> Swept:
    """Delete data files staged below the horizon that no retained version holds.

    Judged by a snapshot at or after the horizon's commit: what is live now, or was removed after
    the clean-up mark, is kept, and so is all that was staged at or above the horizon.
    """
    snapshot = log.refresh()
    if snapshot is None or snapshot.horizon == 0:
        return Swept(0, 0)
    needed: set[str] = set()
    for commit in log.reader.span(snapshot.cleanup, snapshot.version):
        needed.update(commit.removes)
    with log.files() as files:
        needed.update(add.path for add in files.all())
    horizon = snapshot.horizon
    doomed: dict[str, int] = {}
    for entry in log.store.list(f"{log.path}/data"):
        staged = _STAGED.fullmatch(entry.key)
        if staged is None or int(staged[1]) >= horizon:
            continue
        if entry.key.removeprefix(f"{log.path}/") not in needed:
            doomed[entry.key] = entry.size
    keys = sorted(doomed)
    for first in range(0, len(keys), _DELETE_PAGE):
        crash_point("sweep.delete")
        log.store.delete(keys[first : first + _DELETE_PAGE])
    return Swept(len(doomed), sum(doomed.values()))


def clean_log(log: Log, *, now_ms: int) -> int:
    """Delete commits below the clean-up mark that no base needs; return how many.

    Version 0 stays, and so do the two newest sound checkpoints and every commit since the older
    one. Nothing is deleted until the mark's own commit is CLEANUP_WAIT_SECONDS old, by its
    time and by the store's. Deletion goes upward: a version that exists has all its successors.
    """
    snapshot = log.refresh()
    if snapshot is None or snapshot.cleanup == 0:
        return 0
    reader = log.reader
    wait_ms = int(CLEANUP_WAIT_SECONDS * 1000)
    if now_ms - _mark_age_base(log, snapshot) < wait_ms:
        return 0
    versions = [
        state_version(e.key) for e in reader.store.list(f"{reader.path}/_pravega/checkpoint")
    ]
    sound = [v for v in sorted(versions, reverse=True) if reader.checkpoint(v) is not None][:2]
    if len(sound) < 2:
        return 0
    limit = min(sound[1], max((v for v in versions if v <= snapshot.cleanup), default=0))
    commits = [e.key for e in reader.store.list(reader.folder) if 0 < state_version(e.key) < limit]
    for key in commits:
        crash_point("cleanup.delete")
        reader.store.delete([key])
    old = [v for v in versions if v < limit]
    reader.store.delete(digest_key(reader.path, v) for v in old)
    reader.store.delete(checkpoint_key(reader.path, v) for v in old)
    states = [state_version(e.key) for e in reader.store.list(f"{reader.path}/_pravega/state")]
    reader.store.delete(state_key(reader.path, v) for v in states if v < limit)
    return len(commits)


def _mark_age_base(log: Log, snapshot: Snapshot) -> int:
    """Return the time, in ms, since when the present mark has stood in the log."""
    newest = snapshot.timestamp_ms
    entries = {e.key: e.modified_ms for e in log.store.list(log.reader.folder)}
    for version in range(snapshot.version, snapshot.cleanup, -1):
        commit = log.reader.commit(version, light=True)
        if commit is None:
            break
        if LOG_DOMAIN in commit.domains:
            return max(commit.timestamp_ms, entries.get(log.reader.key(version), newest))
    return max(newest, entries.get(log.reader.key(snapshot.version), newest))
