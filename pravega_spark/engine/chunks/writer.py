"""Stores events durably as chunks: from memory, or as a stream of any length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.engine.chunk_paths import file_path
from pravega_spark.engine.chunks.arrow_arrays import own_memory
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, StagedChunk, encode_events
from pravega_spark.engine.chunks.encoder import (
    SMALL_CHUNK_BYTES,
    ChunkEncoder,
    UnexpectedNaN,
    checked_ends,
    cuts,
    row_groups,
    times_of,
)
from pravega_spark.engine.chunks.footer import FooterSink, digest_of
from pravega_spark.engine.chunks.format import as_events, columns_with_nan, is_raw
from pravega_spark.engine.chunks.recent import RecentChunks
from pravega_spark.engine.chunks.tiny import TINY_BYTES, TINY_ROWS, LoneEvent, encode_tiny
from pravega_spark.engine.key_management import ChunkKey
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import InvalidInput
from pravega_spark.values.limits import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    COMPRESSION,
    ROW_GROUP_BYTES,
    ROW_GROUP_EVENTS,
)

_PARTS: Final = 16
"""So many parts are copied into one: each costs memory, even for few events."""
_PART_BYTES: Final = 4 << 10
"""About that cost: of the objects of a table, and of buffers that end at whole cache lines."""


class RowGroup(NamedTuple):
    """Events for one row group, and their bytes."""

    events: pa.Table
    event_bytes: int


class RowGroupBuffer:
    """Collects events in order, and gives them back as row groups."""

    __slots__ = ("_held", "_owned", "event_bytes", "memory_bytes", "rows")

    def __init__(self) -> None:
        self._hold([])

    def _hold(self, held: list[tuple[pa.Table, NDArray[np.int64]]]) -> None:
        self._held = held
        """Events, with the cumulative bytes after each."""
        self._owned = 0
        """How many of the first of these have separate memory."""
        self.rows = sum(len(ends) for _, ends in held)
        self.event_bytes = sum(int(ends[-1]) for _, ends in held)
        self.memory_bytes = 0
        """The memory of those."""

    def add(self, events: pa.Table) -> None:
        """Append events, checked by ``as_events``. Raises EventTooLarge."""
        if not events.num_rows:
            return
        ends = checked_ends(events)
        self._held.append((events, ends))
        self.rows += events.num_rows
        self.event_bytes += int(ends[-1])

    def take(self, *, complete: bool = False) -> Iterator[RowGroup]:
        """Yield the full row groups; with ``complete`` also the events behind them."""
        is_full = self.rows >= ROW_GROUP_EVENTS or self.event_bytes > ROW_GROUP_BYTES
        if not self._held or not (is_full or complete):
            return
        events = pa.concat_tables([table for table, _ in self._held])
        ends = _joined([ends for _, ends in self._held])
        self._hold([])
        for first, last, size in row_groups(ends):
            part = events.slice(first, last - first)
            is_full = last - first >= ROW_GROUP_EVENTS or size > ROW_GROUP_BYTES
            if complete or is_full or last < len(ends):
                yield RowGroup(part, size)
            else:
                before = int(ends[first - 1]) if first else 0
                self._hold([(part, ends[first:] - before)])

    def own(self) -> None:
        """Copy the events that were added since the last call, and count the memory of all.

        A few events that are a slice of a table would keep all of it in memory.
        """
        if len(self._held) > _PARTS:
            events = pa.concat_tables([table for table, _ in self._held])
            self._hold([(events, _joined([ends for _, ends in self._held]))])
        for at in range(self._owned, len(self._held)):
            events, ends = self._held[at]
            mine = own_memory(events)
            self._held[at] = mine, ends
            self.memory_bytes += mine.get_total_buffer_size() + ends.nbytes + _PART_BYTES
        self._owned = len(self._held)


def _joined(ends: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the cumulative bytes after each event of consecutive tables."""
    before = np.cumsum([0, *(int(part[-1]) for part in ends[:-1])])
    return np.concatenate([part + size for part, size in zip(ends, before, strict=True)])


class ChunkWriter:
    """Writes one chunk of any size.

    A row group is encoded and stored in the background while the next one is collected: these two
    and the last batch are in memory. Such a write's error is raised by the next call that needs
    its end. A context manager: without :meth:`close`, or after an error, nothing is left in the
    store.
    """

    def __init__(
        self,
        store: Store,
        table_path: str,
        folder: str,
        segment_id: int,
        *,
        name: str,
        columns: pa.Schema = EVENT_SCHEMA,
        compression: str = COMPRESSION,
        key: ChunkKey | None = None,
        unbounded: frozenset[str] = frozenset(),
        runtime: Runtime = SYSTEM,
    ) -> None:
        """Begin the file ``<table_path>/data/<folder>/<name>.parquet``; ``name`` is unique.

        ``columns`` are those of the events that will be written. Only those that are also
        ``unbounded`` may have NaN: a call raises UnexpectedNaN for another one.
        Raises KeyUnavailable if the events are to be encrypted and cannot be.
        """
        self._path = file_path(folder, name)
        self._segment_id = segment_id
        self._runtime = runtime
        self._waiting = RowGroupBuffer()
        self._encoded: Future[None] | None = None
        """The row group that was begun last."""
        self._object = store.writer(f"{table_path}/{self._path}")
        self._is_open = True
        self._file = FooterSink(self._object.__enter__())
        self._encoder = _encoder_of(
            self._object,
            self._file,
            columns=columns,
            compression=compression,
            key=key,
            unbounded=unbounded,
        )

    def write(self, events: pa.Table | pa.RecordBatch) -> None:
        """Append events; full row groups are written.

        Raises what ``as_events`` raises, EventTooLarge, InvalidInput if the chunk would have more
        events than offsets, and StoreError.
        """
        if isinstance(events, pa.RecordBatch):
            events = pa.Table.from_batches([events])
        table = as_events(events)
        self._waiting.add(table)
        self._write_row_groups(complete=False)

    def close(self) -> StagedChunk:
        """Make the chunk durable and return it for a commit; raise InvalidInput without events."""
        self._write_row_groups(complete=True)
        self._finish_row_group()
        encoder = self._encoder
        if not encoder.rows:
            raise InvalidInput(f"the chunk {self._path} has no event. Write some, then close it.")
        self._file.keep()
        encoder.finish()
        size, footer = self._file.size, digest_of(pa.py_buffer(self._file.kept))
        self._is_open = False
        self._object.__exit__(None, None, None)
        return encoder.staged(self._path, self._segment_id, size, footer)

    def __enter__(self) -> ChunkWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Discard the file unless it was closed."""
        self._discard(error or _Discarded())

    def _write_row_groups(self, *, complete: bool) -> None:
        """Write the row groups that are full; with ``complete`` all events."""
        for group in self._waiting.take(complete=complete):
            self._finish_row_group()
            self._encoded = self._runtime.start(partial(self._encoder.write, *group))

    def _finish_row_group(self) -> None:
        """Wait for the row group in the background, and raise its error."""
        if self._encoded is not None:
            self._encoded.result()

    def _discard(self, error: BaseException) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if self._encoded is not None:
            wait([self._encoded])
        self._encoder.abandon()
        try:
            self._object.__exit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            if raised is not error:
                raise


def _encoder_of(
    opened: AbstractContextManager[Any],
    file: FooterSink,
    columns: pa.Schema,
    compression: str,
    key: ChunkKey | None,
    unbounded: frozenset[str],
) -> ChunkEncoder:
    """Return the encoder into an opened object; leave nothing in the store if it has no key."""
    try:
        sink = pa.PythonFile(file, mode="w")
        return ChunkEncoder(sink, compression, columns=columns, key=key, unbounded=unbounded)
    except BaseException as error:
        opened.__exit__(type(error), error, error.__traceback__)
        raise


class _Discarded(Exception):
    """Ends the store's context of a chunk that was not closed."""


def stage(
    store: Store,
    table_path: str,
    folder: str,
    segment_id: int,
    events: pa.Table,
    *,
    name: str,
    compression: str = COMPRESSION,
    key: ChunkKey | None = None,
    recent: RecentChunks | None = None,
) -> list[StagedChunk]:
    """Store events durably as chunks of one segment, which a commit must name in this order.

    The files are ``<table_path>/data/<folder>/<name>-<k>.parquet``; ``name`` must be unique.
    ``folder`` is a ``version_folder``, or the folder of a transaction. Without events no chunk is
    stored. With a ``key`` they are encrypted. Those of readers' size go to ``recent``, too. Raises
    EventTooLarge above ``MAX_EVENT_BYTES``, and KeyUnavailable.
    """
    chunks = []
    for encoded in encode_chunks(
        folder, segment_id, events, name=name, compression=compression, key=key
    ):  # one after the other, since each may be large
        store.put(f"{table_path}/{encoded.chunk.path}", encoded.data)
        if recent is not None:
            recent.keep(table_path, *encoded)
        chunks.append(encoded.chunk)
    return chunks


def store_together(
    store: Store,
    table_path: str,
    encoded: Sequence[EncodedChunk],
    *,
    before_commit: bool = False,
) -> list[StagedChunk]:
    """Store encoded chunks, all at once; durably, or ``before_commit`` of this process names them.

    The commit then makes them durable (``Store.stage``).
    """
    objects = [(f"{table_path}/{one.chunk.path}", one.data) for one in encoded]
    if before_commit:
        store.stage(objects)
    else:
        store.put_many(objects)
    return [one.chunk for one in encoded]


class EncodedChunk(NamedTuple):
    """A chunk as a commit names it, and its file, which is not stored yet."""

    chunk: StagedChunk
    data: bytes | pa.Buffer


def encode_chunks(
    folder: str,
    segment_id: int,
    events: pa.Table,
    *,
    name: str,
    compression: str = COMPRESSION,
    key: ChunkKey | None = None,
) -> Iterator[EncodedChunk]:
    """Yield the chunks that :func:`stage` stores."""
    table = as_events(events)
    ends = checked_ends(table)
    for number, (first, last, _) in enumerate(cuts(ends, CHUNK_EVENTS, CHUNK_BYTES)):
        before = int(ends[first - 1]) if first else 0
        part = table.slice(first, last - first)
        path = file_path(folder, f"{name}-{number}")
        is_few = last - first <= TINY_ROWS
        if is_few and key is None and compression == COMPRESSION and is_raw(part.schema):
            tiny = _tiny(path, segment_id, part, int(ends[last - 1]) - before)
            if tiny is not None:
                yield tiny
                continue
        encoder, data = _encode(part, ends[first:last] - before, compression, key)
        staged = encoder.staged(path, segment_id, data.size, digest_of(data))
        yield EncodedChunk(staged, data)


def encode_lone(
    folder: str, segment_id: int, one: LoneEvent, *, name: str, key: ChunkKey | None = None
) -> EncodedChunk:
    """Return the chunk that :func:`encode_chunks` yields for a table of this event."""
    if key is not None:
        row = encode_events([one.key], [one.time_us], [one.event])
        return next(encode_chunks(folder, segment_id, row, name=name, key=key))
    routing_key = None if one.key is None else one.key.encode()
    path = file_path(folder, f"{name}-0")
    return _tiny_file(
        path,
        segment_id,
        keys=[routing_key],
        times=[one.time_us],
        events=[one.event],
        event_bytes=len(one.event),
    )


def _tiny(path: str, segment_id: int, events: pa.Table, event_bytes: int) -> EncodedChunk | None:
    """Return the chunk of a few short events; None if they are long."""
    if event_bytes > TINY_BYTES:
        return None
    texts = events.column("routing_key").to_pylist()
    keys = [text if text is None else text.encode() for text in texts]
    if event_bytes + sum(len(key) for key in keys if key is not None) > TINY_BYTES:
        return None
    times: list[int] = times_of(events).tolist()
    values = events.column("event").to_pylist()
    return _tiny_file(
        path, segment_id, keys=keys, times=times, events=values, event_bytes=event_bytes
    )


def _tiny_file(
    path: str,
    segment_id: int,
    keys: list[bytes | None],
    times: list[int],
    events: list[bytes],
    event_bytes: int,
) -> EncodedChunk:
    data = encode_tiny(keys, times, events)
    staged = StagedChunk(
        path,
        segment_id,
        rows=len(keys),
        size=len(data),
        event_bytes=event_bytes,
        min_timestamp_us=min(times),
        max_timestamp_us=max(times),
        null_keys=keys.count(None),
        footer=digest_of(data),
    )
    return EncodedChunk(staged, data)


def encode(table: pa.Table, compression: str = COMPRESSION) -> pa.Buffer:
    """Return the Parquet file of one chunk with the events in the order of ``table``."""
    events = as_events(table)
    return _encode(events, checked_ends(events), compression)[1]


def _encode(
    events: pa.Table, ends: NDArray[np.int64], compression: str, key: ChunkKey | None = None
) -> tuple[ChunkEncoder, pa.Buffer]:
    sink = pa.BufferOutputStream()
    small = not len(ends) or bool(ends[-1] <= SMALL_CHUNK_BYTES)
    encoder = ChunkEncoder(
        sink,
        compression,
        columns=events.schema,
        small=small,
        key=key,
        unbounded=columns_with_nan(events),
    )
    for first, last, size in row_groups(ends):
        encoder.write(events.slice(first, last - first), size)
    encoder.finish()
    return encoder, sink.getvalue()


class ChunkSequence:
    """Encodes row groups into a chunk in memory, and stores it once it is full; not thread-safe.

    So encoding does not wait for the last event, and what waits for the storage is compressed.
    """

    def __init__(
        self,
        store: Store,
        table_path: str,
        folder: str,
        segment_id: int,
        *,
        name: str,
        compression: str,
        key: ChunkKey | None,
        max_rows: int,
    ) -> None:
        """Begin without a chunk; ``name`` is unique, as that of ``stage``."""
        self._store = store
        self._path = table_path
        self._folder = folder
        self._segment_id = segment_id
        self._name = name
        self._compression = compression
        self._key = key
        self._max_rows = max_rows
        self._open: tuple[ChunkEncoder, pa.BufferOutputStream] | None = None
        self.chunks: list[StagedChunk] = []
        """The chunks that are stored, in the order of their events."""
        self.open_bytes = 0
        """The bytes of the chunk that is open."""

    def write(self, group: RowGroup) -> None:
        """Append a row group. Raises StoreError, and KeyUnavailable."""
        events, size = group
        while events.num_rows > (room := self._room):
            if room:
                first = events.slice(0, room)
                first_bytes = int(checked_ends(first)[-1])
                self._append(first, first_bytes)
                events, size = events.slice(room), size - first_bytes
            self._store_open()
        self._append(events, size)

    def finish(self, rest: Iterable[RowGroup]) -> None:
        """Append the last events, and store all of them. Raises what :meth:`write` raises."""
        for group in rest:
            if self._open is not None:
                self.write(group)
                continue
            events, most = group.events, self._max_rows
            for at in range(0, events.num_rows, most):
                target = self._store, self._path, self._folder, self._segment_id
                self.chunks += stage(
                    *target,
                    events.slice(at, most),
                    name=self._next_name,
                    compression=self._compression,
                    key=self._key,
                )
        self._store_open()

    @property
    def _room(self) -> int:
        """How many more events the open chunk may have."""
        return self._max_rows - (0 if self._open is None else self._open[0].rows)

    @property
    def _next_name(self) -> str:
        return f"{self._name}-{len(self.chunks)}"

    def _append(self, events: pa.Table, size: int) -> None:
        """Append a row group that has room."""
        if self._open is not None and self._open[0].event_bytes + size > CHUNK_BYTES:
            self._store_open()
        try:
            self._encode(events, size)
        except UnexpectedNaN:  # columns of a chunk with a NaN have no bounds: another chunk
            self._store_open()
            self._encode(events, size)
        self.open_bytes = self._open[1].tell() if self._open is not None else 0

    def _encode(self, events: pa.Table, size: int) -> None:
        if self._open is None:
            sink = pa.BufferOutputStream(pa.system_memory_pool())  # grows without a copy
            encoder = ChunkEncoder(
                sink,
                self._compression,
                columns=events.schema,
                key=self._key,
                unbounded=columns_with_nan(events),
            )
            self._open = encoder, sink
        self._open[0].write(events, size)

    def _store_open(self) -> None:
        if self._open is None:
            return
        encoder, sink = self._open
        encoder.finish()
        data = sink.getvalue()
        path = file_path(self._folder, self._next_name)
        self._store.put(f"{self._path}/{path}", data)
        self.chunks.append(encoder.staged(path, self._segment_id, data.size, digest_of(data)))
        self._open, self.open_bytes = None, 0
