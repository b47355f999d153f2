"""Merges ranges of chunks, and commits the merged chunks in the places of those that they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

import pyarrow as pa

from pravega_spark.compaction.plan import (
    APPENDED_TAG,
    CHUNK_OVERHEAD_BYTES,
    WRITTEN_TAG,
    FileBytes,
    LiveChunk,
    live_chunk,
    live_count,
    note_commit,
)
from pravega_spark.compaction.result import CompactionResult, MergedRange, MergeRange, SkippedRange
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks import reader
from pravega_spark.engine.chunks.chunk import ChunkRef, StagedChunk, first_gap
from pravega_spark.engine.chunks.encoder import UnexpectedNaN
from pravega_spark.engine.chunks.format import columns_with_nan, payload_names
from pravega_spark.engine.chunks.writer import ChunkWriter
from pravega_spark.engine.log.actions import Add, Body, Remove
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.log.files import position_of
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.commit_builder import chunk_add
from pravega_spark.engine.stream.read import reading_error
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    CorruptChunk,
    Damaged,
    InvalidInput,
    KeyUnavailable,
    KmsUnavailable,
    TruncatedData,
)
from pravega_spark.values.limits import CHECKPOINT_GROWTH, STATE_FILE_COMMITS

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
        range=rng,
        chunk=chunk,
        staging_version=view.version,
        inputs=tuple(ref.path for ref in refs),
        base_bytes=base_bytes,
        bytes_read=sum(ref.size for ref in refs),
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
    batches = reader.read_ahead(
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


def merge_parts(stream: StreamLog, rng: MergeRange) -> list[MergedRange]:
    """Merge a range; if chunks of it are damaged or lost, merge the parts between them.

    Returns a result for each part and for each damaged chunk; to find these, all chunks of the
    range are read a second time. Raises what :func:`merge_range` raises.
    """
    whole = merge_range(stream, rng)
    refs = stream.known_chunks(rng.events) if whole.is_damaged else []
    bad = {ref.path: why for ref in refs if (why := _damage(stream, ref))}
    if len(refs) < 2 or not bad:
        return [whole]
    if len(bad) > 1:
        why = next(iter(bad.values()))
        logger.warning(
            "%d chunks of %s are damaged or lost, and are not merged; the first: %s",
            len(bad),
            rng,
            why,
            extra=log_fields("compact", rng.stream),
        )
    found: list[MergedRange] = []
    for is_bad, group in groupby(refs, key=lambda ref: ref.path in bad):
        part = list(group)
        if is_bad:
            found += [
                MergedRange(_range(rng, [ref]), reason=bad[ref.path], is_damaged=True)
                for ref in part
            ]
        elif len(part) > 1:
            found.append(merge_range(stream, _range(rng, part)))
    return found


def _range(rng: MergeRange, part: Sequence[ChunkRef]) -> MergeRange:
    size = sum(ref.size for ref in part)
    return replace(
        rng, start=part[0].base_offset, end=part[-1].end, files=len(part), size_bytes=size
    )


def _damage(stream: StreamLog, ref: ChunkRef) -> str:
    """Return why a chunk cannot be read; empty if it can."""
    error = reading_error(stream, ref)
    if isinstance(error, FileNotFoundError):
        return f"a file that the log names is lost ({error}). Restore it from a copy."
    return str(error or "")


COMPACT, REWRITE_HEAD = "COMPACT", "REWRITE HEAD"
"""Operations: a merge changes no row for any reader; the rewrite of a head drops truncated rows."""
COMMIT_ACTIONS = 16_384
"""Most files that one commit adds and removes; a reader of the log reads it as a whole."""
_REPLACED_FILES = STATE_FILE_COMMITS * CHECKPOINT_GROWTH
"""A state file is due after this number of replaced files: a process that opens the log would read
them all, which costs it as much as the commits between two state files (ADR 31)."""


@dataclass(slots=True)
class _Replaced:
    """The merged ranges of one commit with the files that they replace, and those left out."""

    ranges: list[tuple[MergedRange, list[Add]]] = field(default_factory=list)
    skipped: list[SkippedRange] = field(default_factory=list)
    adds: list[Add] = field(default_factory=list)


def commit_merged(stream: StreamLog, merged: Sequence[MergedRange]) -> CompactionResult:
    """Commit merged ranges of one stream, as few commits as the number of files allows.

    Each commit decides on the newest version. A range whose chunks are no longer live, whose begin
    was truncated, or whose staged chunk is below the horizon is left out, and the others are
    committed. The rewritten heads are one commit. Safe to repeat. Raises StaleIdentity,
    NoSuchStream, InvalidInput for ranges of another stream, and what a commit raises.
    """
    others = {found.range.stream for found in merged} - {stream.name}
    if others:
        raise InvalidInput(
            f"merged ranges of {', '.join(sorted(others))} cannot be committed to stream "
            f"{stream.name}; commit them to their own stream."
        )
    result = CompactionResult(
        stream.name,
        skipped=tuple(
            SkippedRange(found.range, found.reason, found.is_damaged)
            for found in merged
            if found.chunk is None
        ),
    )
    committed: list[tuple[int, LiveChunk]] = []
    for group in _groups([found for found in merged if found.chunk is not None]):
        done, chunks = _commit(stream, group)
        result = result.plus(done)
        committed += chunks
    note_commit(stream, stream.view(refresh=False), committed, result.skipped)
    if result.files_removed >= _REPLACED_FILES and stream.log.maintain is not None:
        stream.log.maintain(stream.log, result.versions[-1])
    after = live_count(stream)
    return replace(result, files_before=after + result.files_removed, files_after=after)


def _groups(merged: Sequence[MergedRange]) -> Iterator[list[MergedRange]]:
    """Yield the ranges of each commit: of one life and kind, and not too many files."""
    group: list[MergedRange] = []
    actions = 0
    for found in sorted(merged, key=_kind):
        size = 1 + len(found.inputs)
        if group and (_kind(found) != _kind(group[0]) or actions + size > COMMIT_ACTIONS):
            yield group
            group, actions = [], 0
        group.append(found)
        actions += size
    if group:
        yield group


def _kind(found: MergedRange) -> tuple[int, bool]:
    return found.range.life, found.range.is_head


def _commit(
    stream: StreamLog, group: Sequence[MergedRange]
) -> tuple[CompactionResult, list[tuple[int, LiveChunk]]]:
    """Commit ranges of one life and kind.

    Returns what was committed and what was left out, and the merged chunks by segment.
    """
    life, is_head = _kind(group[0])

    def decide(view: StreamView) -> Proposal[_Replaced]:
        replaced = _fitting(stream, view, group)
        if not replaced.ranges:
            return None, replaced
        now_ms = stream.now_ms()
        replaced.adds = [_merged_add(found, adds, now_ms) for found, adds in replaced.ranges]
        # Delta's streams refuse a commit that adds and removes data. So a merge does neither for
        # them, and the rewrite of a head, which drops rows, is a deletion in a commit of its own
        # (ADR 29).
        removes = [
            Remove.of(add, now_ms, data_change=is_head)
            for _, adds in replaced.ranges
            for add in adds
        ]
        body = Body(
            REWRITE_HEAD if is_head else COMPACT,
            {"head": str(view.head)} if is_head else {},
            _metrics(replaced.adds, removes),
            adds=replaced.adds,
            removes=removes,
        )
        return body, replaced

    failpoint("compact.commit")
    # It yields: a merge that lost its races can come later, so it asks nobody to wait (ADR 33).
    committed = stream.commit(decide, life=life, yields=True)
    failpoint("compact.committed")
    replaced = committed.value
    inputs = [add for _, adds in replaced.ranges for add in adds]
    total = FileBytes.of(replaced.adds)
    result = CompactionResult(
        stream.name,
        ranges=len(replaced.ranges),
        heads=len(replaced.ranges) if is_head else 0,
        events=sum(len(found.range.events) for found, _ in replaced.ranges),
        files_before=len(inputs),
        files_after=len(replaced.adds),
        bytes_read=sum(add.size for add in inputs),
        bytes_written=sum(add.size for add in replaced.adds),
        appended_bytes=total.appended,
        lifetime_bytes=total.written,
        versions=(committed.snapshot.version,) if replaced.ranges else (),
        skipped=tuple(replaced.skipped),
    )
    return result, [(position_of(add)[0], live_chunk(add)) for add in replaced.adds]


def _fitting(stream: StreamLog, view: StreamView, group: Sequence[MergedRange]) -> _Replaced:
    """Return the ranges that fit the view, with the files that they replace."""
    result = _Replaced()
    with stream.log.files() as files:
        for found in group:
            rng = found.range
            adds = files.find(rng.segment_id, rng.start, rng.end)
            reason = _refusal(view, found, adds)
            if reason:
                result.skipped.append(SkippedRange(rng, reason))
            else:
                result.ranges.append((found, adds))
    return result


def _refusal(view: StreamView, found: MergedRange, adds: Sequence[Add]) -> str:
    """Return why a range cannot be committed on a view; empty if it can."""
    rng = found.range
    if not view.has_segment(rng.segment_id) or view.is_truncated(rng.segment_id, rng.start):
        return TRUNCATED
    if [add.path for add in adds] != list(found.inputs):
        return MERGED_BY_OTHERS
    horizon = view.snapshot.horizon
    if found.staging_version < horizon:
        return (
            f"its merged chunk was staged at version {found.staging_version}, below the staging "
            f"horizon, version {horizon}"
        )
    return ""


def _merged_add(found: MergedRange, adds: Sequence[Add], now_ms: int) -> Add:
    chunk = found.chunk
    assert chunk is not None
    total = FileBytes.of(adds)
    add = chunk_add(chunk, found.range.start, found.base_bytes, now_ms, data_change=False)
    written = {APPENDED_TAG: str(total.appended), WRITTEN_TAG: str(total.written + add.size)}
    return replace(add, tags={**(add.tags or {}), **written})


def _metrics(adds: Sequence[Add], removes: Sequence[Remove]) -> dict[str, object]:
    """Return the figures of a commit under the names of Delta's OPTIMIZE."""
    return {
        "numRemovedFiles": len(removes),
        "numRemovedBytes": sum(remove.size for remove in removes),
        "numAddedFiles": len(adds),
        "numAddedBytes": sum(add.size for add in adds),
        "writeAmplification": f"{FileBytes.of(adds).amplification:.2f}",
    }


_RANGES: Final = 4
"""The number of the largest ranges that are sampled; the others resemble them."""
_PLACES: Final = 4
"""The number of places of a range that a sample is from."""
_PLACE_BYTES: Final = 512 << 10
_PLACE_FILES: Final = 64
_ROW_BYTES: Final = 16
"""About what an event takes besides its bytes, before compression."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """Events of a range as one merged file: its size without overhead, and their raw bytes."""

    size: int
    raw_bytes: int


def estimate_bytes(stream: StreamLog, ranges: Sequence[MergeRange]) -> int:
    """Return about how many bytes a merge of the ranges would write.

    Reads up to 256 files of each of the four largest ranges. Where they cannot be read, the
    estimate is the size that the data has now.
    """
    chunks = {rng: stream.known_chunks(rng.events) for rng in ranges}
    sampled = sorted(ranges, key=_size, reverse=True)[:_RANGES]
    samples = {rng: _sample(stream, rng, chunks[rng]) for rng in sampled}
    known = [sample for sample in samples.values() if sample is not None]
    raw = sum(sample.raw_bytes for sample in known)
    usual = sum(sample.size for sample in known) / raw if raw else None
    total = 0
    for rng, refs in chunks.items():
        sample = samples.get(rng)
        ratio = usual if sample is None else sample.size / sample.raw_bytes
        if ratio is None:
            total += present_bytes(rng)
        else:
            total += CHUNK_OVERHEAD_BYTES + int(ratio * _raw_bytes(rng, refs))
    return total


def present_bytes(rng: MergeRange) -> int:
    """Return the size of a merged chunk if its data stays as large as it is."""
    saved = CHUNK_OVERHEAD_BYTES * (rng.files - 1)
    return max(CHUNK_OVERHEAD_BYTES, rng.size_bytes - saved)


def _size(rng: MergeRange) -> int:
    return rng.size_bytes


def _raw_bytes(rng: MergeRange, refs: Sequence[ChunkRef]) -> int:
    """Return about the bytes of a range's events, before compression."""
    rows = sum(ref.rows for ref in refs) or 1
    event_bytes = sum(ref.event_bytes for ref in refs)
    wanted = rng.end - rng.start
    return event_bytes * wanted // rows + _ROW_BYTES * wanted


def _sample(stream: StreamLog, rng: MergeRange, refs: Sequence[ChunkRef]) -> _Sample | None:
    """Return a part of a range's events as a merge would write it; None if it cannot be read."""
    try:
        batches = [batch for part in _parts(rng, refs) for batch in _read(stream, part, refs)]
    except (Damaged, FileNotFoundError, TruncatedData):
        return None
    if not batches:
        return None
    table = pa.Table.from_batches(batches)
    payload = table.select(list(payload_names(table.schema)))
    raw = int(payload.nbytes) + _ROW_BYTES * table.num_rows
    size = _merged_size(stream.runtime, table) - _merged_size(stream.runtime, table.slice(0, 1))
    return _Sample(max(1, size), raw)


def _parts(rng: MergeRange, refs: Sequence[ChunkRef]) -> Iterator[MergeRange]:
    """Yield the parts of a range that are read, spread evenly over it."""
    if not refs:
        return
    wanted = rng.end - rng.start
    rows = max(1, wanted * _PLACE_BYTES // _raw_bytes(rng, refs))
    rows = min(rows, max(1, wanted * _PLACE_FILES // len(refs)))
    places = 1 if rows * _PLACES >= wanted else _PLACES
    rows = wanted if places == 1 else rows
    for place in range(places):
        start = rng.start + place * (wanted - rows) // max(1, places - 1)
        yield replace(rng, start=start, end=start + rows)


def _read(
    stream: StreamLog, part: MergeRange, refs: Sequence[ChunkRef]
) -> Iterator[pa.RecordBatch]:
    event_format = stream.event_format
    return reader.read_range(
        stream.store,
        stream.path,
        refs,
        part.events,
        columns=event_format.events.names,
        event_format=event_format,
    )


def _merged_size(runtime: Runtime, table: pa.Table) -> int:
    with ChunkWriter(
        MemoryStore(),
        "sample",
        "sample",
        0,
        name="sample",
        columns=table.schema,
        unbounded=columns_with_nan(table),
        runtime=runtime,
    ) as writer:
        writer.write(table)
        return writer.close().size
