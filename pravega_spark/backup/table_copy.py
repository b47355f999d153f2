"""The copy of one table: files first, then its log, and the log's first version last.

A log without its version 0 is refused by every open, so a copy becomes a table in one step, when
all that its newest version names is there. The copy of a stream ends with a commit of its own,
which aborts the transactions that are open: their chunks stay behind. It also removes what the
stream knows of groups that the copy does not have: nobody could ever make them release its data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from pravega_spark.backup.table_at_version import beyond, end_transactions, table_at
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Add, Body, to_json
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.delta_checkpoint import checkpoint_key, digest_key
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.state_file import state_key, state_version
from pravega_spark.engine.log.version_pins import Pin, pin, pins, release
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.records import (
    STREAM_DOMAIN,
    SUBSCRIBER_PREFIX,
    StreamState,
    decode_stream,
    decode_subscriber,
)
from pravega_spark.errors import CorruptLog, DataLoss, IllegalState
from pravega_spark.limits import COPY_PAGE_BYTES, COPY_PAGE_FILES

REASON = "it was open when the stream was backed up, and its events are not in the copy"


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """A table that was copied: its version in the source, and what was copied of it."""

    path: str
    version: int
    files: int
    size_bytes: int
    transactions: tuple[str, ...] = ()
    """Those that were open, and are aborted in the copy."""
    subscribers: tuple[str, ...] = ()
    """Groups that hold data of the stream and are not copied: in the copy they hold nothing."""
    is_deleted: bool = False
    """Whether the stream was deleted before it could be copied: the copy says so, too."""


def copy_table(
    log: Log,
    target: Store,
    pin_id: str,
    *,
    keep_ms: int,
    check: Callable[[], None],
    has_group: Callable[[str], bool],
) -> CopiedTable:
    """Copy a table to the same path of another store, as of its newest version.

    The version is pinned meanwhile, for ``keep_ms`` at most. A deletion of the stream deletes what
    was pinned, too: then the copy begins again, of what the stream is now. ``check`` is called
    before the copy becomes a table; what it raises ends the copy. ``has_group`` tells whether the
    copy has a reader group. Safe to kill and to repeat. Raises CorruptLog and DataLoss for damage,
    IllegalState if the pin expired too early.
    """
    copy = LogReader(target, log.path)
    while True:
        snapshot = log.refresh(durable=True)
        assert snapshot is not None, f"{log.reader.where} has no log to copy"
        target.delete([copy.hint_key, copy.key(0)])  # of an earlier attempt
        if _is_deleted(snapshot):  # without files, and so without a pin
            held, version = None, snapshot.version
        else:
            held = pin(log, pin_id, keep_ms=keep_ms)
            version = held.version
            failpoint("backup.pinned")
        try:
            return _copy(log, copy, version, check=check, has_group=has_group)
        except (CorruptLog, DataLoss, FileNotFoundError):
            check()
            if not _has_ended(log, snapshot, version):
                _check_held(log, held)
                raise
        finally:
            if held is not None:
                release(log, held)


def _has_ended(log: Log, before: Snapshot, version: int) -> bool:
    """Tell whether the life of a stream has ended since it was looked at, or its log was cut."""
    now = log.refresh(durable=True)
    assert now is not None
    return now.version > version and (_is_deleted(now) or _life(now) != _life(before))


def _check_held(log: Log, held: Pin | None) -> None:
    """Raise IllegalState if the pin has expired: then nothing is damaged."""
    assert log.snapshot is not None
    if held is not None and held not in pins(log.snapshot):
        raise IllegalState(
            f"{log.reader.where}: the pin of version {held.version} expired after "
            f"{held.keep_ms / 1000:g} s, and what it kept was deleted while it was copied: repeat "
            "the backup, with a keep that is longer than the copying of one table takes."
        )


def _copy(
    log: Log,
    copy: LogReader,
    version: int,
    *,
    check: Callable[[], None],
    has_group: Callable[[str], bool],
) -> CopiedTable:
    snapshot, files = table_at(log.reader, version)
    count, size_bytes = _copy_files(log, copy, files.all())
    failpoint("backup.files")
    _copy_log(log, copy, snapshot)
    last, ended, released = _close(log.runtime, copy, snapshot, log.reader.where, has_group)
    failpoint("backup.log")
    check()
    copy.store.put(copy.key(0), log.store.get(log.reader.key(0)))
    found, copied = table_at(copy, last)
    if found.version != last or sum(1 for _ in copied.all()) != count:
        copy.store.delete([copy.key(0)])
        raise CorruptLog(
            f"{copy.where}: the copy does not hold what {log.reader.where} holds.", path=copy.where
        )
    failpoint("backup.table")
    _point(copy, last)
    deleted = _is_deleted(snapshot)
    return CopiedTable(log.path, version, count, size_bytes, ended, released, deleted)


def _is_deleted(snapshot: Snapshot) -> bool:
    text = snapshot.domains.get(STREAM_DOMAIN)
    return text is not None and decode_stream(text).state is StreamState.DELETED


def _life(snapshot: Snapshot) -> int:
    """Return the life of a stream, 0 of what is none."""
    text = snapshot.domains.get(STREAM_DOMAIN)
    return 0 if text is None else decode_stream(text).life


def _copy_files(log: Log, copy: LogReader, adds: Iterable[Add]) -> tuple[int, int]:
    """Copy the files that the copy does not have yet; return how many there are, and bytes."""
    there = {entry.key: entry.size for entry in copy.store.list(f"{copy.path}/data")}
    count = size_bytes = 0
    for page in _pages(adds):
        missing = [add for add in page if there.get(f"{log.path}/{add.path}") != add.size]
        log.runtime.each(partial(_copy_file, log, copy), missing)
        count, size_bytes = count + len(page), size_bytes + sum(add.size for add in page)
    return count, size_bytes


def _pages(adds: Iterable[Add]) -> Iterator[list[Add]]:
    page: list[Add] = []
    size_bytes = 0
    for add in adds:
        page.append(add)
        size_bytes += add.size
        if len(page) >= COPY_PAGE_FILES or size_bytes >= COPY_PAGE_BYTES:
            yield page
            page, size_bytes = [], 0
    yield page


def _copy_file(log: Log, copy: LogReader, add: Add) -> None:
    key = f"{log.path}/{add.path}"
    try:
        data = log.store.get(key)
    except FileNotFoundError:
        data = b""
    if len(data) != add.size:
        raise DataLoss(
            f"{log.reader.where}: file {add.path} has {len(data)} bytes instead of {add.size}, so "
            "the table cannot be backed up; restore the file from a copy.",
            path=add.path,
        )
    failpoint("backup.file")
    copy.store.put(key, data)


def _copy_log(log: Log, copy: LogReader, snapshot: Snapshot) -> None:
    """Copy what is stored of the log up to a version, but for version 0.

    Clean-up may delete what lies below its mark meanwhile: that is not needed.
    """
    source, last = log.reader, snapshot.version
    copy.store.delete(beyond(copy, last))  # of an earlier attempt, on another root of this name
    commits = [state_version(entry.key) for entry in source.store.list(source.folder)]
    versions = [version for version in sorted(commits) if 0 < version <= last]
    needed = range(max(1, snapshot.cleanup), last + 1)
    missing = set(needed) - set(versions)
    for first in range(0, len(versions), COPY_PAGE_FILES):
        page = versions[first : first + COPY_PAGE_FILES]
        absent = _copy_objects(log.runtime, source, copy, [source.key(v) for v in page])
        missing |= {v for v in page if v in needed and source.key(v) in absent}
    if missing:
        raise CorruptLog(
            f"{source.where}: version {min(missing)} of the log is missing.",
            path=source.where,
            version=min(missing),
        )
    for version in source.listed("checkpoint", last + 1):
        keys = [checkpoint_key(source.path, version), digest_key(source.path, version)]
        _copy_objects(log.runtime, source, copy, keys)
    for version in source.listed("state", last + 1):
        _copy_objects(log.runtime, source, copy, [state_key(source.path, version)])
    records = [
        entry.key for entry in source.store.list(archived_records.archive_folder(source.path))
    ]
    for first in range(0, len(records), COPY_PAGE_FILES):
        keys = records[first : first + COPY_PAGE_FILES]
        _copy_objects(log.runtime, source, copy, keys, archived_records.is_writer_archive)


def _copy_objects(
    runtime: Runtime,
    source: LogReader,
    copy: LogReader,
    keys: Sequence[str],
    wanted: Callable[[bytes], bool] = lambda data: True,
) -> set[str]:
    """Copy those of the objects that are wanted; return the keys of those that are absent."""
    found = dict(zip(keys, source.store.get_many(keys), strict=True))
    there = [(key, data) for key, data in found.items() if data is not None and wanted(data)]
    runtime.each(lambda item: copy.store.put(*item), there)
    return {key for key, data in found.items() if data is None}


def _close(
    runtime: Runtime,
    copy: LogReader,
    snapshot: Snapshot,
    source: str,
    has_group: Callable[[str], bool],
) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """End the copy of a stream by a commit; return the copy's newest version.

    And the transactions that it aborts, and the subscribers that it releases.
    """
    if STREAM_DOMAIN not in snapshot.domains or _is_deleted(snapshot):
        return snapshot.version, (), ()
    now_ms = max(runtime.now_ms(), snapshot.timestamp_ms + 1)
    body = Body("BACKUP", {"of": source, "version": snapshot.version})
    left, released = _left_behind(snapshot, has_group)
    body.domains = {**{held.domain: None for held in pins(snapshot)}, **dict.fromkeys(left)}
    version = snapshot.version + 1
    ended = end_transactions(snapshot, body, version, now_ms, REASON)
    copy.store.put(copy.key(version), body.encode(runtime.token(), now_ms))
    return version, tuple(ended), tuple(released)


def _left_behind(
    snapshot: Snapshot, has_group: Callable[[str], bool]
) -> tuple[list[str], list[str]]:
    """Return the domains of groups that are not copied, and those groups that hold data.

    Also of removed ones: in the copy a group of that name begins in generation 0 again.
    """
    left, holding = [], []
    for domain in snapshot.names(SUBSCRIBER_PREFIX):
        group = domain.removeprefix(SUBSCRIBER_PREFIX)
        if not has_group(group):
            left.append(domain)
            if not decode_subscriber(group, snapshot.domains[domain]).removed:
                holding.append(group)
    return left, sorted(holding)


def _point(copy: LogReader, last: int) -> None:
    """Write the pointer to the copy's newest state file and checkpoint."""
    newest = [max(copy.listed(kind), default=-1) for kind in ("state", "checkpoint")]
    pointer = {"state": newest[0], "checkpoint": newest[1]}
    copy.store.put(copy.hint_key, to_json(pointer).encode())
