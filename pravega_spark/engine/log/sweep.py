"""Sweep a table: raise its horizon, delete unreferenced files, and delete old commits.

Delete data files that no retained version of a table can need.

**Removed files.** A commit removed them, and the retention mark has reached that commit. Then no
retained version names them, and no later commit does: a path is added once.

**Unreferenced files.** The folder of a staged file names the log version at which it was staged
(``data/v<version>/``). Once the horizon is committed, no file staged below it can be committed. So
such a file can be deleted if no commit added it, without regard to any clock. The same holds for
the folder of a transaction (``data/t-<id>/``) once the transaction has ended.

**Attached objects.** The object of a large event lives as long as the chunk that names it, which
its path tells. It counts with its chunk, and its bytes are the chunk's.

**Orphan files.** Some foreign Delta writers write their files before their commit is refused. Such
a file names no version and can never be committed. Only its age decides, by the storage's clock.

A sweep with a record (``sweep_record``) learns what the commits since the last one did, from state
files as far as these reach, lists the folders that the horizon has passed since, and deletes what
they show. Without one it lists all files.

Delete the commits, state files and checkpoints of versions that are not retained. Nothing is
deleted before the commit-deletion mark has stood for an hour. A process whose snapshot is that old
knows that it must check the log first (``LogFollower.is_stale``). A sweep does not move that mark
within the hour, because a mark that keeps moving would never be old enough.

What a sweep of a table would delete, as far as the log and the record of the last sweep show it.
Nothing is written, and nothing is listed: staged files that no commit named, old commits and state
files are found only by a sweep itself, once it has committed the marks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from pravega_spark.engine.attached_objects import attached_to, with_attached
from pravega_spark.engine.chunk_paths import (
    chunk_folder,
    is_staged,
    staged_version,
    transaction_of,
    version_folder,
)
from pravega_spark.engine.log.checkpoint import checkpoint_due, maintain
from pravega_spark.engine.log.clock import ClockReading
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.delta_checkpoint import checkpoint_key, digest_key
from pravega_spark.engine.log.reader import LogReader
from pravega_spark.engine.log.retained import (
    UNDATED,
    Pin,
    VersionAges,
    expires_ms,
    is_pinned,
    pin_text,
    pins,
    raise_horizon,
    release_expired,
)
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.stored_state import part_key, state_key, state_version
from pravega_spark.engine.log.sweep_record import (
    SegmentLost,
    SweepRecord,
    Waiting,
    new_record,
    read_record,
    removed_around,
    stored_notes,
)
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store.base import Entry
from pravega_spark.engine.store.reserve import frees
from pravega_spark.values.limits import (
    CLEANUP_WAIT_SECONDS,
    FULL_LISTING_MS,
    STATE_FILE_COMMITS,
    SWEEP_PROBES,
)
from pravega_spark.values.times import utc_text
from pravega_spark.values.units import count_text, duration_text, size_text, time_text

logger = own_logger(__name__)

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
    try:
        if record is None:
            pass
        elif now_ms is None or abs(now_ms - record.listed_ms) < FULL_LISTING_MS:
            return _delete_new(log, before.horizon, record, grace_ms)
        else:
            return _delete_all(log, grace_ms, now_ms, keep_record=True, record=record)
    except SegmentLost:
        pass
    return _delete_all(log, grace_ms, now_ms or 0, keep_record=keep_record)


# ----------------------------------------------------------------------- with a record, what is new


def _delete_new(log: Log, horizon: int, record: SweepRecord, grace_ms: int | None) -> DeletedFiles:
    """Delete what has become unneeded since the recorded sweep. Raises SegmentLost."""
    staged = _staged_between(log, record.horizon, horizon)
    orphans = {} if grace_ms is None else _orphan_files(log, grace_ms)
    # After the listing: every file that it shows below the horizon is named by a commit of this
    # snapshot, or can never be named.
    snapshot = log.proved_newest()
    assert snapshot is not None
    record.read_on(log, snapshot)
    mark = snapshot.retention_mark
    doomed = _Doomed()
    removed_bytes, removed = record.removed_until(log, mark)
    doomed.paths.update(path for path in removed if is_staged(path))
    doomed.size_bytes += removed_bytes
    staged |= _staged_in_ended(log, snapshot, record.ended)
    if staged:
        added = record.added_from(log, record.horizon, horizon)
        doomed.add({path: size for path, size in staged.items() if path not in added})
    if orphans:
        doomed.add(_unnamed(log, record, mark, orphans))
    waiting = record.waiting(log, mark)
    count = _delete(log, doomed, grace_ms, everywhere=False)
    record.store(log, mark, horizon)  # last: a sweep that dies before is repeated as it was
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
            found |= _sizes(log, log.store.list(f"{log.path}/data/{chunk_folder(name)}"))
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


def _delete_all(
    log: Log,
    grace_ms: int | None,
    now_ms: int,
    *,
    keep_record: bool,
    record: SweepRecord | None = None,
) -> DeletedFiles:
    """List all files of the table, and delete the unneeded ones.

    Continues an intact record, or begins a new one. Raises SegmentLost for one that is not intact.
    """
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
    record = record or new_record(snapshot, now_ms, is_kept=keep_record)
    record.listed_ms = now_ms
    record.read_on(log, snapshot)
    doomed = _Doomed()
    doomed.add(_unnamed(log, record, snapshot.retention_mark, unneeded))
    count = _delete(log, doomed, grace_ms, everywhere=True)
    if not keep_record:
        return DeletedFiles(count, doomed.size_bytes)
    notes, newest_checkpoint = stored_notes(log)
    _heal_checkpoint(log, newest_checkpoint)
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
    staged, transaction = staged_version(path), transaction_of(path)
    if transaction is not None:
        return transaction not in snapshot.open
    return staged is not None and staged < snapshot.horizon and is_staged(path)


def _unnamed(log: Log, record: SweepRecord, mark: int, sizes: dict[str, int]) -> dict[str, int]:
    """Return the files that neither the newest version names nor one from a mark on."""
    with log.files() as files:
        for path in with_attached(add.path for add in files.all()):
            sizes.pop(path, None)
        snapshot = log.snapshot
    assert snapshot is not None
    if snapshot.version > record.version:  # it may have removed files that were live before
        record.read_on(log, snapshot)
    for path in with_attached(record.removed_after(log, mark)):
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


def mark_has_aged(log: Log, ages: VersionAges | None = None) -> bool:
    """Return whether the commit-deletion mark has stood for CLEANUP_WAIT_SECONDS, or is 0.

    Two ages must show it. One is that of the commit that set the mark, which no jump of a clock
    increases (ADR 14). The other is that of an object which the first call for this mark creates,
    by the storage's clock.
    """
    snapshot = log.refresh()
    if snapshot is None or snapshot.commit_deletion_mark == 0:
        return True
    wait_ms = int(CLEANUP_WAIT_SECONDS * 1000)
    folder, own = _seen_folder(log), f"{snapshot.commit_deletion_set_version:020d}.json"
    log.store.put_if_absent(f"{folder}/{own}", b"{}\n")
    ages = ages or VersionAges.read(log)
    if ages.now_ms - ages.written_ms(snapshot.commit_deletion_set_version) < wait_ms:
        return False
    now_ms = log.store.time_ms()
    times = {e.key.removeprefix(f"{folder}/"): e.modified_ms for e in log.store.list(folder)}
    log.store.delete(f"{folder}/{name}" for name in times if name != own)
    return own in times and now_ms - times[own] >= wait_ms


def _seen_folder(log: Log) -> str:
    """Return the folder of the object whose date is when a sweep first saw the present mark."""
    return f"{log.path}/_pravega/mark"


def delete_old_commits(log: Log, ages: VersionAges | None = None) -> int:
    """Delete commits below their mark that no state file or checkpoint needs; count them.

    Version 0 is kept. So are the two newest intact checkpoints, the newest one at or below the
    commit-deletion mark, and every commit since the oldest of these. Does nothing before
    :func:`mark_has_aged`. Deletion goes upward, so on a local store a version that exists
    has all its successors. An object store deletes the objects of one page in any order, so there
    a listing must show it (``LogFollower.has_commit_of``).
    """
    snapshot = log.refresh()
    if snapshot is None or snapshot.commit_deletion_mark == 0 or not mark_has_aged(log, ages):
        return 0
    reader = log.reader
    versions = reader.listed("checkpoint")
    intact = (version for version in versions if reader.checkpoint(version) is not None)
    older = itertools.islice(intact, 1, None)
    limit = next((version for version in older if version <= snapshot.commit_deletion_mark), 0)
    return _delete_below(reader, limit)


def delete_ended_log(log: Log, ages: VersionAges | None = None) -> int:
    """Delete all of an ended table's log except version 0 and the newest; count the commits.

    The newest version must be its own commit-deletion mark. It is written as a state file and a
    checkpoint first. Does nothing before :func:`mark_has_aged`, so a process that stalled at a
    deleted version cannot have its commit of the next version acknowledged.
    """
    reader, snapshot = log.reader, log.proved_newest()
    if snapshot is None or snapshot.commit_deletion_mark < snapshot.version:
        return 0
    if not _has_older(reader, snapshot) or not mark_has_aged(log, ages):
        return 0
    maintain(reader, snapshot.version, known=snapshot, checkpoint=True)
    if reader.state(snapshot.version) is None or reader.checkpoint(snapshot.version) is None:
        return 0
    commits = _delete_below(reader, snapshot.version)
    seen = [entry.key for entry in reader.store.list(_seen_folder(log))]
    reader.store.delete([*seen, *stored_notes(log)[0]])
    return commits


def _has_older(reader: LogReader, newest: Snapshot) -> bool:
    """Return whether the log holds anything between version 0 and the newest."""
    older = (reader.listed(kind, newest.version) for kind in ("state", "checkpoint"))
    if _stored_versions(reader, newest.version) or any(older):
        return True
    return any(span.version <= newest.version for span in reader.spans())


def _delete_below(reader: LogReader, limit: int) -> int:
    """Delete commits, states and checkpoints below ``limit``, except version 0's commit."""
    # Commits first, and upward: a late process tells by the commit of its snapshot whether it may
    # trust those after it (ADR 17).
    commits = _stored_versions(reader, limit)
    for first in range(0, len(commits), _DELETE_PAGE):
        failpoint("cleanup.delete")
        page = commits[first : first + _DELETE_PAGE]
        reader.store.delete([reader.key(version) for version in page])
    states, old = reader.listed("state", limit), reader.listed("checkpoint", limit)
    reader.store.delete(state_key(reader.path, v) for v in states)
    parts = [span for span in reader.spans() if span.version <= limit]  # it has a state file
    reader.store.delete(part_key(reader.path, span) for span in parts)
    reader.store.delete(digest_key(reader.path, v) for v in old)
    reader.store.delete(checkpoint_key(reader.path, v) for v in old)
    return len(commits)


def _stored_versions(reader: LogReader, limit: int) -> range:
    """Return the versions below ``limit`` from the oldest stored one, except version 0.

    A listing may omit commits, but none may be left behind: a process that finds the commit of its
    snapshot relies on all later commits being stored as well.
    """
    listed = (state_version(entry.key) for entry in reader.store.list(reader.folder))
    first = min((version for version in listed if 0 < version < limit), default=limit)
    while first > 1 and first < limit and reader.has(first - 1):
        first -= 1
    return range(first, limit)


_COMMITS_OF_A_SWEEP = 1
"""A sweep commits once itself, so it leaves a table alone that gains no more than that, unless
the one version removed files."""
_COMMITS_BETWEEN = 32
"""A sweep writes a checkpoint this many commits after the one before, or more if it is large."""


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
        size = size_text(self.size_bytes)
        files = count_text(self.files, "file")
        return f"{files}, {size}: {self.reason}; from {utc_text(self.from_ms)}"


@dataclass(frozen=True, slots=True)
class SweepResult:
    """The horizon and the marks after a sweep, and the counts of what it deleted."""

    horizon: int
    retention_mark: int
    """The oldest retained version: older ones can be read no longer."""
    commit_deletion_mark: int
    """The version below which commits are deleted, an hour after it was set."""
    records: int
    """Records of writers without a ``writer_id``, and of transactions, moved to history."""
    files: int
    size_bytes: int
    commits: int
    pending: tuple[PendingFiles, ...] = ()
    """Removed files that wait, by reason."""
    unmoved: str = ""
    """Why neither the horizon nor a mark moved, with the next step; empty if one of them did."""


NOTHING_SWEPT: Final = SweepResult(
    horizon=0,
    retention_mark=0,
    commit_deletion_mark=0,
    records=0,
    files=0,
    size_bytes=0,
    commits=0,
)
"""Of a table that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
        files=first.files + second.files,
        size_bytes=first.size_bytes + second.size_bytes,
        reason=first.reason,
        from_ms=min(first.from_ms, second.from_ms),
        until_ms=max(first.until_ms, second.until_ms),
    )


@frees
def sweep_table(
    log: Log, *, grace_ms: int, retain_ms: int, now: ClockReading | None = None
) -> SweepResult:
    """Sweep a table once; safe to kill, to repeat and to run concurrently.

    Files that were staged more than ``grace_ms`` ago can no longer be committed, so the grace must
    be longer than any write or job. Time travel to versions older than ``retain_ms`` is no longer
    possible. A table that does not exist is not swept. ``now`` is the time if the caller read it.
    """
    if log.refresh(durable=True) is None:
        return NOTHING_SWEPT
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
    return SweepPlan(
        ages=ages,
        grace_ms=grace_ms,
        retain_ms=retain_ms,
        snapshot=snapshot,
        horizon=horizon,
        retention_mark=retained,
        aged_since=None,
        commits=0,
    )


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
        horizon=snapshot.horizon,
        retention_mark=snapshot.retention_mark,
        commit_deletion_mark=snapshot.commit_deletion_mark,
        records=len(dropped),
        files=deleted.files,
        size_bytes=deleted.size_bytes,
        commits=plan.commits,
        pending=pending,
        unmoved=unmoved,
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
    return (
        PendingFiles(
            files=waiting.files,
            size_bytes=waiting.size_bytes,
            reason=reason,
            from_ms=first_ms,
            until_ms=last_ms,
        ),
    )


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


def preview_sweep(log: Log, *, grace_ms: int, retain_ms: int, now: ClockReading) -> SweepResult:
    """Return what a sweep at this time would do with removed files, and which ones would wait.

    The horizon and the retention mark are those that it would set. Learns what the commits since
    the last sweep did, as the sweep would. A table that does not exist has nothing to sweep.
    """
    snapshot = log.refresh()
    if snapshot is None:
        return NOTHING_SWEPT
    plan = plan_marks(snapshot, VersionAges(log, now), grace_ms, retain_ms)
    moves = moves_marks(log, plan)
    horizon, mark = plan.horizon, plan.retention_mark
    if not moves:
        horizon, mark = snapshot.horizon, snapshot.retention_mark
    deleted, waiting = removed_around(log, snapshot, mark)
    return SweepResult(
        horizon=horizon,
        retention_mark=mark,
        commit_deletion_mark=snapshot.commit_deletion_mark,
        records=0,
        files=deleted.files,
        size_bytes=deleted.size_bytes,
        commits=0,
        pending=pending_files(plan, waiting, snapshot),
        unmoved="" if moves else why_unmoved(plan),
    )
