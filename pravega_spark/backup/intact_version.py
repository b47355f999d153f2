"""What is whole of a table's copy: the newest version whose commits and files are all there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pravega_spark.backup.table_at_version import table_at
from pravega_spark.engine.log.actions import Add, Commit
from pravega_spark.engine.log.file_index import rows_of
from pravega_spark.engine.log.log_reader import LogReader
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.log.state_file import state_version
from pravega_spark.engine.stream.records import WRITER_PREFIX, decode_writer
from pravega_spark.errors import CorruptLog


@dataclass(slots=True)
class IntactVersion:
    """A table as of its newest whole version, and what is stored of the versions after it."""

    snapshot: Snapshot
    newest: int
    """The newest version of which a commit is stored, whole or not."""
    events: int = 0
    """Events that the commits after the whole version added, as far as these can be read."""
    unreadable: int = 0
    """Commits after it that are missing or damaged."""
    batches: dict[str, int] = field(default_factory=dict)
    """By writer id of a query or an application, the last batch that those commits added."""


def newest_intact_version(reader: LogReader) -> IntactVersion:
    """Look for the newest version that can be rebuilt, and whose live files are all there.

    Raises CorruptLog if there is none.
    """
    versions = _stored(reader)
    sound = [v for v in versions if readable(reader, v, light=True) is not None]
    files = reader.store.list(f"{reader.path}/data")
    there = {entry.key.removeprefix(f"{reader.path}/"): entry.size for entry in files}
    for first, last in _runs(sound):
        snapshot = _whole_of(reader, there, first, last)
        if snapshot is not None:
            return _told(reader, IntactVersion(snapshot, max(versions)))
    raise CorruptLog(
        f"{reader.where}: there is no version whose commits and files are all there; take another "
        "copy.",
        path=reader.where,
    )


def _stored(reader: LogReader) -> list[int]:
    """Return the versions of which there is a commit."""
    entries = reader.store.list(reader.folder)
    return [v for v in (state_version(entry.key) for entry in entries) if v >= 0]


def readable(reader: LogReader, version: int, *, light: bool) -> Commit | None:
    """Return a commit; None if it is missing or damaged."""
    try:
        return reader.commit(version, light=light)
    except CorruptLog:
        return None


def _runs(versions: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of the spans without a gap, the newest first."""
    last = None
    for at in range(len(versions) - 1, -1, -1):
        last = versions[at] if last is None else last
        if at == 0 or versions[at - 1] < versions[at] - 1:
            yield versions[at], last
            last = None


def _whole_of(
    reader: LogReader, there: Mapping[str, int], first: int, last: int
) -> Snapshot | None:
    """Return the newest whole version of a span of commits that can be read, or None."""
    try:
        snapshot, files = table_at(reader, last)
        missing = {add.path for add in files.all() if not _is_there(add, there)}
    except CorruptLog:
        return None
    version = last
    while missing:
        if version <= max(first, 0):
            return None
        commit = readable(reader, version, light=False)
        assert commit is not None
        missing.difference_update(add.path for add in commit.adds)
        missing.update(path for path in commit.removes if path not in there)
        version -= 1
        if not missing:
            snapshot, files = table_at(reader, version)
            missing = {add.path for add in files.all() if not _is_there(add, there)}
    return snapshot


def _is_there(add: Add, there: Mapping[str, int]) -> bool:
    return there.get(add.path) == add.size


def _told(reader: LogReader, found: IntactVersion) -> IntactVersion:
    """Add what the commits after the whole version say."""
    for version in range(found.snapshot.version + 1, found.newest + 1):
        commit = readable(reader, version, light=False)
        if commit is None:
            found.unreadable += 1
            continue
        found.events += sum(rows_of(add) for add in commit.adds if add.data_change)
        for name, text in commit.domains.items():
            if name.startswith(WRITER_PREFIX) and text is not None:
                record = decode_writer(name.removeprefix(WRITER_PREFIX), text)
                if record.session == 0:
                    found.batches[record.writer_id] = record.last
    return found
