"""Plans the compaction of one stream: which chunks to merge, and which heads to rewrite."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pravega_spark.compaction.compaction_options import DEFAULTS, CompactionOptions
from pravega_spark.compaction.live_chunks import live_chunk, live_count
from pravega_spark.compaction.merge_plan import LiveChunk, plan_merges, settled_count, waiting
from pravega_spark.compaction.merge_range import MergeRange
from pravega_spark.compaction.plan_record import (
    FULL_LOOK_MS,
    NEW_CHUNKS,
    KnownSegment,
    PlanRecord,
    read_record,
    store_record,
)
from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.scopes import TABLE_DOMAIN
from pravega_spark.limits import COMPACT_SETTLE_MS
from pravega_spark.model import SegmentRange
from pravega_spark.root_settings import EffectiveSettings


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The ranges to merge, the number of live chunks, and what the next plan need not look at."""

    ranges: list[MergeRange]
    files: int
    record: PlanRecord
    new_chunks: int
    """How many chunks were found in the log, because the stored record does not know them."""

    def store_record(self, stream: StreamLog) -> None:
        """Store the record for the next plan, if it saves that plan more than it costs."""
        if self.ranges or self.new_chunks >= NEW_CHUNKS:
            store_record(stream, self.record)


def plan_compaction(
    stream: StreamLog, options: CompactionOptions = DEFAULTS, *, life: int | None = None
) -> list[MergeRange]:
    """Return the ranges of a stream whose chunks are to be merged, each into one chunk.

    Any processes merge them, in any order, by :func:`merge_range`. Changes nothing but a hint.
    ``life`` is the life that the call is made for, by default the present one. Raises NoSuchStream,
    StaleIdentity.
    """
    stream.log.expect_files()
    view = stream.view(life=life)
    plan = plan_stream(
        stream, view, options.settings(stream, view), include_newest=options.include_newest
    )
    plan.store_record(stream)
    return plan.ranges


def plan_stream(
    stream: StreamLog,
    view: StreamView,
    settings: EffectiveSettings,
    *,
    include_newest: bool = False,
) -> CompactionPlan:
    """Plan on a view and the newest known files; the commit decides again whether they fit.

    Looks at the chunks that were committed since the stored record, and at the small ones in it.
    """
    now_ms, target = stream.now_ms(), settings.compact_target_bytes
    keeps_times = _keeps_times(view)
    record = _usable(read_record(stream, view), target, now_ms)
    began_ms = now_ms if record is None else record.began_ms
    known = record.segments if record is not None else {}
    ranges: list[MergeRange] = []
    segments: dict[int, KnownSegment] = {}
    found = 0
    for rng in view.located_head.ranges_to(view.located_tail):
        chunks, new = _chunks(stream, rng, known.get(rng.segment_id))
        found += new
        if not keeps_times:
            settled = len(chunks)
            if not include_newest:
                settled = settled_count(chunks, now_ms - COMPACT_SETTLE_MS, now_ms)
            ranges += _of_segment(view, rng, chunks, settings, now_ms, settled)
        divided = bool(chunks) and chunks[0].base_offset < rng.start
        is_sealed = view.segment(rng.segment_id).is_sealed
        kept = waiting(chunks[divided:], target, is_sealed=is_sealed, divided=divided)
        segments[rng.segment_id] = KnownSegment(rng.start, rng.end, (*chunks[:divided], *kept))
    left = PlanRecord(view.life, target, view.version, began_ms, segments)
    return CompactionPlan(ranges, live_count(stream), left, found)


def _keeps_times(view: StreamView) -> bool:
    """Return whether this is the log of a table with a ttl: entries end by the times of its chunks.

    Merged chunks have one later time, and expired entries would come back. Folds truncate the log.
    """
    text = view.snapshot.domains.get(TABLE_DOMAIN)
    return text is not None and json.loads(text).get("ttl") is not None


def _usable(record: PlanRecord | None, target_bytes: int, now_ms: int) -> PlanRecord | None:
    """Return the record if it is of this target and not old; a date in the future is no date."""
    if record is None or record.target_bytes != target_bytes:
        return None
    return record if 0 <= now_ms - record.began_ms < FULL_LOOK_MS else None


def _chunks(
    stream: StreamLog, rng: SegmentRange, known: KnownSegment | None
) -> tuple[list[LiveChunk], int]:
    """Return the chunks of a segment's readable range that may be merged, in offset order.

    With them comes the number of those that were looked up.
    """
    if known is not None and known.start <= rng.start and known.end <= rng.end:
        new = _look_up(stream, rng, max(known.end, rng.start), rng.end)
        old = [chunk for chunk in known.chunks if chunk.end > rng.start]
        if rng.start < known.end and rng.start > known.start:
            old = [*_head(stream, rng, old), *old]
        found = [*old, *new]
        if all(one.end <= other.base_offset for one, other in pairwise(found)) and (
            not new or new[0].base_offset >= min(known.end, rng.start)
        ):
            return found, len(new)
    found = _look_up(stream, rng, rng.start, rng.end)
    return found, len(found)


def _head(stream: StreamLog, rng: SegmentRange, known: Sequence[LiveChunk]) -> list[LiveChunk]:
    """Return the chunk that the head divides, unless it is known or the head divides none.

    The chunk behind it comes with it: if that is small, the rewritten head is its neighbour.
    """
    if known and known[0].base_offset <= rng.start:
        return []
    found = _look_up(stream, rng, rng.start, rng.start + 1)
    if not found or found[0].base_offset == rng.start:
        return []
    end = known[0].base_offset if known else rng.end
    return [*found, *_look_up(stream, rng, found[-1].end, min(found[-1].end + 1, end))]


def _look_up(stream: StreamLog, rng: SegmentRange, start: int, end: int) -> list[LiveChunk]:
    if start >= end:
        return []
    with stream.log.files() as files:
        adds = files.find(rng.segment_id, start, end)
    # A large event is never merged: its chunk is a gap, at which a run of chunks ends.
    return [live_chunk(add) for add in adds if attached_object(add.path) is None]


def _of_segment(
    view: StreamView,
    rng: SegmentRange,
    chunks: Sequence[LiveChunk],
    settings: EffectiveSettings,
    now_ms: int,
    settled: int,
) -> Iterator[MergeRange]:
    """Yield the ranges of one segment: its head, and merges of the first ``settled`` chunks."""
    divided = bool(chunks) and chunks[0].base_offset < rng.start
    if divided and settled and _must_rewrite(view, chunks[0], rng.start, settings, now_ms):
        yield _range(rng, rng.start, chunks[:1], is_head=True)
    merges = plan_merges(
        chunks[divided:],
        settings.compact_target_bytes,
        is_sealed=view.segment(rng.segment_id).is_sealed,
        settled=max(0, settled - divided),
    )
    for merge in merges:
        yield _range(rng, merge[0].base_offset, merge)


def _must_rewrite(
    view: StreamView, chunk: LiveChunk, head: int, settings: EffectiveSettings, now_ms: int
) -> bool:
    """Return whether a chunk's truncated part is worth a rewrite of the rest.

    That is at least half of it, or the head has not moved for a while. A head that keeps moving
    truncates the chunk soon enough.
    """
    if 2 * (head - chunk.base_offset) >= chunk.rows:
        return True
    truncation = view.record.truncation
    return truncation is not None and now_ms - truncation.time_ms >= settings.compact_head_after_ms


def _range(
    rng: SegmentRange, start: int, chunks: Sequence[LiveChunk], *, is_head: bool = False
) -> MergeRange:
    size = sum(chunk.size for chunk in chunks)
    return MergeRange(
        rng.stream, rng.life, rng.segment_id, start, chunks[-1].end, len(chunks), size, is_head
    )
