"""What the sweeps of a table have done so far, and counts of what they deleted.

The record is one object, ``_pravega/sweep.json``, put at the end of each sweep. It counts only if
its digest matches, the log still has the commit that it names, and all of its segments are intact;
otherwise the next sweep lists all files and begins a new record. One sweep in about a day lists all
files beside the record: it finds the files that a stalled process staged in a folder that was
listed before.

Counts what the sweeps of a table have deleted so far, in one small object beside its log. The
counts are for people: nothing is decided on them. Each sweep that deleted something replaces the
object, so it does not grow and costs the log no commit. Two sweeps at the same time may lose the
count of one. A damaged or missing object counts from zero.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, field

from pravega_spark.config.descriptions import FileTotals
from pravega_spark.engine.attached_objects import with_attached
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.files import (
    FORMAT,
    ChangesPart,
    FileChanges,
    changes_folder,
    changes_key,
    decode_changes,
    encode_changes,
)
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.stored_state import state_version
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.json_codec import (
    DECODE_ERRORS,
    digested_record,
    to_digested_line,
    to_json,
    typed,
)
from pravega_spark.values.limits import SWEEP_SEGMENT_FILES


class SegmentLost(Exception):
    """A segment that the record names is missing or differs; the record cannot be used."""


@dataclass(slots=True)
class SweepRecord:
    """The progress of a table's sweeps, and the file changes that later ones need.

    Segments and ``tail`` cover the commits after the retention mark, without a gap.
    """

    retained: int
    """Files that were removed up to this version are deleted."""
    horizon: int
    """Files that were staged below this version and never committed are deleted."""
    listed_ms: int
    """The time of the last complete listing; 0 if unknown."""
    tail: FileChanges
    segments: list[ChangesPart] = field(default_factory=list)
    token: str = ""
    """The token of the commit ``tail.version``."""
    ended: list[str] = field(default_factory=list)
    """Transactions that ended in the versions that this sweep added; not stored."""
    is_kept: bool = True
    """Whether it is to be stored; one that is only looked at writes no segment."""

    @property
    def version(self) -> int:
        """The last version of which it has the changes."""
        return self.tail.version

    def read_on(self, log: Log, snapshot: Snapshot) -> None:
        """Add the changes up to a snapshot; write a segment each time enough files were named."""
        for changes in log.reader.changes(self.version, snapshot.version):
            self.ended += [name for name, v in changes.ended.items() if v > self.version]
            self.tail.join(changes)
            if self.is_kept and self.tail.paths >= SWEEP_SEGMENT_FILES:
                self._close_segment(log)
        self.token = snapshot.token

    def _close_segment(self, log: Log) -> None:
        tail, data = self.tail, encode_changes(self.tail)
        log.store.put(changes_key(log.path, tail.since, tail.version), data, durable=False)
        self.segments.append(ChangesPart.of(tail, data))
        self.tail = FileChanges(tail.version, tail.version)
        failpoint("sweep.segment")

    def keys(self, path: str) -> set[str]:
        """Return the keys of the record and its segments, for the table at ``path``."""
        return {record_key(path), *(changes_key(path, s.since, s.version) for s in self.segments)}

    def added_from(self, log: Log, staged_from: int, staged_below: int) -> set[str]:
        """Return the committed files of the folders of [staged_from, staged_below), at least.

        With each comes the object that is attached to it.
        A file is committed after the version at which it was staged. Raises SegmentLost.
        """
        found = set(with_attached(self.tail.added_paths()))
        for segment in self.segments:
            if segment.version > staged_from and segment.staged_from < staged_below:
                found.update(with_attached(_load(log, segment).added_paths()))
        return found

    def removed_until(self, log: Log, mark: int) -> tuple[int, list[str]]:
        """Return the bytes and paths of the files removed since ``retained``, up to a mark.

        Raises SegmentLost.
        """
        size_bytes, paths = self.tail.removed_in(self.retained, mark)
        for segment in self.segments:
            if segment.files and segment.since < mark and segment.version > self.retained:
                more, found = _load(log, segment).removed_in(self.retained, mark)
                size_bytes, paths = size_bytes + more, paths + found
        return size_bytes, paths

    def removed_after(self, log: Log, mark: int) -> dict[str, int]:
        """Return the files that were removed after a mark, by path, with the versions.

        Raises SegmentLost.
        """
        parts = [_load(log, s) for s in self.segments if s.files and s.version > mark]
        return {
            path: version
            for part in (*parts, self.tail)
            for version, (_, paths) in part.removed.items()
            if version > mark
            for path in paths
        }

    def waiting(self, log: Log, mark: int) -> Waiting:
        """Return the files that were removed after a mark. Raises SegmentLost."""
        found = Waiting()
        for segment in self.segments:
            if not segment.files or segment.version <= mark:
                continue
            if segment.since >= mark:
                part = Waiting(
                    files=segment.files,
                    size_bytes=segment.size_bytes,
                    first_removal=segment.first_removal,
                    last_removal=segment.last_removal,
                )
            else:
                part = _waiting_in(_load(log, segment), mark)
            found = found + part
        return found + _waiting_in(self.tail, mark)

    def store(self, log: Log, retained: int, horizon: int) -> None:
        """Store the record of a sweep that reached these marks; delete segments not needed."""
        self.retained, self.horizon = retained, horizon
        done = min(retained, horizon) or -1  # version 0 counts until the horizon has passed it
        old = [segment for segment in self.segments if segment.version <= done]
        self.segments = [segment for segment in self.segments if segment.version > done]
        if self.version <= done:
            self.tail = FileChanges(self.version, self.version)
        record = {
            "format": FORMAT,
            "token": self.token,
            "retained": retained,
            "horizon": horizon,
            "listed": self.listed_ms,
            "segments": [astuple(segment) for segment in self.segments],
            **self.tail.to_json(),
        }
        log.store.put(record_key(log.path), to_digested_line(record), durable=False)
        failpoint("sweep.recorded")
        log.store.delete(changes_key(log.path, s.since, s.version) for s in old)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Removed files that retained versions hold: their number and bytes."""

    files: int = 0
    size_bytes: int = 0
    first_removal: int = 0
    """The oldest version that removed some of them."""
    last_removal: int = 0

    def __add__(self, other: Waiting) -> Waiting:
        """Return both together; the files of ``other`` were removed later."""
        first = self.first_removal or other.first_removal
        last = other.last_removal or self.last_removal
        return Waiting(
            files=self.files + other.files,
            size_bytes=self.size_bytes + other.size_bytes,
            first_removal=first,
            last_removal=last,
        )


def _waiting_in(changes: FileChanges, mark: int) -> Waiting:
    size_bytes, paths = changes.removed_in(mark, changes.version)
    waiting = [version for version in changes.removed if version > mark]
    return Waiting(
        files=len(paths),
        size_bytes=size_bytes,
        first_removal=min(waiting, default=0),
        last_removal=max(waiting, default=0),
    )


def _load(log: Log, segment: ChangesPart) -> FileChanges:
    try:
        data = log.store.get(changes_key(log.path, segment.since, segment.version))
    except FileNotFoundError:
        raise SegmentLost from None
    changes = decode_changes(data, segment)
    if changes is None:
        raise SegmentLost
    return changes


def record_key(path: str) -> str:
    """Return the key of the record of the table at ``path``."""
    return f"{path}/_pravega/sweep.json"


def new_record(snapshot: Snapshot, listed_ms: int, *, is_kept: bool = True) -> SweepRecord:
    """Return a record that begins at the retention mark of a snapshot.

    A file is committed after the version at which it was staged, except those that version 0 adds:
    they are staged at 0, too.
    """
    mark = snapshot.retention_mark
    since = mark if mark > 0 else -1
    return SweepRecord(
        retained=mark,
        horizon=mark,
        listed_ms=listed_ms,
        tail=FileChanges(since, since),
        is_kept=is_kept,
    )


def read_record(log: Log, snapshot: Snapshot) -> SweepRecord | None:
    """Return the stored record if it is intact and of this log at this snapshot, else None."""
    try:
        found = digested_record(log.store.get(record_key(log.path)))
        if found is None or found["format"] != FORMAT:
            return None
        marks = int(found["retained"]), int(found["horizon"]), int(found["listed"])
        segments = [ChangesPart(*cells) for cells in found["segments"]]
        record = SweepRecord(*marks, FileChanges.from_json(found), segments, found["token"])
    except (FileNotFoundError, *DECODE_ERRORS):
        return None
    if not snapshot.commit_deletion_mark <= record.version <= snapshot.version:
        return None
    if record.retained > snapshot.retention_mark or record.horizon > snapshot.horizon:
        return None
    commit = log.reader.commit(record.version, light=True)
    return record if commit is not None and commit.token == record.token else None


def readable_record(log: Log, snapshot: Snapshot) -> SweepRecord:
    """Return the record of the last sweep with the commits since, to look at; writes nothing.

    Without an intact record it begins at the retention mark.
    """
    record = read_record(log, snapshot) or new_record(snapshot, 0)
    record.is_kept = False
    record.read_on(log, snapshot)
    return record


def removed_since_retention_mark(log: Log, snapshot: Snapshot) -> dict[str, int]:
    """Return the retained removed files, by path, with the versions that removed them.

    Writes nothing; uses the record of the last sweep as far as it is intact.
    """
    mark = snapshot.retention_mark
    try:
        return readable_record(log, snapshot).removed_after(log, mark)
    except SegmentLost:
        return _reread(log, snapshot).removed_after(log, mark)


def removed_around(log: Log, snapshot: Snapshot, mark: int) -> tuple[FileTotals, Waiting]:
    """Return the removed files that a sweep with a retention mark deletes, and those that wait.

    Writes nothing.
    """
    record = readable_record(log, snapshot)
    try:
        size_bytes, paths = record.removed_until(log, mark)
        waiting = record.waiting(log, mark)
    except SegmentLost:
        record = _reread(log, snapshot)
        size_bytes, paths = record.removed_until(log, mark)
        waiting = record.waiting(log, mark)
    return FileTotals(len(paths), size_bytes), waiting


def _reread(log: Log, snapshot: Snapshot) -> SweepRecord:
    """Return a record of all changes since the retention mark, without segments."""
    record = new_record(snapshot, 0, is_kept=False)
    record.read_on(log, snapshot)
    return record


def stored_notes(log: Log) -> tuple[set[str], int]:
    """Return the keys of the record and of all stored segments, and the newest checkpoint or -1.

    The digests of checkpoints are beside the segments, so that one listing has both.
    """
    folder, checkpoints = changes_folder(log.path), f"{log.path}/_pravega/checkpoint"
    keys = [e.key for e in log.store.list(f"{log.path}/_pravega", before=f"{checkpoints}0")]
    segments = {key for key in keys if key.startswith(f"{folder}/")}
    digests = (state_version(key) for key in keys if key.startswith(f"{checkpoints}/"))
    return {record_key(log.path), *segments}, max(digests, default=-1)


def read_swept(log: Log) -> FileTotals:
    """Return the number and bytes of the data files that sweeps have deleted."""
    try:
        record = json.loads(log.store.get(_key(log)))
        return FileTotals(typed(record["files"], int), typed(record["bytes"], int))
    except (FileNotFoundError, *DECODE_ERRORS):
        return FileTotals()


def add_swept(log: Log, deleted: FileTotals) -> None:
    """Add what a sweep has just deleted."""
    if deleted.files:
        total = read_swept(log) + deleted
        record = {"files": total.files, "bytes": total.size_bytes}
        log.store.put(_key(log), to_json(record).encode() + b"\n", durable=False)


def delete_swept(log: Log) -> None:
    """Count from zero again, since the table's life has ended."""
    log.store.delete([_key(log)])


def _key(log: Log) -> str:
    return f"{log.path}/_pravega/swept.json"
