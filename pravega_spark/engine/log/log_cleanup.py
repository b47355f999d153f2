"""Delete the commits, state files and checkpoints of versions that are not retained.

Nothing is deleted before the commit-deletion mark has stood for an hour. A process whose snapshot
is that old knows that it must check the log first (``LogFollower.is_stale``). A sweep does not move
that mark within the hour, because a mark that keeps moving would never be old enough.
"""

from __future__ import annotations

import itertools

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.checkpointing import maintain
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.delta_checkpoint import checkpoint_key, digest_key
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.state_file import state_key, state_version
from pravega_spark.engine.log.state_part import part_key
from pravega_spark.engine.log.sweep_record import stored_notes
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.limits import CLEANUP_WAIT_SECONDS

_DELETE_PAGE = 1_000


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
