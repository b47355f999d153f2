"""Reads a stream while compaction and sweeps replace its chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.chunks import reader as chunk_reader
from pravega_spark.engine.chunks.arrow_arrays import constant, lengths_of
from pravega_spark.engine.chunks.chunk import ChunkRef, first_gap
from pravega_spark.engine.chunks.format import RAW, EventFormat, is_raw, payload_names, typed_sizes
from pravega_spark.engine.chunks.large_event import LargeEventFile, decode_reference
from pravega_spark.engine.chunks.reader import (
    WhereExpression,
    checked_names,
    events_of,
    marked_ref,
    read_filtered,
)
from pravega_spark.engine.chunks.recent import RecentChunks
from pravega_spark.engine.runtime.observers import observers
from pravega_spark.engine.runtime.tracing import count_events, span
from pravega_spark.engine.stream.stream_log import StreamLog, truncated
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    CorruptChunk,
    Damaged,
    DataLoss,
    InvalidInput,
    KeyUnavailable,
    PravegaSparkError,
    TruncatedData,
)
from pravega_spark.values.events import Deserializer, Event
from pravega_spark.values.handles import NotPicklable
from pravega_spark.values.limits import READ_BATCH_EVENTS
from pravega_spark.values.segments import SegmentRange


class LargeEvent(NotPicklable, Event):
    """An event whose payload is a separate object; ``data`` reads it when it is first used."""

    _NOT_PICKLABLE = (
        "a large event cannot be pickled; send its pointer, and fetch it where it is used."
    )

    __slots__ = ("_deserializer", "_is_read", "_log", "_ref", "_row", "_value")

    is_large = True

    def __init__(self, log: StreamLog, ref: ChunkRef, event: Event) -> None:
        """Take the event that a chunk's row is, with the reference as its data."""
        self._log = log
        self._ref = ref
        self._row: bytes = event.data
        self._deserializer: Deserializer | None = None
        pointer = event.pointer
        super().__init__(
            stream=pointer.stream,
            life=pointer.life,
            segment_id=event.segment_id,
            offset=event.offset,
            data=None,
            routing_key=event.routing_key,
            timestamp_us=event.timestamp_us,
        )
        self._is_read = False

    @property
    def data(self) -> Any:
        """The payload as bytes, or deserialized; read once, and kept as long as the event is.

        Raises CorruptChunk for damaged bytes, DataLoss for a lost object, and TruncatedData if the
        event was truncated since.
        """
        if not self._is_read:
            with self.open() as file:
                data = file.read()
            self.data = data if self._deserializer is None else self._deserializer(data)
        return self._value

    @data.setter
    def data(self, value: Any) -> None:
        self._value, self._is_read = value, True

    @property
    def size_bytes(self) -> int:
        """The size of the payload, known without reading it."""
        return self._ref.event_bytes

    def open(self) -> LargeEventFile:
        """Open the payload as a file with ``read`` and ``seek``, in bounded memory.

        Raises what ``data`` raises; reads do, too. For one thread at a time.
        """
        rng = SegmentRange(
            self._stream,
            life=self._life,
            segment_id=self.segment_id,
            start=self.offset,
            end=self.offset + 1,
        )

        def missing(error: FileNotFoundError) -> PravegaSparkError:
            return _lost(self._log, rng, self._ref, error)

        return _open(self._log, self._ref, self._row, missing)

    def decode_with(self, deserializer: Deserializer) -> None:
        """Deserialize the payload when ``data`` is first used."""
        self._deserializer = deserializer

    def __repr__(self) -> str:
        """Show pointer, key and size; reads nothing."""
        return f"LargeEvent({self.pointer}, key={self.routing_key!r}, {self.size_bytes:,} bytes)"


def events_in(
    log: StreamLog, rng: SegmentRange, batch: pa.RecordBatch, deserializer: Deserializer | None
) -> Iterator[Event]:
    """Yield the events of a batch; ``data`` is deserialized, of a large one when it is used."""
    events = events_of(batch, rng.stream, rng.life, rng.segment_id)
    ref = marked_ref(batch)
    if ref is not None:
        events = (LargeEvent(log, ref, event) for event in events)
    return events if deserializer is None else _decoded(events, deserializer)


def _decoded(events: Iterator[Event], deserializer: Deserializer) -> Iterator[Event]:
    for event in events:
        event.decode_with(deserializer)
        yield event


def with_payload(log: StreamLog, batch: pa.RecordBatch, most_bytes: int | None) -> pa.RecordBatch:
    """Return a batch with payloads of at most ``most_bytes`` instead of their references.

    None means any size. Raises CorruptChunk, and FileNotFoundError if the object does not exist.
    """
    ref = marked_ref(batch)
    if ref is None or (most_bytes is not None and ref.event_bytes > most_bytes):
        return batch
    index = batch.schema.get_field_index("event")
    (row,) = batch.column(index).to_pylist()
    with _open(log, ref, row, lambda error: error) as file:
        payload = file.buffer()
    lengths = pa.py_buffer(pa.array([0, len(memoryview(payload))], pa.int32()).buffers()[1])
    event = pa.Array.from_buffers(pa.binary(), 1, [None, lengths, payload])
    columns = [event if at == index else column for at, column in enumerate(batch.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema.remove_metadata())


def payload_of(log: StreamLog, rng: SegmentRange, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of a reader, with the payload of any size; raise what ``LargeEvent`` does."""
    ref = marked_ref(batch)
    if ref is None or not batch.num_rows:  # a filter may have left it out
        return batch
    try:
        return with_payload(log, batch, None)
    except FileNotFoundError as error:
        only = replace(rng, start=ref.base_offset, end=ref.end)
        raise _lost(log, only, ref, error) from error


def payload_parts(
    log: StreamLog, rng: SegmentRange, batch: pa.RecordBatch, start: int
) -> Iterator[memoryview]:
    """Yield the payload whose reference a batch holds, from byte ``start`` on, in windows.

    Raises what ``LargeEvent.data`` does.
    """
    ref = marked_ref(batch)
    assert ref is not None, batch.schema
    (row,) = batch.column("event").to_pylist()
    only = replace(rng, start=ref.base_offset, end=ref.end)
    with _open(log, ref, row, lambda error: _lost(log, only, ref, error)) as file:
        file.seek(start)
        yield from file.parts()


def _open(log: StreamLog, ref: ChunkRef, row: bytes, missing: Any) -> LargeEventFile:
    reference = decode_reference(row, ref, log.log.reader.where)
    return LargeEventFile(log.store, log.path, reference, log.runtime, missing)


def _lost(
    log: StreamLog, rng: SegmentRange, ref: ChunkRef, error: FileNotFoundError
) -> PravegaSparkError:
    """Return why an object does not exist: its event was truncated, its stream deleted, or lost."""
    try:
        log.view(life=rng.life)
        log.chunks(rng)
    except PravegaSparkError as cause:
        return cause
    where = f"{log.log.reader.where}/{ref.path}"
    return DataLoss(
        f"{rng} is lost: the log names {ref}, whose object does not exist ({error}); restore it "
        "from a copy.",
        lost=rng,
        path=where,
    )


LOOK_UPS = 3
"""How often a missing file is looked up in the log again before it counts as lost."""

_FIRST_PAGE, _GROWTH, _PAGE_CHUNKS = 1_024, 4, 256
"""Chunks are looked up by pages: events of the first one, growth, chunks after which it stops.

Small first pages make the first event of a long segment as fast as that of a short one.
"""
_FEW_CHUNKS = (16, 48, 192)
"""So many chunks are read one after the other for one who wants the first event soon.

Multiples of what an object store is asked for at the same time: all of a segment takes no longer.
"""

OnLoss = Callable[[SegmentRange, PravegaSparkError], None]
"""Takes a part of the range that cannot be read, and why; raises, or returns to skip the part."""


def fail(lost: SegmentRange, error: PravegaSparkError) -> None:
    """Raise the error: the policy of a reader that must not miss an event."""
    raise error


def read_range(
    stream: StreamLog,
    rng: SegmentRange,
    refs: Sequence[ChunkRef] | None = None,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = READ_BATCH_EVENTS,
    on_loss: OnLoss = fail,
    payload_bytes: int | None = None,
    event_format: EventFormat | None = None,
    where: Any = None,
    ahead: bool = False,
    soon: bool = False,
    shared: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Yield the events of ``rng`` in order; return only at its end.

    ``refs`` are chunks that a planner found earlier: while their files exist, the log is not read.
    A file that is missing (compacted, swept) is looked up again by offset. The payload of a large
    event of at most ``payload_bytes`` (None: of any) is read; a larger one stays a reference, in a
    batch that is marked. Batches have the columns of ``chunks.format``, by default those that the
    stream has by the last known view when the read begins, or raw ones if it has none: a process
    that reads chunks of a typed stream without its log is given the format. With ``where``, an
    expression of ``pyarrow.compute``, only the events for which it is true are in the batches,
    which may be empty. With ``ahead`` the next chunks are fetched and decoded in the background.
    With ``soon``, for one who takes event by event, the first batches are of few chunks. Unless it
    is ``shared``, the read fetches each chunk itself, and leaves none in memory for other readers.
    ``on_loss`` decides about events that are truncated (TruncatedData), that no chunk of the log
    holds, or whose file is lost (both DataLoss): by default it raises. Raises CorruptChunk for a
    damaged file; StaleIdentity or NoSuchStream if the life of the range has ended when the log is
    read.
    """
    reader = _RangeReader(
        stream=stream,
        rng=rng,
        refs=refs or (),
        columns=columns,
        batch_rows=batch_rows,
        on_loss=on_loss,
    )
    reader.payload_bytes = payload_bytes
    reader.event_format = event_format
    reader.where = where
    reader.ahead = ahead
    reader.few = [*_FEW_CHUNKS] if soon else []
    reader.recent = stream.recent if shared else None
    return reader.batches()


class _RangeReader:
    """One read: the next offset, and the chunks that are known to follow it."""

    def __init__(
        self,
        stream: StreamLog,
        rng: SegmentRange,
        refs: Sequence[ChunkRef],
        columns: Sequence[str] | None,
        batch_rows: int,
        on_loss: OnLoss,
    ) -> None:
        self._stream = stream
        self._rng = rng
        self._refs = refs
        self._columns = columns
        self._batch_rows = batch_rows
        self._on_loss = on_loss
        self._at = rng.start
        self._page = _FIRST_PAGE
        self.payload_bytes: int | None = None
        self.event_format: EventFormat | None = None
        self.where: Any = None
        self.ahead = False
        self.few: list[int] = []
        """How many chunks the next reads take at most; without limit once it is empty."""
        self.recent: RecentChunks | None = None
        self._filter: WhereExpression | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        misses, missed_at = 0, -1
        while self._at < self._rng.end:
            held = self._held()
            if not len(held):
                self._look_up()
                continue
            try:
                yield from self._read(self._refs, self._few_of(held))
            except FileNotFoundError:
                misses = misses + 1 if self._at == missed_at else 1
                missed_at = self._at
                if misses > LOOK_UPS:
                    yield from self._read_each_chunk()
                else:
                    if misses == LOOK_UPS:  # the log as this process knows it may be an old one
                        self._stream.log.forget()
                    self._stream.view(life=self._rng.life)
                    self._refs = ()
            except CorruptChunk:
                if self.recent is not None:  # once the file is restored, readers must see that
                    self.recent.drop(self._stream.path, self._refs)
                raise

    def _rest(self) -> SegmentRange:
        return replace(self._rng, start=self._at)

    def _held(self) -> SegmentRange:
        """Return the part of the rest that the known chunks hold, up to their first gap."""
        rest = self._rest()
        gap = first_gap(rest, self._refs)
        return rest if gap is None else replace(rest, end=gap.start)

    def _few_of(self, held: SegmentRange) -> SegmentRange:
        """Return what the next read takes of a part that the known chunks hold."""
        if not self.few:
            return held
        ends = [ref.end for ref in self._refs if ref.end > self._at][: self.few.pop(0)]
        return replace(held, end=min(held.end, ends[-1]))

    def _read(self, refs: Sequence[ChunkRef], rng: SegmentRange) -> Iterator[pa.RecordBatch]:
        store, path, rows = self._stream.store, self._stream.path, self._batch_rows
        if self.event_format is None:
            is_known = self._stream.log.snapshot is not None
            self.event_format = self._stream.event_format if is_known else RAW
        if self.recent is not None:
            self._stream.note_read()
        if self.where is not None:
            yield from self._read_filtered(refs, rng, self.event_format)
            return
        batches = chunk_reader.read_range(
            store,
            path,
            refs,
            rng,
            columns=self._columns,
            batch_rows=rows,
            event_format=self.event_format,
            ahead=self._stream.runtime if self.ahead else None,
            recent=self.recent,
        )
        while (batch := self._traced(batches)) is not None:
            full = with_payload(self._stream, batch, self.payload_bytes)
            self._at += batch.num_rows
            if observers:
                _report(self._stream.name, batch)
            yield full

    def _read_filtered(
        self, refs: Sequence[ChunkRef], rng: SegmentRange, event_format: EventFormat
    ) -> Iterator[pa.RecordBatch]:
        if self._filter is None:
            self._filter = WhereExpression(rng.stream, self.where, event_format)
        wanted, names = self._filter, self._columns or event_format.batch_names
        store, path = self._stream.store, self._stream.path
        ahead = self._stream.runtime if self.ahead else None
        parts = read_filtered(
            store, path, refs, rng, wanted, columns=self._columns, ahead=ahead, recent=self.recent
        )
        for end, batch in parts:
            if batch is not None:
                most = None if "event" in wanted.needed else self.payload_bytes
                full = with_payload(self._stream, batch, most)
                if observers:
                    _report(self._stream.name, batch)
                yield wanted.of(full, names)
            self._at = end

    def _traced(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        with span("read", self._stream.name) as current:
            batch = next(batches, None)
            if batch is not None:
                count_events(current, batch.num_rows)
            return batch

    def _look_up(self) -> None:
        """Find the next chunks in the log, or report the events that it does not hold."""
        rest = self._rest()
        try:
            if not self._look_up_few(rest):
                end = min(rest.end, self._at + self._page)
                self._refs = self._stream.chunks(replace(rest, end=end))
                self._page *= _GROWTH if len(self._refs) < _PAGE_CHUNKS else 1
        except TruncatedData:  # of this page; the whole rest may be below the head
            self._lose(self._head_offset(), truncated(self._stream.view(refresh=False), rest))
        except DataLoss as error:
            self._refs = self._stream.known_chunks(rest)
            gap = first_gap(rest, self._refs)
            if gap is not None and gap.start == self._at:
                self._lose(gap.end, error)

    def _look_up_few(self, rest: SegmentRange) -> bool:
        """Find the first chunks alone if they have an event each; return whether they have."""
        if len(self.few) < len(_FEW_CHUNKS):
            return False
        most = self.few[0]
        refs = self._stream.chunks(replace(rest, end=min(rest.end, self._at + most)))
        if len(refs) < most:
            return False
        self._refs = refs
        return True

    def _head_offset(self) -> int:
        """Return the first readable offset of the segment; the range's end if it has none."""
        view, segment_id = self._stream.view(refresh=False), self._rng.segment_id
        return view.head_offset(segment_id) if view.has_segment(segment_id) else self._rng.end

    def _read_each_chunk(self) -> Iterator[pa.RecordBatch]:
        """Read chunk by chunk, and report each one whose file is lost."""
        for ref in self._refs:
            end = min(ref.end, self._rng.end)
            if end <= self._at:
                continue
            rest = replace(self._rest(), end=end)
            try:
                yield from self._read([ref], rest)
            except FileNotFoundError:
                lost = replace(rest, start=self._at)
                where = f"{self._stream.log.reader.where}/{self._missing(ref)}"
                error = DataLoss(
                    f"{lost} is lost: the log names {ref}, whose file {where} does not exist; "
                    "restore the file from a copy.",
                    lost=lost,
                    path=where,
                )
                self._lose(end, error)

    def _missing(self, ref: ChunkRef) -> str:
        """Return the path of the file that is lost: the chunk, or the object that it names."""
        attached = attached_object(ref.path)
        store, path = self._stream.store, self._stream.path
        return attached[0] if attached and store.exists(f"{path}/{ref.path}") else ref.path

    def _lose(self, end: int, error: PravegaSparkError) -> None:
        end = min(end, self._rng.end)
        self._on_loss(replace(self._rest(), end=end), error)
        self._at = end


def reading_error(
    stream: StreamLog, ref: ChunkRef
) -> Damaged | KeyUnavailable | FileNotFoundError | None:
    """Read a whole chunk; return why it cannot be read, or None if it can."""
    rows = chunk_reader.read(
        stream.store,
        stream.path,
        ref,
        ref.base_offset,
        ref.end,
        event_format=stream.event_format,
    )
    try:
        for _ in rows:
            pass
    except (Damaged, KeyUnavailable, FileNotFoundError) as error:
        return error
    return None


def _report(stream: str, batch: pa.RecordBatch) -> None:
    """Report events that were read; not a look at other columns, such as the time of an event."""
    ref = marked_ref(batch)
    if ref is not None:
        size = ref.event_bytes
    elif is_raw(batch.schema):
        size = int(lengths_of(batch.column("event")).sum())
    elif payload_names(batch.schema):
        size = int(typed_sizes(batch).sum())
    else:
        return
    for observer in observers:
        observer.events_read(stream, batch.num_rows, size)


_OFFSET: Final = "offset"
_SEGMENT: Final = pa.field("segment_id", pa.int64())


class WantedEvents:
    """The columns of a read, checked, and the expression that its events meet, or None."""

    def __init__(self, view: StreamView, columns: Sequence[str] | None, where: Any) -> None:
        """Take both; raise InvalidInput, which names the stream, if it has no such columns."""
        if isinstance(columns, str):
            raise InvalidInput(
                f"a read of stream {view.stream}: columns is a list of names, such as "
                f"[{columns!r}]; got {columns!r}."
            )
        try:
            self.names = checked_names(columns, view.event_format)
        except InvalidInput as error:
            raise InvalidInput(f"a read of stream {view.stream}: {error}") from None
        if where is not None:
            WhereExpression(view.stream, where, view.event_format)
        self.where = where
        self.columns = self.names if _OFFSET in self.names else (*self.names, _OFFSET)
        """The columns that are read: the position of a reader is known by the offset."""

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted columns of a batch."""
        return batch if self.names == self.columns else batch.select(list(self.names))


class WantedTable:
    """The columns of a read into one table, of which ``segment_id`` may be one."""

    def __init__(self, view: StreamView, columns: Sequence[str] | None, where: Any) -> None:
        """Take all columns, or some; raise InvalidInput, which names the stream."""
        known = view.event_format.batch
        is_one = isinstance(columns, str)  # which WantedEvents refuses
        names = [_SEGMENT.name, *known.names] if columns is None or is_one else [*columns]
        own = [name for name in names if name != _SEGMENT.name]
        self.events = WantedEvents(view, columns if is_one else own or [_OFFSET], where)
        self._names = names
        self._schema = pa.schema(
            [
                _SEGMENT if name == _SEGMENT.name else known.field(name)
                for name in names or [_OFFSET]
            ]
        )

    def table(self, batches: Iterable[tuple[SegmentRange, pa.RecordBatch]]) -> pa.Table:
        """Return the batches of the wanted events as a table; one without columns has a count."""
        found = [self._row_batch(*each) for each in batches]
        return pa.Table.from_batches(found, self._schema).select(self._names)

    def _row_batch(self, rng: SegmentRange, batch: pa.RecordBatch) -> pa.RecordBatch:
        segments = constant(rng.segment_id, _SEGMENT.type, batch.num_rows)
        arrays = [
            segments if name == _SEGMENT.name else batch.column(name) for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
