"""Joins Spark's batches, of 10,000 rows each, so that a task's checks cost little for each row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from pravega_spark.values.limits import ROUTE_BYTES


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of consecutive batches together, about ``ROUTE_BYTES`` at a time."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if held and size + batch.nbytes > ROUTE_BYTES:
            yield _join(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes  # with the columns that are not written, all in one buffer
    if held:
        yield _join(held)


def _join(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(held) == 1:
        return held[0]
    (batch,) = pa.Table.from_batches(held).combine_chunks().to_batches()
    return batch
