"""Large events as a reader sees them: their payload is fetched when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.chunk_reader import events_of
from pravega_spark.engine.chunks.large_event_file import LargeEventFile
from pravega_spark.engine.chunks.large_event_reference import decode_reference
from pravega_spark.engine.chunks.reference_batches import marked_ref
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import DataLoss, PravegaSparkError
from pravega_spark.handles import NotPicklable
from pravega_spark.model import Deserializer, Event, SegmentRange


class LargeEvent(NotPicklable, Event):
    """An event whose payload is an object of its own; ``data`` reads it when it is first used."""

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
            pointer.stream,
            pointer.life,
            event.segment_id,
            event.offset,
            None,
            event.routing_key,
            event.timestamp_us,
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
        rng = SegmentRange(self._stream, self._life, self.segment_id, self.offset, self.offset + 1)

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
    """Return a batch with the payload instead of the reference if that has at most so many bytes.

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
