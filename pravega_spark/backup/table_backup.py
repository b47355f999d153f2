"""Copies one table: its data files first, then its log, and the log's version 0 last.

Every open refuses a log without version 0, so the copy becomes a table in one step, when all
objects that its newest version names are there. It ends with a closing commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pravega_spark.backup.copy_update import CopyUpdate, TableCopy
from pravega_spark.backup.final_commit import CopyRecord, closing_changes, is_deleted
from pravega_spark.backup.object_copy import copy_files, copy_log, write_pointer
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.table_at_version import table_at
from pravega_spark.engine.log.version_pins import Pin, pin, pins, release
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.records import STREAM_DOMAIN, decode_stream
from pravega_spark.errors import CorruptLog, DataLoss, IllegalState


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table that was copied: its version in the source, and what the copy holds."""

    path: str
    version: int
    files: int
    size_bytes: int
    transactions: tuple[str, ...] = ()
    """Transactions that were open; they are aborted in the copy."""
    subscribers: tuple[str, ...] = ()
    """Groups that hold data of the stream and are not copied; in the copy they hold nothing."""
    is_deleted: bool = False
    """Whether the stream was deleted before it could be copied; it is deleted in the copy, too."""


def _copied(path: str, record: CopyRecord, snapshot: Snapshot) -> CopiedTable:
    given = record.version, record.files, record.bytes, record.aborted, record.released
    return CopiedTable(path, *given, is_deleted(snapshot))


@dataclass(frozen=True, slots=True)
class TableCopier:
    """How the tables of one backup are copied."""

    target: Store
    backup_id: str
    keep_ms: int
    """How long a version stays pinned at most."""
    check: Callable[[], None]
    """Runs before a copy becomes a table; an error that it raises ends the copy."""
    has_group: Callable[[str], bool]
    """Whether the copy has a reader group."""
    update: CopyUpdate | None = None
    """Given where a finished copy is brought up to date."""

    def unchanged(self, log: Log) -> CopiedTable | None:
        """Return what the copy holds of a table that has not changed in the source since."""
        before = None if self.update is None else self.update.copies.get(log.path)
        snapshot = log.refresh(durable=True)
        if before is None or snapshot is None or not before.is_current(log, snapshot):
            return None
        return _copied(log.path, before.record, snapshot)

    def copy(
        self,
        log: Log,
        held: Pin | None = None,
        *,
        seen: Callable[[Snapshot], object] = bool,
        is_index: bool = False,
    ) -> CopiedTable:
        """Copy a table to the same path, as of its newest or a ``held`` version.

        The version is pinned until its files are copied. The deletion of the stream also deletes
        pinned files; the copy then starts again with the stream's present state. ``seen`` is called
        with the version's snapshot while it is pinned. Safe to kill and to repeat. In an update, a
        table that is in the copy, and an index, changes when the update is applied, and one that
        has not changed in the source costs no commit there. Raises CorruptLog and DataLoss for
        damage, IllegalState if the pin expired too early or the source has another table there.
        """
        copy = LogReader(self.target, log.path)
        before = None if self.update is None else self.update.copies.get(log.path)
        while True:
            snapshot = log.refresh(durable=True)
            assert snapshot is not None, f"{log.reader.where} has no log to copy"
            if before is None:
                self.target.delete([copy.hint_key, copy.key(0)])  # of an earlier attempt
            elif held is None and (kept := self.unchanged(log)) is not None:
                seen(snapshot)
                return kept
            if is_deleted(snapshot):  # it has no files, so it needs no pin
                held, version = None, snapshot.version
                if before is not None and version <= before.newest:  # it was deleted before, too
                    seen(snapshot)
                    return _copied(log.path, before.record, snapshot)
            else:
                held = held or pin(log, self.backup_id, keep_ms=self.keep_ms)
                version = held.version
                failpoint("backup.pinned")
            try:
                if before is None or version > before.newest:
                    return self._copy_version(log, copy, version, before, seen, is_index=is_index)
            except (CorruptLog, DataLoss, FileNotFoundError):
                self.check()
                if not _was_deleted_since(log, snapshot, version):
                    _check_pinned(log, held)
                    raise
            finally:
                if held is not None:
                    release(log, held)
                    held = None

    def _copy_version(
        self,
        log: Log,
        copy: LogReader,
        version: int,
        before: TableCopy | None,
        seen: Callable[[Snapshot], object],
        *,
        is_index: bool,
    ) -> CopiedTable:
        """Copy a version, or prepare the commit that brings a copy up to it."""
        snapshot, files = table_at(log.reader, version)
        seen(snapshot)
        count, size_bytes = copy_files(log, copy, files.all())
        failpoint("backup.files")
        now_ms = max(log.runtime.now_ms(), snapshot.timestamp_ms + 1)
        in_update = self.update is not None and (before is not None or is_index)
        last = version if in_update else version + 1
        domains, aborted, released = closing_changes(snapshot, last, now_ms, self.has_group)
        record = CopyRecord(
            *(log.reader.where, version, snapshot.token, self.backup_id),
            *(count, size_bytes, aborted, released),
        )
        done = _copied(log.path, record, snapshot)
        if in_update:
            assert self.update is not None
            self.update.prepare(log, before, snapshot, files, domains, record)
            return done
        copy_log(log, copy, snapshot)
        body = record.body()
        body.domains = domains
        copy.store.put(copy.key(last), body.encode(log.runtime.token(), now_ms))
        failpoint("backup.log")
        self.check()
        copy.store.put(copy.key(0), log.store.get(log.reader.key(0)))
        found, copied = table_at(copy, last)
        if found.version != last or sum(1 for _ in copied.all()) != count:
            copy.store.delete([copy.key(0)])
            raise CorruptLog(
                f"{copy.where}: the copy differs from its source {log.reader.where}.",
                path=copy.where,
            )
        failpoint("backup.table")
        write_pointer(copy)
        return done


def _was_deleted_since(log: Log, before: Snapshot, version: int) -> bool:
    """Return whether a life of the stream ended, or its log was cut, after a version."""
    now = log.refresh(durable=True)
    assert now is not None
    return now.version > version and (is_deleted(now) or _life(now) != _life(before))


def _check_pinned(log: Log, held: Pin | None) -> None:
    """Raise IllegalState if the pin has expired: the source is then not damaged."""
    assert log.snapshot is not None
    if held is not None and held not in pins(log.snapshot):
        raise IllegalState(
            f"{log.reader.where}: the pin of version {held.version} expired after "
            f"{held.keep_ms / 1000:g} s, and a sweep deleted pinned files before they were copied. "
            "Run the backup again with `keep` longer than the time to copy one table."
        )


def _life(snapshot: Snapshot) -> int:
    """Return the life of a stream, 0 for any other table."""
    text = snapshot.domains.get(STREAM_DOMAIN)
    return 0 if text is None else decode_stream(text).life
