"""Reading a range of a segment to its end, whatever compaction does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from pravega_spark.engine.chunks import chunk_reader
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.chunk_reader import BATCH_ROWS
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CorruptChunk
from pravega_spark.model import SegmentRange

_FIRST_PAGE, _GROWTH, _PAGE_CHUNKS = 1_024, 4, 256
"""Chunks are resolved for so many events first, then for more, until so many are found at once.

So the first event comes as soon in a long segment as in a short one.
"""


def read_range(
    stream: StreamLog,
    rng: SegmentRange,
    refs: Sequence[ChunkRef] | None = None,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Yield the events of ``rng`` in order; return only when its end was reached.

    ``refs`` are chunks that somebody resolved earlier. One that is gone meanwhile (compacted,
    swept) is looked up again by offset, once for each place. Raises TruncatedData, DataLoss or
    CorruptChunk.
    """
    names = list(columns) if columns is not None else list(chunk_reader.BATCH_COLUMNS)
    wanted = names if "offset" in names else [*names, "offset"]
    at, failed_at, page = rng.start, -1, _FIRST_PAGE
    while at < rng.end:
        left = SegmentRange(rng.stream, rng.life, rng.segment_id, at, rng.end)
        found = refs
        if found is None:
            found = stream.chunks(replace(left, end=min(rng.end, at + page)))
            left = replace(left, end=min(rng.end, found[-1].end))
            page *= _GROWTH if len(found) < _PAGE_CHUNKS else 1
        try:
            for batch in chunk_reader.read_range(
                stream.store, stream.path, found, left, columns=wanted, batch_rows=batch_rows
            ):
                at = batch.column("offset")[-1].as_py() + 1
                yield batch if wanted is names else batch.select(names)
        except FileNotFoundError as error:
            if failed_at == at:
                raise CorruptChunk(
                    f"{left} cannot be read: {error} The log names that file: restore it from a "
                    "copy."
                ) from error
            failed_at, refs = at, None
            stream.view().check_life(rng.life)
