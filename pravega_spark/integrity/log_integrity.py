"""Checks that the retained commits of a log are intact, and that its files are there.

Nothing is changed. The files of a state table, such as a reader group's, hold rows of its history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from pravega_spark.engine.log.actions import parse_commit
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.log.delta_checkpoint import checkpoint_key
from pravega_spark.engine.log.reader import LogReader
from pravega_spark.engine.log.stored_state import Span, StatePart, part_key, state_key
from pravega_spark.engine.store import Store
from pravega_spark.errors import Damaged

_PAGE = 256
"""Commits that are read at the same time."""


@dataclass(frozen=True, slots=True)
class DamagedObject:
    """What is wrong with one stored object, or with a range that has none."""

    path: str
    reason: str


@dataclass(slots=True)
class Integrity:
    """What a check of one stream or table looked at, and the damage that it found."""

    name: str
    version: int | None = None
    """The newest version; None if the log cannot be opened."""
    commits: int = 0
    files: int = 0
    size_bytes: int = 0
    events: int = 0
    """Readable events; 0 for a table that is not a stream."""
    is_deep: bool = False
    damage: list[DamagedObject] = field(default_factory=list)
    rebuilt: list[DamagedObject] = field(default_factory=list)
    """Torn or lost objects that are written again automatically: harmless unless they recur."""
    unchecked: list[DamagedObject] = field(default_factory=list)
    """What a deep check could not read, since a key service does not answer."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.damage

    @property
    def is_complete(self) -> bool:
        """Whether all that was to be checked was checked."""
        return not self.unchecked

    def add_damage(self, error: Damaged, path: str) -> None:
        """Add what an error says."""
        self.damage.append(damaged_object(error, path))


def damaged_object(error: Damaged, path: str) -> DamagedObject:
    """Return what an error says of the object that it names, else of ``path``."""
    where = error.path or path
    return DamagedObject(where, str(error).removeprefix(f"{where}: "))


def check_log(log: Log, name: str, *, deep: bool = False) -> Integrity | None:
    """Check a table that is not a stream; ``deep`` reads its files. None if there is no log.

    Raises what the store raises. Objects that a sweep deletes meanwhile are not damage.
    """
    found = Integrity(name, is_deep=deep)
    try:
        snapshot = log.refresh()
        if snapshot is None:
            return None
        found.version = snapshot.version
        found.damage += damaged_commits(
            log.reader,
            found,
            snapshot.commit_deletion_mark,
            lambda: (log.refresh() or snapshot).commit_deletion_mark,
        )
        found.damage += _damaged_files(log, found)
    except Damaged as error:
        found.add_damage(error, log.path)
    check_beside_log(log.reader, found)
    return found


def check_beside_log(reader: LogReader, found: Integrity) -> None:
    """Check what lies beside the commits: the newest state file, part of a state and checkpoint.

    One of a later version than the newest commit shows that commits are missing; it is read after
    the log, which may have grown.
    """
    newest_ones = list(_newest_beside(reader))
    newest = reader.last_listed(-1)
    for key, version, read in newest_ones:
        if version > newest:
            reason = f"it exists, and the newest commit is version {newest}: commits are lost"
            found.damage.append(DamagedObject(key, reason))
        elif _is_intact(read) or not reader.store.exists(key):
            continue
        elif key == checkpoint_key(reader.path, version):
            reason = (
                "the newest checkpoint is damaged. This package does not use it, but other "
                "Delta readers cannot open the table until the full listing of a sweep, once a "
                "day, has written it again"
            )
            found.damage.append(DamagedObject(key, reason))
        else:
            reason = "it is torn, and not used; the next state file takes its place"
            found.rebuilt.append(DamagedObject(key, reason))


def _newest_beside(reader: LogReader) -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield the key and version of the newest object of each kind, and what reads it."""
    for version in reader.listed("state")[:1]:
        yield state_key(reader.path, version), version, partial(reader.state, version)
    for span in sorted(reader.spans())[-1:]:
        yield part_key(reader.path, span), span.version, partial(_part, reader, span)
    for version in reader.listed("checkpoint")[:1]:
        yield checkpoint_key(reader.path, version), version, partial(reader.checkpoint, version)


def _part(reader: LogReader, span: Span) -> StatePart | None:
    return reader.parts([span])[0]


def _is_intact(read: Callable[[], object]) -> bool:
    try:
        return read() is not None
    except Damaged:
        return False


def damaged_commits(
    reader: LogReader, found: Integrity, oldest: int, newest_oldest: Callable[[], int]
) -> Iterator[DamagedObject]:
    """Yield the commits of [oldest, found.version] that are missing or damaged.

    ``newest_oldest`` returns the oldest retained version of now.
    """
    last = found.version or 0
    for first in range(oldest, last + 1, _PAGE):
        versions = range(first, min(first + _PAGE, last + 1))
        datas = reader.store.get_many([reader.key(version) for version in versions])
        for version, data in zip(versions, datas, strict=True):
            if data is None:
                if version >= newest_oldest():
                    yield DamagedObject(reader.key(version), "the commit is missing")
                continue
            try:
                parse_commit(version, data, reader.where)
                found.commits += 1
            except Damaged as error:
                reason = str(error).removeprefix(f"{reader.where}: ")
                yield DamagedObject(reader.key(version), reason)


def _damaged_files(log: Log, found: Integrity) -> Iterator[DamagedObject]:
    sizes = {entry.key: entry.size for entry in log.store.list(log.path)}
    with log.files() as files:
        adds = list(files.all())
    for add in adds:
        key = f"{log.path}/{add.path}"
        found.files += 1
        found.size_bytes += add.size
        reason = file_damage(log.store, key, add.size, sizes.get(key))
        if not reason and found.is_deep:
            reason = _unreadable(log.store, key)
        if reason and _is_live(log, add.path):
            yield DamagedObject(key, reason)


def file_damage(store: Store, key: str, recorded: int, size: int | None) -> str:
    """Return what a file's size says; empty if it is the one that the log records."""
    if size is None and not store.exists(key):
        return "the file is missing"
    if size is not None and size != recorded:
        return f"the file has {size:,} bytes, and the log records {recorded:,}"
    return ""


def _unreadable(store: Store, key: str) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with store.open(key) as file:
            pq.ParquetFile(file, page_checksum_verification=True).read()
    except FileNotFoundError:
        return "the file is missing"
    except (pa.ArrowException, OSError) as error:
        return f"the file cannot be read: {error}"
    return ""


def _is_live(log: Log, path: str) -> bool:
    """Return True if the newest version still has the file."""
    log.refresh()
    with log.files() as files:
        return any(add.path == path for add in files.all())
