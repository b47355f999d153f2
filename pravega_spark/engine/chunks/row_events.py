"""The rows of typed events, as dicts of their columns."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from pravega_spark.arguments import shown
from pravega_spark.engine.chunks.event_format import payload_names, typed_sizes
from pravega_spark.errors import CorruptChunk
from pravega_spark.model import RowEvent


def row_events(
    batch: pa.RecordBatch, stream: str, life: int, segment_id: int
) -> Iterator[RowEvent]:
    """Yield typed events; the batch has all columns.

    Raises CorruptChunk for a text that is not UTF-8, which no writer of ours takes.
    """
    payload = batch.select(list(payload_names(batch.schema)))
    try:
        try:
            rows = payload.to_pylist(maps_as_pydicts="lossy")
        except TypeError:  # a key that Python cannot hash, such as a struct: pairs, not dicts
            rows = payload.to_pylist()
    except UnicodeDecodeError as error:
        offsets = batch.column("offset")
        raise CorruptChunk(
            f"stream {stream}, segment {segment_id}: of the events at the offsets {offsets[0]} to "
            f"{offsets[-1]}, one has a text that is not UTF-8: {shown(error.object)}. It can be "
            "read with read_table or batches, whose texts Arrow does not decode.",
            stream=stream,
        ) from error
    for size, offset, row, key, time_us in zip(
        typed_sizes(batch).tolist(),
        batch.column("offset").to_pylist(),
        rows,
        batch.column("routing_key").to_pylist(),
        batch.column("timestamp").view(pa.int64()).to_pylist(),
        strict=True,
    ):
        yield RowEvent(stream, life, segment_id, offset, row, key, time_us, size)
