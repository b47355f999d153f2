"""Merges the chunks of one range into a staged chunk, which a commit then puts in their place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from pravega_spark.compaction.merge_range import MergedRange, MergeRange
from pravega_spark.engine.chunks import chunk_reader
from pravega_spark.engine.chunks.chunk import ChunkRef, StagedChunk, first_gap
from pravega_spark.engine.chunks.chunk_encoder import UnexpectedNaN
from pravega_spark.engine.chunks.chunk_writer import ChunkWriter
from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.staging_folder import version_folder
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    CorruptChunk,
    Damaged,
    KeyUnavailable,
    KmsUnavailable,
    TruncatedData,
)

logger = own_logger(__name__)

MERGED_BY_OTHERS = "its chunks were merged or truncated after they were planned"
TRUNCATED = "it was truncated"


def merge_range(stream: StreamLog, rng: MergeRange) -> MergedRange:
    """Write the events of a range, unchanged and in order, into one staged chunk.

    At most a row group is in memory. A range whose chunks are no longer those of the plan, or of
    which one is damaged or lost, is left as it is: the result has the reason. Raises NoSuchStream,
    StaleIdentity, StoreError.
    """
    view = stream.view(life=rng.life)
    refs = _inputs(stream, view, rng)
    if not refs:
        return MergedRange(rng, reason=TRUNCATED if _is_below(view, rng) else MERGED_BY_OTHERS)
    try:
        base_bytes = refs[0].base_bytes
        if rng.is_head:
            base_bytes = stream.bytes_at(rng.segment_id, rng.start, view)
        chunk = _stage(stream, view, rng, refs, base_bytes)
    except KmsUnavailable as error:
        logger.warning(
            "%s is not merged: %s",
            rng,
            error,
            extra=log_fields("compact", rng.stream, view.version),
        )
        return MergedRange(rng, reason=str(error))
    except (Damaged, FileNotFoundError, KeyUnavailable, TruncatedData) as error:
        return _left(stream, rng, refs, error)
    failpoint("compact.staged")
    return MergedRange(
        rng,
        chunk,
        view.version,
        tuple(ref.path for ref in refs),
        base_bytes,
        sum(ref.size for ref in refs),
    )


def _inputs(stream: StreamLog, view: StreamView, rng: MergeRange) -> list[ChunkRef]:
    """Return the live chunks that hold exactly the range, or none if there are no such chunks."""
    if _is_below(view, rng):
        return []
    refs = stream.known_chunks(rng.events)
    if not refs or refs[-1].end != rng.end or first_gap(rng.events, refs):
        return []
    if rng.is_head:
        return refs if len(refs) == 1 and refs[0].base_offset < rng.start else []
    if any(ref.attachment for ref in refs):  # a large event, whose chunk is never merged
        return []
    return refs if len(refs) > 1 and refs[0].base_offset == rng.start else []


def _is_below(view: StreamView, rng: MergeRange) -> bool:
    """Return whether the range begins below the head."""
    return not view.has_segment(rng.segment_id) or view.is_truncated(rng.segment_id, rng.start)


def _stage(
    stream: StreamLog,
    view: StreamView,
    rng: MergeRange,
    refs: Sequence[ChunkRef],
    base_bytes: int,
) -> StagedChunk:
    """Stage the events of a range, or raise CorruptChunk if they are not those of the log."""
    unbounded: frozenset[str] = frozenset()
    chunk = None
    while chunk is None:
        try:
            chunk = _write(stream, view, rng, refs, unbounded)
        except UnexpectedNaN as found:
            unbounded |= found.columns
    size = refs[-1].base_bytes + refs[-1].event_bytes - base_bytes
    if (chunk.rows, chunk.event_bytes) != (rng.end - rng.start, size):
        where = f"{stream.log.reader.where}/{refs[0].path}"
        raise CorruptChunk(
            f"{rng} holds {chunk.rows} events of {chunk.event_bytes} bytes; the log records "
            f"{rng.end - rng.start} of {size} bytes. The first of its files is {where}. Restore "
            "the files from a copy.",
            path=where,
        )
    return chunk


def _write(
    stream: StreamLog,
    view: StreamView,
    rng: MergeRange,
    refs: Sequence[ChunkRef],
    unbounded: frozenset[str],
) -> StagedChunk:
    name = f"merge-{stream.runtime.token()}-{rng.segment_id}"
    folder = version_folder(view.version)
    event_format = stream.event_format  # looked up after the chunks: it has all of their columns
    batches = chunk_reader.read_ahead(
        stream.runtime,
        stream.store,
        stream.path,
        refs,
        rng.events,
        columns=event_format.events.names,
        event_format=event_format,
    )
    with (
        closing(batches),
        ChunkWriter(
            stream.store,
            stream.path,
            folder,
            rng.segment_id,
            name=name,
            columns=event_format.events,
            key=stream.chunk_key,
            unbounded=unbounded,
            runtime=stream.runtime,
        ) as writer,
    ):
        for batch in batches:
            writer.write(batch)
        failpoint("compact.written")
        return writer.close()


def _left(
    stream: StreamLog, rng: MergeRange, refs: Sequence[ChunkRef], error: Exception
) -> MergedRange:
    """Return why a range is left as it is: others have touched it, or a chunk is damaged or lost.

    A file that the newest log still names is lost; any other was merged or truncated meanwhile.
    """
    view = stream.view(life=rng.life)
    if [ref.path for ref in _inputs(stream, view, rng)] != [ref.path for ref in refs]:
        return MergedRange(rng, reason=TRUNCATED if _is_below(view, rng) else MERGED_BY_OTHERS)
    reason = str(error)
    if isinstance(error, FileNotFoundError):
        reason = f"a file that the log names is lost ({error}). Restore it from a copy."
    logger.warning(
        "a chunk of %s is not merged: %s", rng, reason, extra=log_fields("compact", rng.stream)
    )
    return MergedRange(rng, reason=reason, is_damaged=True)
