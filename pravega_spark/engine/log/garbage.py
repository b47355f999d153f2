"""Horizon, clean-up mark, and the deletion of what no retained version can need.

A staged file's folder names the log version at which it was staged (``data/v<version>/``). The
horizon is committed first; from then on nothing staged below it can be committed, so a file below
it that no retained version holds can be deleted whatever any clock says. The clean-up mark, at or
below the horizon, is the oldest retained version of the log. Entries below it are deleted when it
has stood for an hour, so it is not moved on before: else it would never be old enough.

Some foreign writers of Delta write their files first and are refused then. Such strays have no
version in their names and can never be committed; a clock alone, the store's own, says when they
are old enough to go.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Body, to_json
from pravega_spark.engine.log.checkpointing import maintain
from pravega_spark.engine.log.commit_log import Log, Proposal
from pravega_spark.engine.log.delta_checkpoint import checkpoint_key, digest_key
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.removed_files import removed_since_cleanup_mark
from pravega_spark.engine.log.snapshot import LOG_DOMAIN, Snapshot
from pravega_spark.engine.log.state_file import state_key, state_version
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.log.version_pins import is_pinned
from pravega_spark.engine.store.base import Entry
from pravega_spark.limits import CLEANUP_WAIT_SECONDS

_STAGED = re.compile(r".*/data/v([0-9]+)/[^/]+")
_OF_TRANSACTION = re.compile(r".*/data/t-([^/]+)/[^/]+")
_STRAY = re.compile(r"(?:[^/=]+=[^/]*/)*(?:part-|duckdb_)[^/]+")
"""How Delta's writers, and not we, name files: in the table's folder, or by partition columns."""
_DATA = "data0"
"""The first name after all that lies in our own folders, of which ``data/`` is the last one."""
_DELETE_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class DeletedFiles:
    """What a sweep deleted."""

    files: int
    size_bytes: int


def raise_horizon(
    log: Log,
    horizon: int,
    cleanup: int = 0,
    *,
    leaving: Callable[[Snapshot], Iterable[str]] = lambda snapshot: (),
    sign: Mapping[str, str] = MappingProxyType({}),
) -> Snapshot:
    """Commit a new horizon, and with it a clean-up mark; neither ever moves back.

    The mark stays while a version is pinned. ``leaving`` names the domains that the state can do
    without from then on; ``sign`` is set if there are any.
    """

    def decide(snapshot: Snapshot | None) -> Proposal[None]:
        assert snapshot is not None
        wanted = max(snapshot.horizon, min(horizon, snapshot.version))
        mark = snapshot.cleanup
        if not is_pinned(snapshot):
            mark = max(mark, min(cleanup, wanted))
        gone: dict[str, str | None] = dict.fromkeys(leaving(snapshot))
        if (wanted, mark) == (snapshot.horizon, snapshot.cleanup) and not gone:
            return None, None
        marked = snapshot.version + 1 if mark > snapshot.cleanup else snapshot.marked
        value = encode_log_domain(wanted, mark, marked)
        body = Body(
            "SWEEP",
            parameters={"horizon": wanted, "cleanup": mark},
            metrics={"numDomainsRemoved": len(gone)},
            domains={LOG_DOMAIN: value, **gone, **(sign if gone else {})},
        )
        return body, None

    return log.commit(decide).snapshot


def encode_log_domain(horizon: int, cleanup: int, marked: int) -> str:
    """Return the log's own domain: horizon, clean-up mark, and the version that set the mark."""
    return to_json({"horizon": horizon, "cleanup": cleanup, "marked": marked})


def delete_unreferenced_files(log: Log, *, grace_ms: int | None = None) -> DeletedFiles:
    """Delete data files staged below the horizon that no retained version holds.

    Judged by a snapshot at or after the horizon's commit: what is live now, or was removed after
    the clean-up mark, is kept, and so is all that was staged at or above the horizon. With a
    ``grace_ms``, what foreign writers and killed processes left is deleted, too, once it is older.
    """
    if log.refresh(durable=True) is None:
        return DeletedFiles(0, 0)
    stored = log.store.list(f"{log.path}/data")
    strays = {} if grace_ms is None else _strays(log, grace_ms)
    log.proved_newest()  # after the listing: no file in it can be of what began later
    with log.files() as files:
        snapshot = log.snapshot
        assert snapshot is not None
        live = {add.path for add in files.all()}
    doomed = strays | _cannot_be_committed(log, snapshot, stored)
    doomed = {path: size for path, size in doomed.items() if path not in live}
    if doomed:
        for path in removed_since_cleanup_mark(log, snapshot):
            doomed.pop(path, None)
    keys = [f"{log.path}/{path}" for path in sorted(doomed)]
    for first in range(0, len(keys), _DELETE_PAGE):
        failpoint("sweep.delete")
        log.store.delete(keys[first : first + _DELETE_PAGE])
    sizes = list(doomed.values())
    if grace_ms is not None:
        sizes += [entry.size for entry in log.store.discard_unfinished(log.path, grace_ms)]
    return DeletedFiles(len(sizes), sum(sizes))


def _cannot_be_committed(log: Log, snapshot: Snapshot, stored: Iterable[Entry]) -> dict[str, int]:
    """Return path and size of the files that no later commit can name.

    Those staged below the horizon, and those of transactions that have ended: a transaction's
    files are written after its beginning was committed, and named by its last commit or never.
    """
    found: dict[str, int] = {}
    for entry in stored:
        staged, shared = _STAGED.fullmatch(entry.key), _OF_TRANSACTION.fullmatch(entry.key)
        below = staged is not None and int(staged[1]) < snapshot.horizon
        if below or (shared is not None and shared[1] not in snapshot.open):
            found[entry.key.removeprefix(f"{log.path}/")] = entry.size
    return found


def _strays(log: Log, grace_ms: int) -> dict[str, int]:
    """Return path and size of foreign writers' files that are older than the grace."""
    folders = [f for f in log.store.folders(log.path) if "=" in f and f < _DATA]
    entries = [entry for f in folders for entry in log.store.list(f"{log.path}/{f}")]
    entries += log.store.list(log.path, after=f"{log.path}/{_DATA}")  # and nothing of ours
    if not entries:
        return {}
    before_ms = log.store.time_ms() - grace_ms
    old = [entry for entry in entries if 0 < entry.modified_ms < before_ms]
    found = {entry.key.removeprefix(f"{log.path}/"): entry.size for entry in old}
    return {path: size for path, size in found.items() if _STRAY.fullmatch(path)}


def _mark_folder(log: Log) -> str:
    return f"{log.path}/_pravega/mark"


def cleanup_mark_has_aged(log: Log, ages: VersionAges | None = None) -> bool:
    """Tell whether the clean-up mark has stood for CLEANUP_WAIT_SECONDS, or there is none yet.

    The age of the mark's commit must say so, which no clock's jump makes greater (ADR 14), and the
    storage's clock since somebody first looked at the mark, which is what the first call begins.
    """
    snapshot = log.refresh()
    if snapshot is None or snapshot.cleanup == 0:
        return True
    wait_ms = int(CLEANUP_WAIT_SECONDS * 1000)
    folder, seen = _mark_folder(log), f"{snapshot.marked:020d}.json"
    log.store.put_if_absent(f"{folder}/{seen}", b"{}\n")
    ages = ages or VersionAges.read(log)
    if ages.now_ms - ages.written_ms(snapshot.marked) < wait_ms:
        return False
    now_ms = log.store.time_ms()
    times = {e.key.removeprefix(f"{folder}/"): e.modified_ms for e in log.store.list(folder)}
    log.store.delete(f"{folder}/{name}" for name in times if name != seen)
    return seen in times and now_ms - times[seen] >= wait_ms


def delete_old_commits(log: Log, ages: VersionAges | None = None) -> int:
    """Delete commits below the clean-up mark that no base needs; return how many.

    Version 0 stays, and so do the two newest sound checkpoints, the newest one at or below the
    mark, and every commit since the oldest of these. Nothing is deleted until :func:`mark_stands`.
    Deletion goes upward: on a local store a version that exists has all its successors. An object
    store deletes what is in one page in any order, so there a listing tells (``Log._holds``).
    """
    snapshot = log.refresh()
    if snapshot is None or snapshot.cleanup == 0 or not cleanup_mark_has_aged(log, ages):
        return 0
    reader = log.reader
    versions = reader.listed("checkpoint")
    sound = (version for version in versions if reader.checkpoint(version) is not None)
    older = itertools.islice(sound, 1, None)
    limit = next((version for version in older if version <= snapshot.cleanup), 0)
    return _delete_below(reader, limit)


def delete_ended_log(log: Log, ages: VersionAges | None = None) -> int:
    """Delete what the log of an ended table holds beside version 0 and its head; return how many.

    The head must be its own clean-up mark, and is written as a state file and a checkpoint first.
    Nothing is deleted until :func:`mark_stands`, so no process that is stalled behind a version
    that is deleted can be acknowledged for the next one.
    """
    reader, snapshot = log.reader, log.proved_newest()
    if snapshot is None or snapshot.cleanup < snapshot.version or not _older(reader, snapshot):
        return 0
    if not cleanup_mark_has_aged(log, ages):
        return 0
    maintain(reader, snapshot.version, checkpoint=True)
    if reader.state(snapshot.version) is None or reader.checkpoint(snapshot.version) is None:
        return 0
    commits = _delete_below(reader, snapshot.version)
    reader.store.delete([entry.key for entry in reader.store.list(_mark_folder(log))])
    return commits


def _older(reader: LogReader, head: Snapshot) -> bool:
    """Tell whether the log holds anything between version 0 and the head."""
    older = (reader.listed(kind, head.version) for kind in ("state", "checkpoint"))
    return bool(_present(reader, head.version)) or any(older)


def _delete_below(reader: LogReader, limit: int) -> int:
    """Delete commits, state files and checkpoints below ``limit``, except version 0's commit."""
    commits = _present(reader, limit)
    for first in range(0, len(commits), _DELETE_PAGE):
        failpoint("cleanup.delete")
        page = commits[first : first + _DELETE_PAGE]
        reader.store.delete([reader.key(version) for version in page])
    states, old = reader.listed("state", limit), reader.listed("checkpoint", limit)
    reader.store.delete(state_key(reader.path, v) for v in states)
    reader.store.delete(digest_key(reader.path, v) for v in old)
    reader.store.delete(checkpoint_key(reader.path, v) for v in old)
    return len(commits)


def _present(reader: LogReader, limit: int) -> range:
    """Return the versions from the oldest that is there, version 0 apart, up to ``limit``.

    A listing that leaves some out must not leave them behind: who knows one of them, and finds it,
    trusts that its successors are there, too.
    """
    listed = (state_version(entry.key) for entry in reader.store.list(reader.folder))
    first = min((version for version in listed if 0 < version < limit), default=limit)
    while first > 1 and first < limit and reader.has(first - 1):
        first -= 1
    return range(first, limit)
