"""Stores events durably as chunks: at once from memory, or as a stream of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, StagedChunk, encode_events
from pravega_spark.engine.chunks.chunk_encoder import (
    SMALL_CHUNK_BYTES,
    ChunkEncoder,
    checked_ends,
    cuts,
    row_groups,
    times_of,
)
from pravega_spark.engine.chunks.event_format import as_events, columns_with_nan, is_raw
from pravega_spark.engine.chunks.footer import FooterSink, digest_of
from pravega_spark.engine.chunks.row_group_buffer import RowGroupBuffer
from pravega_spark.engine.chunks.tiny_chunk import TINY_BYTES, TINY_ROWS, LoneEvent, encode_tiny
from pravega_spark.engine.key_management import ChunkKey
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import InvalidInput
from pravega_spark.limits import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    COMPRESSION,
)


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
        self._path = f"data/{folder}/{name}.parquet"
        self._segment_id = segment_id
        self._runtime = runtime
        self._waiting = RowGroupBuffer()
        self._encoded: Future[None] | None = None
        """The row group that was begun last."""
        self._object = store.writer(f"{table_path}/{self._path}")
        self._is_open = True
        self._file = FooterSink(self._object.__enter__())
        self._encoder = _encoder_of(self._object, self._file, columns, compression, key, unbounded)

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
        """Return the writer."""
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
) -> list[StagedChunk]:
    """Store events durably as chunks of one segment, which a commit must name in this order.

    The files are ``<table_path>/data/<folder>/<name>-<k>.parquet``; ``name`` must be unique.
    ``folder`` is a ``version_folder``, or the folder of a transaction. Without events no chunk is
    stored. With a ``key`` they are encrypted. Raises EventTooLarge above ``MAX_EVENT_BYTES``, and
    KeyUnavailable.
    """
    chunks = []
    for encoded in encode_chunks(
        folder, segment_id, events, name=name, compression=compression, key=key
    ):  # one after the other, since each may be large
        store.put(f"{table_path}/{encoded.chunk.path}", encoded.data)
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
        path = f"data/{folder}/{name}-{number}.parquet"
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
    path = f"data/{folder}/{name}-0.parquet"
    return _tiny_file(path, segment_id, [routing_key], [one.time_us], [one.event], len(one.event))


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
    return _tiny_file(path, segment_id, keys, times, values, event_bytes)


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
