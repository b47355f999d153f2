"""Checks that all retained commits of a stream, and all chunks of its newest version, are intact.

Nothing is changed. The rules are those of the readers: each commit has its digest, each segment's
chunks follow one another from the head to its next offset, and each file has the size that the log
records. A deep check also reads every event, and so verifies every page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pravega_spark.engine.chunks import chunk_reader
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.log.actions import parse_commit
from pravega_spark.engine.stream.records import SEGMENT_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import Damaged, KeyUnavailable
from pravega_spark.model import SegmentRange

_PAGE = 256
"""Commits that are read at the same time."""


@dataclass(frozen=True, slots=True)
class DamagedObject:
    """What is wrong with one stored object, or with a range that has none."""

    path: str
    reason: str


@dataclass(slots=True)
class StreamIntegrity:
    """What a check looked at, and the damage that it found."""

    stream: str
    version: int | None = None
    """The newest version; None if the log cannot be opened."""
    commits: int = 0
    files: int = 0
    size_bytes: int = 0
    events: int = 0
    is_deep: bool = False
    damage: list[DamagedObject] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.damage


def check_integrity(stream: StreamLog, *, deep: bool = False) -> StreamIntegrity:
    """Check a stream; ``deep`` reads every event. Raises NoSuchStream, and what the store raises.

    Commits and chunks that are deleted meanwhile, by a sweep or a truncation, are no damage.
    """
    found = StreamIntegrity(stream.name, is_deep=deep)
    try:
        view = stream.view()
    except Damaged as error:
        found.damage.append(DamagedObject(error.path or stream.path, str(error)))
        return found
    found.version = view.version
    found.damage += _commit_damage(stream, view, found)
    found.damage += _chunk_damage(stream, view, found)
    return found


def _commit_damage(
    stream: StreamLog, view: StreamView, found: StreamIntegrity
) -> Iterator[DamagedObject]:
    reader = stream.log.reader
    oldest = view.snapshot.commit_deletion_mark
    for first in range(oldest, view.version + 1, _PAGE):
        versions = range(first, min(first + _PAGE, view.version + 1))
        datas = stream.store.get_many([reader.key(version) for version in versions])
        for version, data in zip(versions, datas, strict=True):
            if data is None:
                newest = stream.view().snapshot.commit_deletion_mark
                if version >= newest:
                    yield DamagedObject(reader.key(version), "the commit is missing")
                continue
            try:
                parse_commit(version, data, reader.where)
                found.commits += 1
            except Damaged as error:
                yield DamagedObject(reader.key(version), str(error))


def _chunk_damage(
    stream: StreamLog, view: StreamView, found: StreamIntegrity
) -> Iterator[DamagedObject]:
    sizes = {entry.key: entry.size for entry in stream.store.list(f"{stream.path}/data")}
    for record in view.snapshot.names(SEGMENT_PREFIX):
        segment_id = int(record.removeprefix(SEGMENT_PREFIX))
        start, end = view.head_offset(segment_id), view.segment(segment_id).next_offset
        if start >= end:
            continue
        rng = SegmentRange(view.stream, view.life, segment_id, start, end)
        refs = stream.known_chunks(rng)
        gap = chunk_reader.first_gap(rng, refs)
        if gap is not None and _is_needed(stream, segment_id, gap.start):
            yield DamagedObject(stream.path, f"no chunk has the events of {gap}")
        for ref in refs:
            key = f"{stream.path}/{ref.path}"
            found.files += 1
            found.size_bytes += ref.size
            found.events += min(ref.end, end) - max(ref.base_offset, start)
            reason = _reason(stream, ref, sizes.get(key), found.is_deep)
            if reason and _is_named(stream, segment_id, ref):
                yield DamagedObject(key, reason)


def _reason(stream: StreamLog, ref: ChunkRef, size: int | None, deep: bool) -> str:
    """Return why a chunk cannot be read; empty if nothing shows."""
    if size is None and not stream.store.exists(f"{stream.path}/{ref.path}"):
        return "the chunk is missing"
    if size is not None and size != ref.size:
        return f"the chunk has {size:,} bytes, and the log records {ref.size:,}"
    if not deep:
        return ""
    try:
        for _ in chunk_reader.read(stream.store, stream.path, ref, ref.base_offset, ref.end):
            pass
    except (Damaged, KeyUnavailable) as error:
        return str(error)
    except FileNotFoundError:
        return "the chunk is missing"
    return ""


def _is_needed(stream: StreamLog, segment_id: int, offset: int) -> bool:
    return not stream.view().is_truncated(segment_id, offset)


def _is_named(stream: StreamLog, segment_id: int, ref: ChunkRef) -> bool:
    """Return True if the newest version still has the chunk: no merge or truncation removed it."""
    view = stream.view()
    rng = SegmentRange(view.stream, view.life, segment_id, ref.base_offset, ref.end)
    return any(other.path == ref.path for other in stream.known_chunks(rng))
