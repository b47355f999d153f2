"""Staged chunks whose segments were sealed before their commit go on to the successors.

A merge, or a segment made anew, takes them by metadata alone; a split re-cuts only the chunks
concerned, by the keys in them. So does a segment that nobody remembers: it was truncated away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from pravega_spark.engine.chunk import ChunkRef, StagedChunk, stage
from pravega_spark.engine.chunk_reading import read
from pravega_spark.engine.epochs import successors
from pravega_spark.engine.routing import Router, split
from pravega_spark.engine.stream import Stream, StreamView
from pravega_spark.model import Segment


def reroute(
    stream: Stream, view: StreamView, staging_version: int, staged: Sequence[StagedChunk]
) -> list[StagedChunk]:
    """Return the chunks with open segments only, in an order that keeps every key's order."""
    result: list[StagedChunk] = []
    for chunk in staged:
        kept = view.has_segment(chunk.segment_id)
        if kept and not view.segment(chunk.segment_id).is_sealed:
            result.append(chunk)
            continue
        targets = _open_successors(view, chunk.segment_id) if kept else ()
        if len(targets) == 1:
            result.append(replace(chunk, segment_id=targets[0].segment_id))
        else:
            result.extend(_recut(stream, view, staging_version, chunk))
    return result


def _open_successors(view: StreamView, segment_id: int) -> list[Segment]:
    """Return the open segments that the keys of a sealed one lie in now."""
    found: dict[int, Segment] = {}
    queue = [successor for successor, _ in successors(view, segment_id)]
    while queue:
        segment = queue.pop(0)
        if view.segment(segment.segment_id).is_sealed:
            queue.extend(successor for successor, _ in successors(view, segment.segment_id))
        else:
            found[segment.segment_id] = segment
    return sorted(found.values(), key=lambda segment: segment.key_range)


def _recut(
    stream: Stream, view: StreamView, staging_version: int, chunk: StagedChunk
) -> list[StagedChunk]:
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
    )
    batches = read(stream.store, stream.path, ref, 0, chunk.rows)
    events = pa.Table.from_batches(batches)
    token = stream.runtime.token()
    parts = split(events, Router(view.active.segments))
    return [
        new
        for segment_id, part in parts
        for new in stage(
            stream.store,
            stream.path,
            staging_version,
            segment_id,
            part,
            name=f"recut-{token}-{segment_id}",
        )
    ]
