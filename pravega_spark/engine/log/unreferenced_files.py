"""Delete data files that no retained version of a table can need.

**Removed files.** A commit removed them, and the retention mark has reached that commit. Then no
retained version names them, and no later commit does: a path is added once.

**Unreferenced files.** The folder of a staged file names the log version at which it was staged
(``data/v<version>/``). Once the horizon is committed, no file staged below it can be committed. So
such a file can be deleted if no commit added it, whatever any clock shows. The same holds for the
folder of a transaction (``data/t-<id>/``) once the transaction has ended.

**Attached objects.** The object of a large event lives as long as the chunk that names it, which
its path tells. It counts with its chunk, and its bytes are the chunk's.

**Orphan files.** Some foreign Delta writers write their files before their commit is refused. Such
a file names no version and can never be committed. Only its age decides, by the storage's clock.

A sweep with a record (``sweep_record``) reads the commits since the last one, lists the folders
that the horizon has passed since, and deletes what they show. Without one it lists all files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pravega_spark.engine.attached_objects import attached_to, with_attached
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.checkpointing import maintain
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.sweep_record import (
    SegmentLost,
    SweepRecord,
    Waiting,
    new_record,
    read_record,
    stored_notes,
)
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.staging_folder import staged_version, version_folder
from pravega_spark.engine.store.base import Entry
from pravega_spark.limits import FULL_LISTING_MS, SWEEP_PROBES

logger = own_logger(__name__)

_OWN = re.compile(r"data/(?:v[0-9]+|t-[^/]+)/[^/.][^/]*")
"""Paths of files that this package stages."""
_OF_TRANSACTION = re.compile(r"data/t-([^/]+)/[^/]+")
_FOREIGN = re.compile(r"(?:[^/=]+=[^/]*/)*(?:part-|duckdb_)[^/]+")
"""File names of foreign Delta writers, in the table's folder or below partition folders."""
_AFTER_OUR_FOLDERS = "data0"
"""The first name that sorts after our own folders, of which ``data/`` is the last one."""
_DELETE_PAGE = 1_000
_DELETE_PAGES = 8
"""Pages of keys that an object store deletes at the same time."""


@dataclass(frozen=True, slots=True)
class DeletedFiles:
    """The number and size of deleted files, and the removed files that are retained."""

    files: int
    size_bytes: int
    waiting: Waiting = field(default_factory=Waiting)


@dataclass(slots=True)
class _Doomed:
    """The paths to delete, and their bytes."""

    paths: set[str] = field(default_factory=set)
    size_bytes: int = 0

    def add(self, sizes: dict[str, int]) -> None:
        """Add files with their sizes."""
        self.paths |= sizes.keys()
        self.size_bytes += sum(sizes.values())


def delete_unreferenced_files(
    log: Log, *, grace_ms: int | None = None, now_ms: int | None = None, keep_record: bool = True
) -> DeletedFiles:
    """Delete the data files that no retained version references.

    The snapshot that decides is at or after the commit of the horizon. Files that are live in it,
    files that were removed after the retention mark, and files staged at or above the horizon are
    kept. With ``grace_ms``, orphan files and unfinished writes older than that are deleted as well.
    With ``now_ms`` all files are listed if the last such listing is old. Without ``keep_record``
    they are always listed, and nothing is recorded.
    """
    before = log.refresh(durable=True)
    if before is None:
        return DeletedFiles(0, 0)
    record = read_record(log, before) if keep_record else None
    if record is not None and now_ms is not None:
        is_due = abs(now_ms - record.listed_ms) >= FULL_LISTING_MS
        record = None if is_due else record
    if record is not None:
        try:
            return _delete_new(log, before.horizon, record, grace_ms)
        except SegmentLost:
            pass
    return _delete_all(log, grace_ms, now_ms or 0, keep_record=keep_record)


# ----------------------------------------------------------------------- with a record, what is new


def _delete_new(log: Log, horizon: int, record: SweepRecord, grace_ms: int | None) -> DeletedFiles:
    """Delete what has become unneeded since the recorded sweep. Raises SegmentLost."""
    staged = _staged_between(log, record.horizon, horizon)
    orphans = {} if grace_ms is None else _orphan_files(log, grace_ms)
    snapshot = log.proved_newest()  # after the listing
    assert snapshot is not None
    record.read_on(log, snapshot)
    mark = snapshot.retention_mark
    doomed = _Doomed()
    removed_bytes, removed = record.removed_until(log, mark)
    doomed.paths.update(path for path in removed if _OWN.fullmatch(path))
    doomed.size_bytes += removed_bytes
    staged |= _staged_in_ended(log, snapshot, record.ended)
    if staged:
        added = record.added_from(log, record.horizon, horizon)
        doomed.add({path: size for path, size in staged.items() if path not in added})
    if orphans:
        doomed.add(_unnamed(log, mark, orphans))
    waiting = record.waiting(log, mark)
    count = _delete(log, doomed, grace_ms, everywhere=False)
    record.store(log, mark, horizon)
    return DeletedFiles(count, doomed.size_bytes, waiting)


def _staged_between(log: Log, first: int, below: int) -> dict[str, int]:
    """Return path and size of the files staged at versions of [first, below)."""
    folder = f"{log.path}/data"
    if not log.store.is_local or below - first > SWEEP_PROBES:
        start, end = (f"{folder}/{version_folder(version)}" for version in (first, below))
        found = log.store.list(folder, after=start, before=end) if first < below else []
    else:  # the folder of all folders grows with the table
        names = (version_folder(version) for version in range(first, below))
        found = [entry for name in names for entry in log.store.list(f"{folder}/{name}")]
    return _sizes(log, found)


def _staged_in_ended(log: Log, snapshot: Snapshot, ended: Iterable[str]) -> dict[str, int]:
    """Return path and size of the files of transactions that have ended."""
    found: dict[str, int] = {}
    for name in ended:
        if name not in snapshot.open:
            found |= _sizes(log, log.store.list(f"{log.path}/data/t-{name}"))
    return found


def _split(entries: Iterable[Entry], prefix: str) -> tuple[list[Entry], list[Entry]]:
    """Return the entries whose keys have not the prefix, and those whose keys have it."""
    found: tuple[list[Entry], list[Entry]] = [], []
    for entry in entries:
        found[entry.key.startswith(prefix)].append(entry)
    return found


def _sizes(log: Log, entries: Iterable[Entry]) -> dict[str, int]:
    return {entry.key.removeprefix(f"{log.path}/"): entry.size for entry in entries}


# ------------------------------------------------------------------- without a record, all files


def _delete_all(log: Log, grace_ms: int | None, now_ms: int, *, keep_record: bool) -> DeletedFiles:
    """List all files of the table, and delete the unneeded ones; begin a new record."""
    folder = f"{log.path}/data"
    orphans: dict[str, int] = {}
    if grace_ms is None:
        own = list(log.store.list(folder))
    else:
        # Orphans beside our folder are in the same listing, which begins after its name without a
        # slash: after the name with one, an S3 server may leave out the folder.
        beside, own = _split(log.store.list(log.path, after=folder), f"{folder}/")
        orphans = _old_orphans(log, grace_ms, _in_foreign_folders(log) + beside)
    stored = _sizes(log, own)
    snapshot = log.proved_newest()  # after the listing: a listed transaction not open has ended
    assert snapshot is not None
    unneeded = orphans | {
        path: size for path, size in stored.items() if _is_uncommittable(path, snapshot)
    }
    doomed = _Doomed()
    doomed.add(_unnamed(log, snapshot.retention_mark, unneeded))
    count = _delete(log, doomed, grace_ms, everywhere=True)
    if not keep_record:
        return DeletedFiles(count, doomed.size_bytes)
    notes, newest_checkpoint = stored_notes(log)
    _heal_checkpoint(log, newest_checkpoint)
    record = new_record(snapshot, now_ms)
    record.read_on(log, snapshot)
    waiting = record.waiting(log, snapshot.retention_mark)
    record.store(log, snapshot.retention_mark, snapshot.horizon)
    log.store.delete(notes - record.keys(log.path))
    return DeletedFiles(count, doomed.size_bytes, waiting)


def _heal_checkpoint(log: Log, newest: int) -> None:
    """Write a checkpoint where the newest one is damaged: other Delta readers cannot pass it."""
    snapshot = log.snapshot
    if newest >= 0 and snapshot is not None and log.reader.checkpoint(newest) is None:
        logger.warning(
            "checkpoint %d of %s is damaged, so that other Delta readers cannot open the table; a "
            "new one is written at version %d",
            newest,
            log.reader.where,
            snapshot.version,
            extra=log_fields("checkpoint", log.path, newest),
        )
        maintain(log.reader, snapshot.version, known=snapshot, checkpoint=True)


def _is_uncommittable(path: str, snapshot: Snapshot) -> bool:
    """Return whether no later commit can reference a file.

    That holds for files staged below the horizon, and for files of ended transactions. A
    transaction writes its files after the commit that opened it, and only the commit that ends it
    can reference them.
    """
    staged, shared = staged_version(path), _OF_TRANSACTION.fullmatch(path)
    if shared is not None:
        return shared[1] not in snapshot.open
    return staged is not None and staged < snapshot.horizon and _OWN.fullmatch(path) is not None


def _unnamed(log: Log, mark: int, sizes: dict[str, int]) -> dict[str, int]:
    """Return the files that neither the newest version names nor one from a mark on."""
    with log.files() as files:
        for path in with_attached(add.path for add in files.all()):
            sizes.pop(path, None)
        snapshot = log.snapshot
    assert snapshot is not None
    if sizes:
        for commit in log.reader.span(mark, snapshot.version):
            for path in with_attached(commit.removes):
                sizes.pop(path, None)
    return sizes


def _orphan_files(log: Log, grace_ms: int) -> dict[str, int]:
    """Return path and size of foreign writers' files that are older than the grace."""
    beside = log.store.list(log.path, after=f"{log.path}/{_AFTER_OUR_FOLDERS}")
    return _old_orphans(log, grace_ms, _in_foreign_folders(log) + beside)


def _in_foreign_folders(log: Log) -> list[Entry]:
    return [e for f in _foreign_folders(log) for e in log.store.list(f"{log.path}/{f}")]


def _old_orphans(log: Log, grace_ms: int, entries: list[Entry]) -> dict[str, int]:
    if not entries:
        return {}
    before_ms = log.store.time_ms() - grace_ms
    old = _sizes(log, [entry for entry in entries if 0 < entry.modified_ms < before_ms])
    return {path: size for path, size in old.items() if _FOREIGN.fullmatch(path)}


def _foreign_folders(log: Log) -> list[str]:
    return [f for f in log.store.folders(log.path) if "=" in f and f < _AFTER_OUR_FOLDERS]


def _delete(log: Log, doomed: _Doomed, grace_ms: int | None, *, everywhere: bool) -> int:
    """Delete the files; return their number with that of unfinished files, which it adds."""
    attached = attached_to(doomed.paths)
    keys = [f"{log.path}/{path}" for path in sorted(doomed.paths | attached)]
    pages = [keys[first : first + _DELETE_PAGE] for first in range(0, len(keys), _DELETE_PAGE)]
    together = 1 if log.store.is_local else _DELETE_PAGES  # on a disk threads only add waits
    for first in range(0, len(pages), together):
        failpoint("sweep.delete")
        log.runtime.each(log.store.delete, pages[first : first + together])
    unfinished: list[Entry] = []
    if grace_ms is not None:
        if everywhere:
            unfinished = log.store.discard_unfinished(log.path, grace_ms)
        else:  # not in our own folders, whose number grows with the table
            unfinished = log.store.discard_unfinished(log.path, grace_ms, deep=False)
            for folder in _foreign_folders(log):
                unfinished += log.store.discard_unfinished(f"{log.path}/{folder}", grace_ms)
    doomed.size_bytes += sum(entry.size for entry in unfinished)
    return len(doomed.paths - attached) + len(unfinished)
