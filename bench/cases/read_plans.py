"""What Spark's driver plans for a stream of many chunks, and what it sends to the tasks."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave
from bench.harness.registry import benchmark
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.writing.append import append
from pravega_spark.spark.source import PravegaDataSource

_MIB = 1 << 20
_FEW, _MANY, _PARTS = 4_000, 40_000, 64
_CHUNK_ROWS, _CHUNK_BYTES = 40_000, 4 * _MIB


class _Plans:
    """A segment of so many chunks, which only the log knows, and the plans of its reads."""

    def __init__(self, context: Context, chunks: int) -> None:
        self._options = {"root": context.root, "path": context.create(f"plans-{chunks}")}
        stream = open_stream(context.root, self._options["path"])
        view = stream.view()
        for _ in range(0, chunks, 1_000):
            at = view.version
            staged = [_chunk(at, view.active.segments[0].segment_id) for _ in range(1_000)]
            append(stream, view.life, at, staged)
            view = stream.view()
        self.sent = 0

    def batch(self, **options: str) -> Side:
        source = PravegaDataSource({**self._options, **options})
        reader = source.reader(source.schema())
        return self._side(reader.partitions)

    def micro_batch(self, **options: str) -> Side:
        given = {**self._options, "startingoffsets": "earliest", **options}
        source = PravegaDataSource(given)
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        return self._side(lambda: reader.partitions(start, end))

    def _side(self, plan: Any) -> Side:
        def measured() -> float:
            begun = time.process_time()
            self.sent = sum(len(pickle.dumps(partition)) for partition in plan())
            return 1e3 * (time.process_time() - begun)

        return measured


def _chunk(version: int, segment_id: int) -> StagedChunk:
    """Return a chunk without a file; its names and numbers are as different as real ones are."""
    token, now_us = SYSTEM.token(), SYSTEM.now_us()
    rows, size = _CHUNK_ROWS - now_us % 1_000, _CHUNK_BYTES - now_us % 100_000
    path = f"data/{version_folder(version)}/{token}-{segment_id}-0.parquet"
    footer = f"{350 + now_us % 500}-{SYSTEM.token()[:16]}"
    return StagedChunk(path, segment_id, rows, size, 100 * rows, now_us, now_us + 1_000, 0, footer)


@benchmark()
def plans_of_many_chunks(context: Context) -> Iterator[Figure]:
    """Plans of 40,000 and of 4,000 chunks of 4 MiB in one segment, pickled as Spark does."""
    many, few = (_Plans(context, context.size(chunks, 1_000)) for chunks in (_MANY, _FEW))
    rounds, parts = context.size(5, 1), {"minpartitions": str(_PARTS)}
    for name, options, is_batch in (
        ("a batch read", {}, True),
        (f"a batch read in {_PARTS} parts", parts, True),
        ("a micro-batch", {}, False),
        (f"a micro-batch in {_PARTS} parts by key", parts, False),
    ):
        sides = {
            label: (plans.batch if is_batch else plans.micro_batch)(**options)
            for label, plans in (("many", many), ("few", few))
        }
        found = interleave(rounds, sides)
        yield Figure.of_rounds(
            f"the plan of {name} of {_MANY:,} chunks, CPU",
            found["many"],
            "ms",
            f"{_FEW:,} chunks",
            found["few"],
            note=f"{many.sent / 1e6:.2f} and {few.sent / 1e6:.2f} MB are sent",
            limited_by="the chunks, each of which the log is asked for once; from 11x on, Python's "
            "collector, which passes over more objects the more there are",
        ).within(ratio_at_most=16.0)
