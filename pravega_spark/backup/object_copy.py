"""Copies the objects of one table: its data files, and its log except for version 0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.delta_checkpoint import checkpoint_key, digest_key
from pravega_spark.engine.log.log_reader import Hint, LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.state_file import state_key, state_version
from pravega_spark.engine.log.state_part import joined_spans, part_key
from pravega_spark.engine.log.table_at_version import keys_after
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.stream import archived_records
from pravega_spark.errors import CorruptLog, DataLoss
from pravega_spark.limits import COPY_PAGE_BYTES, COPY_PAGE_FILES, LARGE_EVENT_BLOCK_BYTES


def copy_files(log: Log, copy: LogReader, adds: Iterable[Add]) -> tuple[int, int]:
    """Copy the files that the copy lacks; return the number and the bytes of all files.

    Raises DataLoss if a file of the source is missing or has the wrong size.
    """
    sizes = {entry.key: entry.size for entry in copy.store.list(f"{copy.path}/data")}
    count = size_bytes = 0
    for page in _pages(adds):
        missing = [add for add in page if not _is_copied(add, log.path, sizes)]
        log.runtime.each(partial(_copy_file, log, copy), missing)
        count, size_bytes = count + len(page), size_bytes + sum(add.stored_bytes for add in page)
    return count, size_bytes


def _pages(adds: Iterable[Add]) -> Iterator[list[Add]]:
    page: list[Add] = []
    size_bytes = 0
    for add in adds:
        page.append(add)
        size_bytes += add.stored_bytes
        if len(page) >= COPY_PAGE_FILES or size_bytes >= COPY_PAGE_BYTES:
            yield page
            page, size_bytes = [], 0
    yield page


def _is_copied(add: Add, path: str, sizes: Mapping[str, int]) -> bool:
    attached = attached_object(add.path)
    if attached is not None and sizes.get(f"{path}/{attached[0]}") != attached[1]:
        return False
    return sizes.get(f"{path}/{add.path}") == add.size


def _copy_file(log: Log, copy: LogReader, add: Add) -> None:
    """Copy a data file, and before it the object of a large event, piece by piece."""
    attached = attached_object(add.path)
    if attached is not None:
        _copy_attached(log, copy, *attached)
    key = f"{log.path}/{add.path}"
    try:
        data = log.store.get(key)
    except FileNotFoundError:
        raise DataLoss(
            f"{log.reader.where}: file {add.path} does not exist, so the table cannot be backed "
            "up; restore the file from a copy.",
            path=f"{log.reader.where}/{add.path}",
        ) from None
    if len(data) != add.size:
        raise DataLoss(
            f"{log.reader.where}: file {add.path} has {len(data)} bytes instead of {add.size}, so "
            "the table cannot be backed up; restore the file from a copy.",
            path=f"{log.reader.where}/{add.path}",
        )
    failpoint("backup.file")
    copy.store.put(key, data)


def _copy_attached(log: Log, copy: LogReader, path: str, size: int) -> None:
    key, where = f"{log.path}/{path}", f"{log.reader.where}/{path}"
    try:
        with log.store.open(key) as source:
            found = source.size()
            if found == size:
                with copy.store.writer(key) as target:
                    while data := source.read(LARGE_EVENT_BLOCK_BYTES):
                        target.write(data)
    except FileNotFoundError:
        found = None
    if found != size:
        has = "does not exist" if found is None else f"has {found} bytes instead of {size}"
        raise DataLoss(
            f"{log.reader.where}: the object of a large event, {path}, {has}, so the table cannot "
            "be backed up; restore the object from a copy.",
            path=where,
        )
    failpoint("backup.object")


def copy_log(log: Log, copy: LogReader, snapshot: Snapshot) -> None:
    """Copy the log's objects up to the version of ``snapshot``, except for version 0.

    A concurrent cleanup may delete objects below the commit-deletion mark: the copy does not need
    them. Raises CorruptLog if the source lacks a commit from that mark on: the copy has the same
    mark, and processes rely on all commits from it on.
    """
    source, last = log.reader, snapshot.version
    # An earlier attempt may have copied another root that had a table at this path.
    copy.store.delete(keys_after(copy, last))
    _copy_commits(log.runtime, source, copy, max(1, snapshot.commit_deletion_mark), last)
    for version in source.listed("checkpoint", last + 1):
        keys = [checkpoint_key(source.path, version), digest_key(source.path, version)]
        _copy_objects(log.runtime, source, copy, keys)
    for version in source.listed("state", last + 1):
        _copy_objects(log.runtime, source, copy, [state_key(source.path, version)])
    for span in source.spans():
        if span.version <= last:
            _copy_objects(log.runtime, source, copy, [part_key(source.path, span)])
    wanted, stored = archived_keys(log, copy, last)
    copy.store.delete(stored.difference(wanted))
    for page in archived_pages(log, wanted):
        log.runtime.each(lambda item: copy.store.put(*item), page)


def archived_keys(log: Log, copy: LogReader, last: int) -> tuple[list[str], set[str]]:
    """Return the keys of the archived records up to a version, and those that a copy has.

    A later record would say that a writer has events which the copy has not.
    """
    archive = archived_records.archive_folder(log.path)
    wanted = [e.key for e in log.store.list(archive) if state_version(e.key) <= last]
    return wanted, {entry.key for entry in copy.store.list(archive)}


def archived_pages(log: Log, keys: Sequence[str]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the archived records of writers among the keys, some at a time."""
    for first in range(0, len(keys), COPY_PAGE_FILES):
        page = keys[first : first + COPY_PAGE_FILES]
        found = zip(page, log.store.get_many(page), strict=True)
        records = ((key, data) for key, data in found if data is not None)
        yield [item for item in records if archived_records.is_writer_archive(item[1])]


def _copy_commits(
    runtime: Runtime, source: LogReader, copy: LogReader, oldest_needed: int, last: int
) -> None:
    """Copy all stored commits from version 1 to ``last``; each needed one must be there."""
    stored = [state_version(entry.key) for entry in source.store.list(source.folder)]
    versions = [version for version in sorted(stored) if 0 < version <= last]
    needed = range(oldest_needed, last + 1)
    missing = set(needed) - set(versions)
    for first in range(0, len(versions), COPY_PAGE_FILES):
        page = versions[first : first + COPY_PAGE_FILES]
        absent = _copy_objects(runtime, source, copy, [source.key(v) for v in page])
        missing |= {v for v in page if v in needed and source.key(v) in absent}
    if missing:
        raise CorruptLog(
            f"{source.where}: version {min(missing)} of the log is missing. Restore it from "
            "a copy.",
            path=source.where,
            version=min(missing),
        )


def _copy_objects(
    runtime: Runtime,
    source: LogReader,
    copy: LogReader,
    keys: Sequence[str],
) -> set[str]:
    """Copy some objects; return the keys that the source does not have."""
    found = dict(zip(keys, source.store.get_many(keys), strict=True))
    wanted = [(key, data) for key, data in found.items() if data is not None]
    runtime.each(lambda item: copy.store.put(*item), wanted)
    return {key for key, data in found.items() if data is None}


def write_pointer(copy: LogReader) -> None:
    """Write the pointer to the copy's newest state file, the parts after it, and checkpoint."""
    state, checkpoint = (max(copy.listed(kind), default=-1) for kind in ("state", "checkpoint"))
    parts = tuple(span.version for span in joined_spans(state, copy.spans()))
    copy.store.put(copy.hint_key, Hint(state, checkpoint, parts).encode())
