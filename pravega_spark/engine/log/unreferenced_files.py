"""Delete data files that no retained version of a table can need.

**Unreferenced files.** The folder of a staged file names the log version at which it was staged
(``data/v<version>/``). Once the horizon is committed, no file staged below it can be committed. So
such a file can be deleted if no retained version references it, whatever any clock shows.

**Orphan files.** Some foreign Delta writers write their files before their commit is refused. Such
a file names no version and can never be committed. Only its age decides, by the storage's clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.removed_files import removed_since_retention_mark
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.store.base import Entry

_STAGED = re.compile(r".*/data/v([0-9]+)/[^/]+")
_OF_TRANSACTION = re.compile(r".*/data/t-([^/]+)/[^/]+")
_FOREIGN = re.compile(r"(?:[^/=]+=[^/]*/)*(?:part-|duckdb_)[^/]+")
"""File names of foreign Delta writers, in the table's folder or below partition folders."""
_AFTER_OUR_FOLDERS = "data0"
"""The first name that sorts after our own folders, of which ``data/`` is the last one."""
_DELETE_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class DeletedFiles:
    """The number and size of deleted files."""

    files: int
    size_bytes: int


def delete_unreferenced_files(log: Log, *, grace_ms: int | None = None) -> DeletedFiles:
    """Delete data files staged below the horizon that no retained version references.

    The snapshot that decides is at or after the commit of the horizon. Files that are live in it,
    files that were removed after the retention mark, and files staged at or above the horizon are
    kept. With ``grace_ms``, orphan files and unfinished writes older than that are deleted as well.
    """
    if log.refresh(durable=True) is None:
        return DeletedFiles(0, 0)
    stored = log.store.list(f"{log.path}/data")
    orphans = {} if grace_ms is None else _orphan_files(log, grace_ms)
    log.proved_newest()  # after the listing, so a listed transaction that is not open has ended
    with log.files() as files:
        snapshot = log.snapshot
        assert snapshot is not None
        live = {add.path for add in files.all()}
    unneeded = orphans | _uncommittable_files(log, snapshot, stored)
    unneeded = {path: size for path, size in unneeded.items() if path not in live}
    if unneeded:
        for path in removed_since_retention_mark(log, snapshot):
            unneeded.pop(path, None)
    keys = [f"{log.path}/{path}" for path in sorted(unneeded)]
    for first in range(0, len(keys), _DELETE_PAGE):
        failpoint("sweep.delete")
        log.store.delete(keys[first : first + _DELETE_PAGE])
    sizes = list(unneeded.values())
    if grace_ms is not None:
        sizes += [entry.size for entry in log.store.discard_unfinished(log.path, grace_ms)]
    return DeletedFiles(len(sizes), sum(sizes))


def _uncommittable_files(log: Log, snapshot: Snapshot, stored: Iterable[Entry]) -> dict[str, int]:
    """Return path and size of the files that no later commit can reference.

    These are the files staged below the horizon, and the files of ended transactions. A
    transaction writes its files after the commit that opened it, and only the commit that ends it
    can reference them.
    """
    found: dict[str, int] = {}
    for entry in stored:
        staged, shared = _STAGED.fullmatch(entry.key), _OF_TRANSACTION.fullmatch(entry.key)
        is_below = staged is not None and int(staged[1]) < snapshot.horizon
        if is_below or (shared is not None and shared[1] not in snapshot.open):
            found[entry.key.removeprefix(f"{log.path}/")] = entry.size
    return found


def _orphan_files(log: Log, grace_ms: int) -> dict[str, int]:
    """Return path and size of foreign writers' files that are older than the grace."""
    folders = [f for f in log.store.folders(log.path) if "=" in f and f < _AFTER_OUR_FOLDERS]
    entries = [entry for f in folders for entry in log.store.list(f"{log.path}/{f}")]
    entries += log.store.list(log.path, after=f"{log.path}/{_AFTER_OUR_FOLDERS}")
    if not entries:
        return {}
    before_ms = log.store.time_ms() - grace_ms
    old = [entry for entry in entries if 0 < entry.modified_ms < before_ms]
    found = {entry.key.removeprefix(f"{log.path}/"): entry.size for entry in old}
    return {path: size for path, size in found.items() if _FOREIGN.fullmatch(path)}
