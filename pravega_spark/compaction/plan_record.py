"""What the last plan of a stream left over, so that the next one looks only at newer chunks.

The record is one object, ``_pravega/compaction.json``: for each segment the chunks that a later run
may still merge, and the offset up to which it knows the segment. Full chunks before the last one
are not in it, so its size follows the small chunks and not the retained ones. It is a hint: a
missing, damaged or stale record costs work alone, because a merge checks its chunks when it reads
them and again when it is committed. About once a day a plan looks at all chunks.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Final

from pravega_spark.compaction.compaction_result import SkippedRange
from pravega_spark.compaction.merge_plan import LiveChunk
from pravega_spark.engine.json_codec import DECODE_ERRORS, digested_line, to_digested_line
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import StoreError
from pravega_spark.model import SegmentRange

logger = own_logger(__name__)

FORMAT: Final = 1
FULL_LOOK_MS: Final = 86_400_000
"""A record that began longer ago is not used: the next plan looks at all chunks."""
MOST_CHUNKS: Final = 4_096
"""A record of more chunks is not stored: a first run has them, and merges nearly all."""
NEW_CHUNKS: Final = 64
"""A plan without work stores its record once it has found so many chunks that are not in it."""


@dataclass(frozen=True, slots=True)
class KnownSegment:
    """What a plan found in a segment from the head ``start`` up to ``end``."""

    start: int
    end: int
    chunks: tuple[LiveChunk, ...] = ()
    """Those that a later run may merge or rewrite, in offset order, and the last one."""

    def merged(self, chunk: LiveChunk) -> KnownSegment:
        """Return the segment after a chunk has taken the place of those that it holds."""
        first = bisect_left(self.chunks, chunk.base_offset, key=_base)
        last = bisect_left(self.chunks, chunk.end, key=_base)
        head = self.chunks[:first]
        if head and head[-1].end > chunk.base_offset:  # the chunk at the head was rewritten
            head = head[:-1]
        return replace(
            self, end=max(self.end, chunk.end), chunks=(*head, chunk, *self.chunks[last:])
        )

    def without(self, events: SegmentRange) -> KnownSegment:
        """Return the segment without the chunks of a range, which a later plan is not to merge."""
        left = [c for c in self.chunks if c.end <= events.start or c.base_offset >= events.end]
        return replace(self, chunks=tuple(left))


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """The segments that a plan knows, of one life of a stream, by one target size."""

    life: int
    target_bytes: int
    version: int
    """A version at or above that of every fact in it: a log that ends before is another state."""
    began_ms: int
    """When a plan last looked at all chunks."""
    segments: dict[int, KnownSegment] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of its chunks."""
        return sum(len(known.chunks) for known in self.segments.values())

    def encode(self) -> bytes:
        """Return the record as it is stored: a line of JSON, and its digest."""
        segments = {
            str(segment_id): [known.start, known.end, [astuple(chunk) for chunk in known.chunks]]
            for segment_id, known in self.segments.items()
        }
        record = {
            "format": FORMAT,
            "life": self.life,
            "target": self.target_bytes,
            "version": self.version,
            "began": self.began_ms,
            "segments": segments,
        }
        return to_digested_line(record)


def decode_record(data: bytes) -> PlanRecord | None:
    """Return a stored record, or None if it is damaged or of another format."""
    line = digested_line(data)
    if line is None:
        return None
    try:
        found = json.loads(line)
        if found["format"] != FORMAT:
            return None
        segments = {
            int(name): KnownSegment(
                int(start), int(end), tuple(LiveChunk(*map(int, cells)) for cells in chunks)
            )
            for name, (start, end, chunks) in found["segments"].items()
        }
        life, target, version, began = (
            int(found[name]) for name in ("life", "target", "version", "began")
        )
        return PlanRecord(life, target, version, began, segments)
    except DECODE_ERRORS:
        return None


def record_key(path: str) -> str:
    """Return the key of the record of the events table at ``path``."""
    return f"{path}/_pravega/compaction.json"


def read_record(stream: StreamLog, view: StreamView) -> PlanRecord | None:
    """Return the stored record if it is intact and of a state that the view's log has had.

    One storage call.
    """
    record = _stored_record(stream, view.life)
    return None if record is None or record.version > view.version else record


def _stored_record(stream: StreamLog, life: int) -> PlanRecord | None:
    try:
        record = decode_record(stream.store.get(record_key(stream.path)))
    except FileNotFoundError:
        return None
    return None if record is None or record.life != life else record


def store_record(stream: StreamLog, record: PlanRecord) -> None:
    """Store a record for the next plan; of concurrent runs the last one wins."""
    if record.size > MOST_CHUNKS:
        return
    try:
        # No fsync: the digest of an object that a power cut tears does not match.
        stream.store.put(record_key(stream.path), record.encode(), durable=False)
    except StoreError as error:
        logger.debug(
            "left the record of the compaction of %s as it is: %s",
            stream.name,
            error,
            extra=log_fields("compact", stream.name),
        )


def note_commit(
    stream: StreamLog,
    view: StreamView,
    merged: Sequence[tuple[int, LiveChunk]],
    skipped: Sequence[SkippedRange],
) -> None:
    """Put committed chunks, by segment, into the stored record, and take damaged ones out of it.

    So damaged chunks are read again by the next plan that looks at all chunks, and by none before.
    A segment in which others have changed a range is dropped: the record is wrong about it.
    """
    record = _stored_record(stream, view.life) if merged or skipped else None
    if record is None:
        return
    segments = dict(record.segments)
    for segment_id, chunk in merged:
        known = segments.get(segment_id)
        if known is not None and known.end >= chunk.base_offset:
            segments[segment_id] = known.merged(chunk)
        else:
            segments.pop(segment_id, None)
    for left in skipped:
        segment_id = left.range.segment_id
        if not left.is_damaged:
            segments.pop(segment_id, None)
        elif segment_id in segments:
            segments[segment_id] = segments[segment_id].without(left.range.events)
    version = max(record.version, view.version)
    store_record(stream, replace(record, version=version, segments=segments))


def _base(chunk: LiveChunk) -> int:
    return chunk.base_offset
