"""Finds the newest version of a table's copy that is intact: no commit or live file is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.log.actions import Add, Commit
from pravega_spark.engine.log.file_index import rows_of
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.state_file import state_version
from pravega_spark.engine.log.table_at_version import table_at
from pravega_spark.engine.stream.records import (
    STREAM_DOMAIN,
    WRITER_PREFIX,
    decode_stream,
    decode_writer,
)
from pravega_spark.errors import CorruptLog


@dataclass(slots=True)
class IntactVersion:
    """A table as of its newest intact version, and what later commits say, as far as readable."""

    snapshot: Snapshot
    newest: int
    """The newest version with a stored commit, intact or not."""
    events: int = 0
    """Events that the later commits added."""
    unreadable: int = 0
    """Later commits that are missing or damaged."""
    batches: dict[str, int] = field(default_factory=dict)
    """The last batch that the later commits added, by writer id of a query or an application."""
    life: int = 0
    """The highest life of a stream that a later commit names."""


def newest_intact_version(
    reader: LogReader, fits: Callable[[Snapshot], bool] = bool
) -> IntactVersion:
    """Return the newest version that can be rebuilt, ``fits``, and whose live files are all stored.

    Raises CorruptLog if there is none.
    """
    versions = _stored_versions(reader)
    readable = [v for v in versions if commit_if_readable(reader, v, light=True) is not None]
    files = reader.store.list(f"{reader.path}/data")
    sizes = {entry.key.removeprefix(f"{reader.path}/"): entry.size for entry in files}
    for first, last in _spans(readable):
        snapshot = _newest_intact_in(reader, sizes, first, last, fits)
        if snapshot is not None:
            return _with_later_commits(reader, IntactVersion(snapshot, max(versions)))
    raise CorruptLog(
        f"{reader.where}: no version has all of its commits and files; use another copy.",
        path=reader.where,
    )


def commit_if_readable(reader: LogReader, version: int, *, light: bool) -> Commit | None:
    """Return a commit, or None if it is missing or damaged."""
    try:
        return reader.commit(version, light=light)
    except CorruptLog:
        return None


def _stored_versions(reader: LogReader) -> list[int]:
    entries = reader.store.list(reader.folder)
    return [v for v in (state_version(entry.key) for entry in entries) if v >= 0]


def _spans(versions: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the spans without a gap, the newest first."""
    last = None
    for at in range(len(versions) - 1, -1, -1):
        last = versions[at] if last is None else last
        if at == 0 or versions[at - 1] < versions[at] - 1:
            yield versions[at], last
            last = None


def _newest_intact_in(
    reader: LogReader,
    sizes: Mapping[str, int],
    first: int,
    last: int,
    fits: Callable[[Snapshot], bool],
) -> Snapshot | None:
    """Return the newest intact version in a span of readable commits that fits, or None.

    Walks back from the last version: a version before a commit lacks the files that the commit
    adds and needs those that it removes. ``sizes`` are the stored data files by path.
    """
    try:
        snapshot, missing = _missing_at(reader, sizes, last)
    except CorruptLog:
        return None
    version = last
    while missing or not fits(snapshot):
        if version <= max(first, 0):
            return None
        commit = commit_if_readable(reader, version, light=False)
        assert commit is not None
        missing.difference_update(add.path for add in commit.adds)
        missing.update(p for p in commit.removes if p not in sizes or not _has_object(p, sizes))
        version -= 1
        if not missing:
            try:
                snapshot, missing = _missing_at(reader, sizes, version)
            except CorruptLog:
                return None
    return snapshot


def _missing_at(
    reader: LogReader, sizes: Mapping[str, int], version: int
) -> tuple[Snapshot, set[str]]:
    """Return a version's snapshot, and its live files that are not stored in full."""
    snapshot, files = table_at(reader, version)
    return snapshot, {add.path for add in files.all() if not _is_stored(add, sizes)}


def _is_stored(add: Add, sizes: Mapping[str, int]) -> bool:
    return sizes.get(add.path) == add.size and _has_object(add.path, sizes)


def _has_object(path: str, sizes: Mapping[str, int]) -> bool:
    """Return whether the object that a file names is stored in full; True if it names none."""
    attached = attached_object(path)
    return attached is None or sizes.get(attached[0]) == attached[1]


def _with_later_commits(reader: LogReader, intact: IntactVersion) -> IntactVersion:
    """Add what the commits after the intact version hold."""
    for version in range(intact.snapshot.version + 1, intact.newest + 1):
        commit = commit_if_readable(reader, version, light=False)
        if commit is None:
            intact.unreadable += 1
            continue
        intact.events += sum(rows_of(add) for add in commit.adds if add.data_change)
        for name, text in commit.domains.items():
            if name == STREAM_DOMAIN and text is not None:
                intact.life = max(intact.life, decode_stream(text).life)
            if name.startswith(WRITER_PREFIX) and text is not None:
                record = decode_writer(name.removeprefix(WRITER_PREFIX), text)
                if record.session == 0:
                    intact.batches[record.writer_id] = record.last
    return intact
