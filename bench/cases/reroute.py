"""Rerouting of a staged batch, whose segment is split before its commit."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed
from bench.harness.registry import benchmark
from pravega_spark import KeyRange
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.writing.append import reroute


@benchmark()
def reroute_after_split(context: Context) -> Iterator[Figure]:
    """Chunks are read, routed, written and fsynced again, as a commit does; no commit is timed."""
    count = context.size(1_000_000, 5_000)
    name = context.create("reroute", 1)
    stream = open_stream(context.root, name)
    events = table(count)
    view = stream.view()
    (segment,) = view.active.segments
    staged = stage(
        stream.store,
        stream.path,
        version_folder(view.version),
        segment.segment_id,
        events,
        name="old",
    )
    halves = [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)]
    context.manager.scale_stream(name, [segment.segment_id], halves)
    after = stream.view()

    def from_chunks() -> list[StagedChunk]:
        moved = reroute(stream, after, view.version, staged, {})
        assert sum(chunk.rows for chunk in moved) == count
        return moved

    def from_memory() -> None:
        for segment_id, part in split(events, Router(after.active.segments)):
            token = stream.runtime.token()
            stage(
                stream.store,
                stream.path,
                version_folder(after.version),
                segment_id,
                part,
                name=token,
            )

    sides = {
        "chunks": lambda: count / timed(from_chunks),
        "memory": lambda: count / timed(from_memory),
    }
    interleave(1, sides)
    found = interleave(context.size(7, 2), sides)
    yield Figure.of_rounds(
        f"re-cutting a staged batch of {count:,} events after a split",
        found["chunks"],
        "events/s",
        "routing and staging the same batch from memory",
        found["memory"],
        note=f"{len(staged)} chunks of 100-byte events; best {max(found['chunks']):,.0f}/s",
        limited_by="writing Parquet with zstd once more than without a scale, and the fsyncs",
    ).within(at_least=1_000_000)
