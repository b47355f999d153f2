"""Reads neighbouring small chunks together, with one check of all their rows.

A read of one small file costs more Python than decoding. Each check of :mod:`chunk_file` is made
here, too. If one fails, read the chunks one by one: that names the damaged one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine.chunks.arrow_arrays import lengths_of, numbers
from pravega_spark.engine.chunks.chunk import FILE_SCHEMA, ChunkRef
from pravega_spark.engine.chunks.chunk_file import check_sizes
from pravega_spark.engine.chunks.footer import KEY_NAME, has_digest, is_signed, length_of
from pravega_spark.engine.chunks.tiny_reader import tiny_columns
from pravega_spark.limits import MAX_EVENT_BYTES, ROW_GROUP_BYTES

Fetched = tuple[ChunkRef, bytes | None]
"""A chunk, and its file if that was fetched."""


def runs(files: Iterable[Fetched], most_rows: int) -> Iterator[list[Fetched]]:
    """Divide chunks into runs that one batch can hold; any other chunk is a run of its own."""
    run: list[Fetched] = []
    rows = size = end = 0
    for ref, data in files:
        rows, size = rows + ref.rows, size + ref.event_bytes
        fits = rows <= most_rows and size <= ROW_GROUP_BYTES and ref.base_offset == end
        if run and not (fits and data is not None and _can_be_joined(ref)):
            yield run
            run = []
        if not run:
            rows, size = ref.rows, ref.event_bytes
        run.append((ref, data))
        end = ref.end if data is not None and _can_be_joined(ref) else -1
    if run:
        yield run


def _can_be_joined(ref: ChunkRef) -> bool:
    return ref.footer != "" and not ref.attachment


def read_together(run: Sequence[Fetched], names: Sequence[str]) -> pa.Table | None:
    """Return columns of all events of a run's chunks, in order; None if any file may be damaged.

    ``offset_delta`` is the first column.
    """
    columns = ["offset_delta", *names]
    try:
        tables = [_events(ref, data, columns) for ref, data in run if data is not None]
        events = pa.concat_tables(tables)
    except (pa.ArrowException, OSError, ValueError):
        return None
    return events if _is_as_recorded(events, [ref for ref, _ in run]) else None


def _events(ref: ChunkRef, data: bytes, columns: Sequence[str]) -> pa.Table:
    """Return the events of one file; raise ValueError if the log records another one."""
    held = tiny_columns(ref, data)
    if held is not None:
        schema = pa.schema([FILE_SCHEMA.field(name) for name in columns])
        return pa.Table.from_arrays([held[name] for name in columns], schema=schema)
    footer = data[-length_of(ref.footer) :]
    # An encrypted file is read alone: its keys are asked for, and errors name it.
    if (
        len(data) != ref.size
        or not has_digest(memoryview(footer), ref.footer)
        or KEY_NAME in footer
    ):
        raise ValueError
    file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False, page_checksum_verification=True)
    found = file.metadata
    if found.num_row_groups != 1 or found.num_columns != len(FILE_SCHEMA):
        raise ValueError
    if is_signed(found, footer):  # though it names no key
        raise ValueError
    check_sizes(found, ref)
    events = file.read_row_group(0, columns, use_threads=False)
    if events.num_columns != len(columns):  # pyarrow leaves out what a file does not have
        raise ValueError
    return events


def _is_as_recorded(events: pa.Table, refs: Sequence[ChunkRef]) -> bool:
    """Return whether rows, their numbers, and the events' lengths are those of the log."""
    if not all(field.equals(FILE_SCHEMA.field(field.name)) for field in events.schema):
        return False
    rows = np.fromiter((ref.rows for ref in refs), np.int64, len(refs))
    if events.num_rows != rows.sum() or not rows.all():
        return False
    starts = np.cumsum(rows) - rows
    deltas = numbers(events.column("offset_delta"))
    if not np.array_equal(deltas + np.repeat(starts, rows), np.arange(len(deltas))):
        return False
    if "event" not in events.column_names:
        return True
    column = events.column("event")
    if column.null_count:
        return False
    lengths = lengths_of(column)
    sizes = np.fromiter((ref.event_bytes for ref in refs), np.int64, len(refs))
    return int(lengths.max()) <= MAX_EVENT_BYTES and np.array_equal(
        np.add.reduceat(lengths, starts), sizes
    )
