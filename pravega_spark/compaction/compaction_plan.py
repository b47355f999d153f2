"""Plans the compaction of one stream: which chunks to merge, and which heads to rewrite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pravega_spark.compaction.compaction_options import DEFAULTS, CompactionOptions
from pravega_spark.compaction.live_chunks import live_chunks
from pravega_spark.compaction.merge_plan import LiveChunk, plan_merges, settled_count
from pravega_spark.compaction.merge_range import MergeRange
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.file_index import position_of, rows_of
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.limits import COMPACT_SETTLE_MS
from pravega_spark.model import SegmentRange
from pravega_spark.root_settings import EffectiveSettings


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The ranges to merge, and the number of live chunks between head and tail."""

    ranges: list[MergeRange]
    files: int


def plan_compaction(
    stream: StreamLog, options: CompactionOptions = DEFAULTS, *, life: int | None = None
) -> list[MergeRange]:
    """Return the ranges of a stream whose chunks are to be merged, each into one chunk.

    Any processes merge them, in any order, by :func:`merge_range`. Changes nothing. ``life`` is
    the life that the call is made for, by default the present one. Raises NoSuchStream,
    StaleIdentity.
    """
    view = stream.view(life=life)
    return plan_stream(stream, view, options.settings(stream, view)).ranges


def plan_stream(stream: StreamLog, view: StreamView, settings: EffectiveSettings) -> CompactionPlan:
    """Plan on a view and the newest known files; the commit decides again whether they fit."""
    ranges: list[MergeRange] = []
    count = 0
    for rng, adds in live_chunks(stream, view):
        count += len(adds)
        ranges += _of_segment(view, rng, adds, settings, stream.runtime.now_ms())
    return CompactionPlan(ranges, count)


def _of_segment(
    view: StreamView,
    rng: SegmentRange,
    adds: Sequence[Add],
    settings: EffectiveSettings,
    now_ms: int,
) -> Iterator[MergeRange]:
    """Yield the ranges of one segment: its head, and its merges."""
    chunks = [_live_chunk(add) for add in adds]
    settled = settled_count(chunks, now_ms - COMPACT_SETTLE_MS, now_ms)
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


def _live_chunk(add: Add) -> LiveChunk:
    return LiveChunk(position_of(add)[1], rows_of(add), add.size, add.modified_ms)


def _range(
    rng: SegmentRange, start: int, chunks: Sequence[LiveChunk], *, is_head: bool = False
) -> MergeRange:
    size = sum(chunk.size for chunk in chunks)
    return MergeRange(
        rng.stream, rng.life, rng.segment_id, start, chunks[-1].end, len(chunks), size, is_head
    )
