"""Copies one table: its data files first, then its log, and the log's version 0 last.

Every open refuses a log without version 0, so the copy becomes a table in one step, when all
objects that its newest version names are there. A stream's copy ends with a closing commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pravega_spark.backup.final_commit import close_copy
from pravega_spark.backup.object_copy import copy_files, copy_log, write_pointer
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.table_at_version import table_at
from pravega_spark.engine.log.version_pins import Pin, pin, pins, release
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.records import STREAM_DOMAIN, StreamState, decode_stream
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


def copy_table(
    log: Log,
    target: Store,
    pin_id: str,
    *,
    keep_ms: int,
    check: Callable[[], None],
    has_group: Callable[[str], bool],
    held: Pin | None = None,
) -> CopiedTable:
    """Copy a table to the same path of another store, as of its newest or a ``held`` version.

    The version is pinned until the copy is complete, for ``keep_ms`` at most. The deletion of the
    stream also deletes pinned files; the copy then starts again with the stream's present state.
    ``check`` runs before the copy becomes a table; an error that it raises ends the copy.
    ``has_group`` returns whether the copy has a reader group. Safe to kill and to repeat. Raises
    CorruptLog and DataLoss for damage, IllegalState if the pin expired too early.
    """
    copy = LogReader(target, log.path)
    while True:
        snapshot = log.refresh(durable=True)
        assert snapshot is not None, f"{log.reader.where} has no log to copy"
        target.delete([copy.hint_key, copy.key(0)])  # of an earlier attempt
        if _is_deleted(snapshot):  # it has no files, so it needs no pin
            held, version = None, snapshot.version
        else:
            held = held or pin(log, pin_id, keep_ms=keep_ms)
            version = held.version
            failpoint("backup.pinned")
        try:
            return _copy_version(log, copy, version, check=check, has_group=has_group)
        except (CorruptLog, DataLoss, FileNotFoundError):
            check()
            if not _was_deleted_since(log, snapshot, version):
                _check_pinned(log, held)
                raise
        finally:
            if held is not None:
                release(log, held)
                held = None


def _was_deleted_since(log: Log, before: Snapshot, version: int) -> bool:
    """Return whether a life of the stream ended, or its log was cut, after a version."""
    now = log.refresh(durable=True)
    assert now is not None
    return now.version > version and (_is_deleted(now) or _life(now) != _life(before))


def _check_pinned(log: Log, held: Pin | None) -> None:
    """Raise IllegalState if the pin has expired: the source is then not damaged."""
    assert log.snapshot is not None
    if held is not None and held not in pins(log.snapshot):
        raise IllegalState(
            f"{log.reader.where}: the pin of version {held.version} expired after "
            f"{held.keep_ms / 1000:g} s, and a sweep deleted pinned files before they were copied. "
            "Run the backup again with `keep` longer than the time to copy one table."
        )


def _copy_version(
    log: Log,
    copy: LogReader,
    version: int,
    *,
    check: Callable[[], None],
    has_group: Callable[[str], bool],
) -> CopiedTable:
    snapshot, files = table_at(log.reader, version)
    count, size_bytes = copy_files(log, copy, files.all())
    failpoint("backup.files")
    copy_log(log, copy, snapshot)
    is_deleted = _is_deleted(snapshot)
    last, aborted, released = version, tuple[str, ...](), tuple[str, ...]()
    if STREAM_DOMAIN in snapshot.domains and not is_deleted:
        where = log.reader.where
        last, aborted, released = close_copy(log.runtime, copy, snapshot, where, has_group)
    failpoint("backup.log")
    check()
    copy.store.put(copy.key(0), log.store.get(log.reader.key(0)))
    found, copied = table_at(copy, last)
    if found.version != last or sum(1 for _ in copied.all()) != count:
        copy.store.delete([copy.key(0)])
        raise CorruptLog(
            f"{copy.where}: the copy differs from its source {log.reader.where}.", path=copy.where
        )
    failpoint("backup.table")
    write_pointer(copy)
    return CopiedTable(log.path, version, count, size_bytes, aborted, released, is_deleted)


def _is_deleted(snapshot: Snapshot) -> bool:
    text = snapshot.domains.get(STREAM_DOMAIN)
    return text is not None and decode_stream(text).state is StreamState.DELETED


def _life(snapshot: Snapshot) -> int:
    """Return the life of a stream, 0 for any other table."""
    text = snapshot.domains.get(STREAM_DOMAIN)
    return 0 if text is None else decode_stream(text).life
