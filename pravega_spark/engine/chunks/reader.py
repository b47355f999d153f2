"""Reads events from chunks: by ranges of offsets or a condition, all columns or some.

Pages carry a CRC, which is verified, so a damaged byte is never returned as data.

Marks the batch of a large event, so that the code that hands it on knows that it holds a reference.
The mark is metadata of the batch's schema. Such a batch has one row, and is never joined.

Reads neighbouring small chunks together, with one check of all their rows. A read of one small file
costs more Python than decoding. Each check of :mod:`chunk_file` is made here, too. If one fails,
read the chunks one by one: that names the damaged one.

Reads the events for which an expression is true; row groups without such an event are skipped. The
expression is one of ``pyarrow.compute`` over the columns of the events, also over those that are
not read for the result.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from itertools import repeat
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pravega_spark.engine.chunks.arrow_arrays import column, lengths_of, numbers
from pravega_spark.engine.chunks.blocks import open_blocks
from pravega_spark.engine.chunks.chunk import FILE_SCHEMA, ChunkRef, first_gap
from pravega_spark.engine.chunks.footer import KEY_NAME, has_digest, is_signed, length_of
from pravega_spark.engine.chunks.format import RAW, EventFormat, payload_names, typed_sizes, widened
from pravega_spark.engine.chunks.open_file import ChunkFile, check_sizes, open_chunk
from pravega_spark.engine.chunks.recent import RecentChunks
from pravega_spark.engine.chunks.tiny import tiny_columns
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import CorruptChunk, DataLoss, InvalidInput
from pravega_spark.values.checks import shown
from pravega_spark.values.events import Event, RowEvent
from pravega_spark.values.limits import (
    MAX_EVENT_BYTES,
    PREFETCH_BYTES,
    PREFETCH_CHUNK_BYTES,
    PREFETCH_CHUNKS,
    READ_AHEAD_BYTES,
    READ_AHEAD_PARTS,
    READ_BATCH_EVENTS,
    ROW_GROUP_BYTES,
)
from pravega_spark.values.segments import SegmentRange

_ARROW: Final = int(pa.__version__.partition(".")[0])
_MARK: Final = b"pravega.large_event"


def marked(batch: pa.RecordBatch, ref: ChunkRef) -> pa.RecordBatch:
    """Return the batch of a chunk; marked if its event is the reference of a large one."""
    if not ref.attachment or "event" not in batch.schema.names:
        return batch
    return batch.replace_schema_metadata({_MARK: to_json(astuple(ref)).encode()})


def marked_ref(batch: pa.RecordBatch | pa.Table) -> ChunkRef | None:
    """Return the chunk whose reference a batch holds; None for a batch of events."""
    found = batch.schema.metadata
    return None if not found or _MARK not in found else ChunkRef(*json.loads(found[_MARK]))


def _rows_of(payload: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows in which maps are dicts, which Arrow makes since 20."""
    if _ARROW >= 20:
        rows: list[dict[str, Any]] = payload.to_pylist(maps_as_pydicts="lossy")
        return rows
    columns = [[_with_dicts(value, c.type) for value in c.to_pylist()] for c in payload.columns]
    names = payload.schema.names
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    """Return a value in which the pairs of maps are dicts."""
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_struct(kind):
        return {field.name: _with_dicts(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        pairs = ((_with_dicts(k, kind.key_type), _with_dicts(v, kind.item_type)) for k, v in value)
        return dict(pairs)
    return [_with_dicts(each, kind.value_type) for each in value]


def row_events(
    batch: pa.RecordBatch, stream: str, life: int, segment_id: int
) -> Iterator[RowEvent]:
    """Yield typed events; the batch has all columns.

    Raises CorruptChunk for a text that is not UTF-8, which no writer of ours takes.
    """
    payload = batch.select(list(payload_names(batch.schema)))
    try:
        try:
            rows = _rows_of(payload)
        except TypeError:  # a key that Python cannot hash, such as a struct: pairs, not dicts
            rows = payload.to_pylist()
    except UnicodeDecodeError as error:
        offsets = batch.column("offset")
        raise CorruptChunk(
            f"stream {stream}, segment {segment_id}: one of the events at the offsets {offsets[0]} "
            f"to {offsets[-1]} has a text that is not UTF-8: {shown(error.object)}. Read it with "
            "read_table or batches, which do not decode texts.",
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
        # By position: names would cost 0.2 microseconds more for each event (CPython 3.11).
        yield RowEvent(stream, life, segment_id, offset, row, key, time_us, size)


Fetched = tuple[ChunkRef, bytes | None]
"""A chunk, and its file if that was fetched."""


def runs(files: Iterable[Fetched], most_rows: int) -> Iterator[list[Fetched]]:
    """Divide chunks into runs that one batch can hold; any other chunk is a separate run."""
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


BATCH_SCHEMA: Final = RAW.batch
"""The columns of raw events that :func:`read` yields if all are requested."""
BATCH_COLUMNS: Final = RAW.batch_names
_ONLY_EVENTS: Final = pa.schema([BATCH_SCHEMA.field("event")])
_FEW_ROWS: Final = 512
"""Below this many rows an Arrow array costs more than its copy into a larger one."""


def read(
    store: Store,
    table_path: str,
    ref: ChunkRef,
    start: int,
    end: int,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = READ_BATCH_EVENTS,
    event_format: EventFormat = RAW,
) -> Iterator[pa.RecordBatch]:
    """Yield the events at offsets [start, end) of a chunk, in order, as batches.

    ``columns`` are some of the format's ``batch_names``, in the order wanted (None: all). Only
    these are read, and only from the row groups that hold the range; one row group at a time is in
    memory. Columns that the chunk, of an older schema, does not have are null.

    Raises CorruptChunk if the file does not match the log, and Python's FileNotFoundError if it is
    missing: compaction may have replaced it, so look the range up again.
    """
    if not ref.base_offset <= start <= end <= ref.end:
        raise InvalidInput(f"the offsets [{start}, {end}) are not a part of {ref}.")
    names = checked_names(columns, event_format)
    return _read(
        store,
        table_path,
        ref=ref,
        start=start,
        end=end,
        names=names,
        batch_rows=batch_rows,
        data=None,
        event_format=event_format,
    )


def read_range(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = READ_BATCH_EVENTS,
    event_format: EventFormat = RAW,
    ahead: Runtime | None = None,
    recent: RecentChunks | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the events of ``rng`` from its chunks, given in offset order.

    Small files are fetched several at a time, and small batches are joined. The event of a large
    one is its reference, in a separate batch that is ``marked``. With ``ahead``, later chunks
    are fetched and decoded in its background meanwhile, as by :func:`read_ahead`. With ``recent``,
    small files come from there. Raises DataLoss where the chunks leave a gap or end before the
    range does, and what :func:`read` raises.
    """
    names = checked_names(columns, event_format)
    if ahead is None:
        batches = _read_range(
            store,
            table_path,
            refs=refs,
            rng=rng,
            names=names,
            batch_rows=batch_rows,
            event_format=event_format,
            recent=recent,
        )
    else:
        batches = read_ahead(
            ahead,
            store,
            table_path,
            [*refs],
            rng,
            columns=names,
            event_format=event_format,
            recent=recent,
        )
    return _joined(batches, batch_rows)


def read_ahead(
    runtime: Runtime,
    store: Store,
    table_path: str,
    refs: Sequence[ChunkRef],
    rng: SegmentRange,
    *,
    columns: Sequence[str] | None = None,
    event_format: EventFormat = RAW,
    recent: RecentChunks | None = None,
) -> Generator[pa.Table | pa.RecordBatch, None, None]:
    """Yield the events of :func:`read_range`; the next ones are read in the background.

    ``READ_AHEAD_PARTS`` are read at the same time, each of about ``READ_AHEAD_BYTES`` or of a row
    group of a large chunk. Close the generator to end the reads.
    """
    names = checked_names(columns, event_format)
    wanted = [ref for ref in refs if ref.end > rng.start and ref.base_offset < rng.end]
    gap = first_gap(rng, wanted)
    if gap:
        raise _lost(rng, gap.start)
    parts = (
        _read_range(
            store,
            table_path,
            refs=part,
            rng=_common(rng, part),
            names=names,
            batch_rows=READ_BATCH_EVENTS,
            event_format=event_format,
            recent=recent,
        )
        for part in parts_of(wanted)
    )
    return runtime.read_ahead(parts, READ_AHEAD_PARTS)


def parts_of(refs: Iterable[ChunkRef]) -> Iterator[list[ChunkRef]]:
    """Yield what is read ahead at once: neighbouring chunks of one batch, or a large chunk."""
    part: list[ChunkRef] = []
    rows = size = 0
    for ref in refs:
        rows, size = rows + ref.rows, size + ref.event_bytes
        if part and (rows > READ_BATCH_EVENTS or size > READ_AHEAD_BYTES):
            yield part
            part, rows, size = [], ref.rows, ref.event_bytes
        part.append(ref)
    if part:
        yield part


def _common(rng: SegmentRange, part: Sequence[ChunkRef]) -> SegmentRange:
    """Return the events of the range that a part holds."""
    start, end = max(rng.start, part[0].base_offset), min(rng.end, part[-1].end)
    return replace(rng, start=start, end=end)


def _read_range(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    names: tuple[str, ...],
    batch_rows: int,
    event_format: EventFormat,
    recent: RecentChunks | None,
) -> Generator[pa.Table | pa.RecordBatch, None, None]:
    at = rng.start
    wanted = (ref for ref in refs if ref.end > rng.start and ref.base_offset < rng.end)
    for run in runs(fetched(store, table_path, wanted, recent), batch_rows):
        is_whole = run[0][0].base_offset == at and run[-1][0].end <= rng.end
        if event_format.is_raw and len(run) > 1 and is_whole:
            events = _together(run, rng.segment_id, names)
            if events is not None:
                yield events
                at = run[-1][0].end
                continue
        for ref, data in run:
            if ref.base_offset > at or ref.segment_id != rng.segment_id:
                raise _lost(rng, at)
            end = min(ref.end, rng.end)
            if end > at:
                yield from _read(
                    store,
                    table_path,
                    ref=ref,
                    start=at,
                    end=end,
                    names=names,
                    batch_rows=batch_rows,
                    data=data,
                    event_format=event_format,
                )
                at = end
    if at < rng.end:
        raise _lost(rng, at)


def _together(run: Sequence[Fetched], segment_id: int, names: tuple[str, ...]) -> pa.Table | None:
    """Return all events of a run; None if its chunks are to be read one by one."""
    if any(ref.segment_id != segment_id for ref, _ in run):
        return None
    events = read_together(run, [name for name in names if name != "offset"])
    if events is None:
        return None
    if events.num_rows < _FEW_ROWS * len(run):
        events = events.combine_chunks()
    if "offset" not in names:
        return events.select(names)
    offsets = column(np.arange(events.num_rows) + run[0][0].base_offset, pa.int64())
    return events.append_column(BATCH_SCHEMA.field("offset"), offsets).select(names)


def _lost(rng: SegmentRange, at: int) -> DataLoss:
    return DataLoss(
        f"{rng} cannot be read: no chunk holds the event at offset {at}. Restore the table "
        "from a copy.",
        lost=replace(rng, start=at),
        stream=rng.stream,
    )


def events_of(batch: pa.RecordBatch, stream: str, life: int, segment_id: int) -> Iterator[Event]:
    """Yield the batch's rows as events; the batch has all columns.

    The data of a raw event is its bytes, that of a typed one a dict of its columns.
    """
    if "event" not in batch.schema.names:
        return row_events(batch, stream, life, segment_id)
    return map(
        Event,
        repeat(stream),
        repeat(life),
        repeat(segment_id),
        batch.column("offset").to_pylist(),
        batch.column("event").to_pylist(),
        batch.column("routing_key").to_pylist(),
        batch.column("timestamp").view(pa.int64()).to_pylist(),
    )


def checked_names(columns: Sequence[str] | None, event_format: EventFormat) -> tuple[str, ...]:
    """Return the columns to read; raise InvalidInput unless the format has them."""
    known = event_format.batch_names
    names = known if columns is None else tuple(columns)
    if not names or len(set(names)) < len(names) or not set(names) <= set(known):
        raise InvalidInput(f"columns {names} must be some of {known}, each once.")
    return names


def fetched(
    store: Store, table_path: str, refs: Iterable[ChunkRef], recent: RecentChunks | None
) -> Iterator[Fetched]:
    """Yield each chunk; small ones with their file, fetched together with their neighbours."""
    group: list[ChunkRef] = []
    size = 0
    for ref in refs:
        small = ref.size <= PREFETCH_CHUNK_BYTES
        size += ref.size
        if group and (not small or size > PREFETCH_BYTES or len(group) == PREFETCH_CHUNKS):
            yield from _fetch(store, table_path, group, recent)
            group, size = [], ref.size
        if small:
            group.append(ref)
        else:
            yield ref, None
            size = 0
    if group:
        yield from _fetch(store, table_path, group, recent)


def _fetch(
    store: Store, table_path: str, group: Sequence[ChunkRef], recent: RecentChunks | None
) -> Iterator[Fetched]:
    if recent is None:
        files = store.get_many([f"{table_path}/{ref.path}" for ref in group])
    else:
        files = recent.get_many(store, table_path, group)
    for ref, data in zip(group, files, strict=True):
        if data is None:
            raise FileNotFoundError(f"{store.url}: {table_path}/{ref.path} does not exist.")
        yield ref, data


def _read(
    store: Store,
    table_path: str,
    ref: ChunkRef,
    start: int,
    end: int,
    names: tuple[str, ...],
    batch_rows: int,
    data: bytes | None,
    event_format: EventFormat,
) -> Iterator[pa.RecordBatch]:
    if start == end:
        return
    # Of a large event the log records the size of the payload, not that of the row.
    can_be_tiny = event_format.is_raw and data is not None and not ref.attachment
    held = tiny_columns(ref, data) if can_be_tiny and data is not None else None
    if held is not None:
        schema = pa.schema([BATCH_SCHEMA.field(name) for name in names])
        held["offset"] = column(np.arange(ref.base_offset, ref.end, dtype=np.int64), pa.int64())
        batch = pa.RecordBatch.from_arrays([held[name] for name in names], schema=schema)
        if start > ref.base_offset or end < ref.end:
            batch = batch.slice(start - ref.base_offset, end - start)
        yield from (batch.slice(at, batch_rows) for at in range(0, end - start, batch_rows))
        return
    if names == ("event",):
        for batch in _block_batches(store, table_path, ref=ref, start=start, end=end, data=data):
            yield batch
            start += 1
        if start == end:
            return
    with open_chunk(store, table_path, ref, data) as chunk:
        for _, batch in read_rows(
            chunk,
            ref,
            start=start,
            end=end,
            names=names,
            batch_rows=batch_rows,
            event_format=event_format,
        ):
            yield batch


def read_rows(
    chunk: ChunkFile,
    ref: ChunkRef,
    start: int,
    end: int,
    names: tuple[str, ...],
    batch_rows: int,
    event_format: EventFormat,
    groups: frozenset[int] | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (first offset, columns) of the events at offsets [start, end) of an open chunk.

    Events of row groups that are not among ``groups``, if that is given, are left out.
    """
    chunk.expect(event_format)
    schema = pa.schema([event_format.batch.field(name) for name in names])
    held = [name for name in names if chunk.schema.get_field_index(name) >= 0]
    first, last = start - ref.base_offset, end - ref.base_offset
    for at, batch in chunk.rows(first, last, held, batch_rows, groups):
        offsets = np.arange(at, at + batch.num_rows, dtype=np.int64) + ref.base_offset
        arrays = [
            column(offsets, pa.int64())
            if field.name == "offset"
            else widened(batch.column(field.name), field.type)
            if field.name in held
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
        found = pa.RecordBatch.from_arrays(arrays, schema=schema)
        yield ref.base_offset + at, marked(found, ref)


def _block_batches(
    store: Store, table_path: str, ref: ChunkRef, start: int, end: int, data: bytes | None
) -> Iterator[pa.RecordBatch]:
    """Yield each event of a chunk of blocks, without a copy, until Arrow must read the next one."""
    with open_blocks(store, table_path, ref, data) as blocks:
        if blocks is None:
            return
        for block in blocks.events(start - ref.base_offset, end - ref.base_offset):
            ends = pa.py_buffer(np.array([0, block.size], np.int32))
            event = pa.Array.from_buffers(pa.binary(), 1, [None, ends, block])
            yield pa.RecordBatch.from_arrays([event], schema=_ONLY_EVENTS)


def _joined(
    parts: Iterable[pa.Table | pa.RecordBatch], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Join consecutive small parts up to ``batch_rows`` rows or the bytes of a row group."""
    held: list[pa.Table | pa.RecordBatch] = []
    rows = size = 0
    for part in parts:
        if isinstance(part, pa.RecordBatch) and marked_ref(part) is not None:
            if held:
                yield _join(held)
                held, rows, size = [], 0, 0
            yield part
            continue
        if held and (rows + part.num_rows > batch_rows or size + part.nbytes > ROW_GROUP_BYTES):
            yield _join(held)
            held, rows, size = [], 0, 0
        held.append(part)
        rows, size = rows + part.num_rows, size + part.nbytes
        if rows >= batch_rows:
            yield _join(held)
            held, rows, size = [], 0, 0
    if held:
        yield _join(held)


def _join(held: Sequence[pa.Table | pa.RecordBatch]) -> pa.RecordBatch:
    if len(held) == 1 and isinstance(held[0], pa.RecordBatch):
        return held[0]
    tables = [
        pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part for part in held
    ]
    return pa.concat_tables(tables).combine_chunks().to_batches()[0]


class WhereExpression:
    """An expression over the columns of a stream, and the columns that it needs."""

    def __init__(self, stream: str, where: Any, event_format: EventFormat) -> None:
        """Check the expression; raise InvalidInput for one that these columns do not have."""
        import pyarrow.compute as pc  # late: slow to import

        if not isinstance(where, pc.Expression):
            raise InvalidInput(
                f"where of a read of stream {stream} is an expression of pyarrow.compute, such as "
                f"pc.field('delay') > 15; got {shown(where)}."
            )
        self._stream = stream
        self.where = where
        self.event_format = event_format
        names = ", ".join(event_format.batch_names)
        try:
            event_format.batch.empty_table().filter(where)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidInput(
                f"where of a read of stream {stream}, {where}, cannot be computed: "
                f"{_cause(error)}. The columns are {names}."
            ) from error
        self.needed = self._needed_of(event_format.batch_names)
        """The names of the columns that the expression names."""
        self.columns = pa.schema([event_format.batch.field(name) for name in self.needed])
        """These columns."""

    def _needed_of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the columns that the expression names: a few of many, found by halving.

        Without them it cannot be computed.
        """
        without = frozenset(names)
        rest = pa.schema([field for field in self.event_format.batch if field.name not in without])
        try:
            rest.empty_table().filter(self.where)
        except (pa.ArrowException, TypeError, ValueError):
            half = len(names) // 2
            return (
                names if not half else self._needed_of(names[:half]) + self._needed_of(names[half:])
            )
        return ()

    def of(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Return the rows of a batch for which the expression is true, with these columns.

        Raises InvalidInput if arithmetic or a cast in it overflows for a row.
        """
        try:
            found = pa.Table.from_batches([batch]).filter(self.where).select(list(names))
        except pa.ArrowInvalid as error:
            raise InvalidInput(
                f"where of a read of stream {self._stream}, {self.where}, cannot be computed for "
                f"some event: {_cause(error)}; use a wider type in it."
            ) from error
        parts = found.combine_chunks().to_batches()
        return parts[0] if parts else batch.slice(0, 0).select(list(names))


def _cause(error: Exception) -> str:
    """Return Arrow's text without the list of columns."""
    return str(error).partition("\n")[0].partition(" in offset:")[0].rstrip(".")


Part = tuple[int, pa.RecordBatch | None]
"""The offset of the end of a part of a range, and its events; None for what need not be read."""


def read_filtered(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    wanted: WhereExpression,
    *,
    columns: Sequence[str] | None = None,
    ahead: Runtime | None = None,
    recent: RecentChunks | None = None,
) -> Iterator[Part]:
    """Yield the parts of a range, with the events that its row groups have before the filter.

    They have the columns that the filter needs, too. With ``ahead`` later parts are read in its
    background, as by ``chunk_reader.read_ahead``, and with ``recent`` small files come from there.
    Raises what ``chunk_reader.read`` does.
    """
    names = {*checked_names(columns, wanted.event_format), *wanted.needed}
    needed = tuple(name for name in wanted.event_format.batch_names if name in names)
    held = [ref for ref in refs if ref.end > rng.start and ref.base_offset < rng.end]
    if ahead is None:
        return _read_where(store, table_path, held, rng, wanted, needed, recent)
    parts = (
        _read_where(store, table_path, part, rng, wanted, needed, recent) for part in parts_of(held)
    )
    return ahead.read_ahead(parts, READ_AHEAD_PARTS)


def _read_where(
    store: Store,
    table_path: str,
    refs: Iterable[ChunkRef],
    rng: SegmentRange,
    wanted: WhereExpression,
    needed: tuple[str, ...],
    recent: RecentChunks | None,
) -> Generator[Part, None, None]:
    # From a local disk a footer is cheap. From any other store small files come many at a time.
    files = (
        ((ref, None) for ref in refs)
        if store.is_local
        else fetched(store, table_path, refs, recent)
    )
    for ref, data in files:
        start, end = max(ref.base_offset, rng.start), min(ref.end, rng.end)
        with open_chunk(store, table_path, ref, data) as chunk:
            groups = chunk.groups_with(wanted.where, wanted.columns)
            for at, batch in read_rows(
                chunk,
                ref,
                start=start,
                end=end,
                names=needed,
                batch_rows=READ_BATCH_EVENTS,
                event_format=wanted.event_format,
                groups=groups,
            ):
                yield at + batch.num_rows, batch
        yield end, None
