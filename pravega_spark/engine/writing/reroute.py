"""Reroute: staged chunks of segments that were sealed before the commit move to the successors.

If one active segment covers the sealed one (a merge, a replacement), its chunks move by metadata
alone. After a split, only the chunks concerned are cut again, by the keys in them. The same holds
for a segment that a truncation has removed from the lineage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import ChunkRef, StagedChunk
from pravega_spark.engine.chunks.chunk_reader import read
from pravega_spark.engine.chunks.chunk_writer import stage
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.layout.epochs import Layout, overlapping
from pravega_spark.engine.staging_folder import version_folder
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.model import Segment

Recuts = dict[tuple[str, int], list[StagedChunk]]
"""The parts of a chunk that was cut again for an epoch, kept so that a lost race reuses them."""


def targets(layout: Layout, segment_id: int) -> tuple[Segment, ...]:
    """Return the active segments that cover a segment's keys; empty if the lineage lost it.

    Any number of scales may lie between. If there is one segment, it takes the chunks as they are.
    """
    if not layout.has_segment(segment_id):
        return ()
    return overlapping(layout.active, layout.lineage.find(segment_id).key_range)


def reroute(
    stream: StreamLog,
    view: StreamView,
    staging_version: int,
    staged: Sequence[StagedChunk],
    recuts: Recuts,
) -> list[StagedChunk]:
    """Return the chunks in open segments only, in an order that keeps the order of each key."""
    result: list[StagedChunk] = []
    for chunk in staged:
        if view.has_segment(chunk.segment_id) and not view.segment(chunk.segment_id).is_sealed:
            result.append(chunk)
            continue
        found = targets(view, chunk.segment_id)
        if len(found) == 1:
            result.append(replace(chunk, segment_id=found[0].segment_id))
            continue
        key = (chunk.path, view.active.number)
        if key not in recuts:
            recuts[key] = _recut(stream, view, staging_version, chunk)
        result.extend(recuts[key])
    return result


def read_staged(
    stream: StreamLog, view: StreamView, chunk: StagedChunk, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a chunk that has no offsets yet."""
    ref = ChunkRef(
        chunk.path,
        chunk.segment_id,
        0,
        chunk.rows,
        chunk.size,
        chunk.event_bytes,
        0,
        chunk.min_timestamp_us,
        chunk.max_timestamp_us,
        chunk.footer,
        chunk.attachment,
    )
    return read(
        stream.store,
        stream.path,
        ref,
        0,
        chunk.rows,
        columns=columns,
        event_format=view.event_format,
    )


def _recut(
    stream: StreamLog, view: StreamView, staging_version: int, chunk: StagedChunk
) -> list[StagedChunk]:
    batches = read_staged(stream, view, chunk, view.event_format.events.names)
    events = pa.Table.from_batches(batches)
    folder, token = version_folder(staging_version), stream.runtime.token()

    def staged(part: tuple[int, pa.Table]) -> list[StagedChunk]:
        segment_id, rows = part
        name = f"recut-{token}-{segment_id}"
        return stage(
            stream.store, stream.path, folder, segment_id, rows, name=name, key=stream.chunk_key
        )

    parts = split(events, Router(view.active.segments))
    if chunk.attachment:  # one event: it moves with its object, and nothing is copied
        return [replace(chunk, segment_id=segment_id) for segment_id, _ in parts]
    return [new for chunks in stream.runtime.each(staged, parts) for new in chunks]
