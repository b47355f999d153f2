"""Stores events of one segment as chunks while the next ones come."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.chunk_encoder import ChunkEncoder, UnexpectedNaN, checked_ends
from pravega_spark.engine.chunks.chunk_writer import stage
from pravega_spark.engine.chunks.event_format import columns_with_nan
from pravega_spark.engine.chunks.footer import digest_of
from pravega_spark.engine.chunks.row_group_buffer import RowGroup
from pravega_spark.engine.key_management import ChunkKey
from pravega_spark.engine.store.base import Store
from pravega_spark.limits import CHUNK_BYTES


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
        """Store the chunk that is open."""
        if self._open is None:
            return
        encoder, sink = self._open
        encoder.finish()
        data = sink.getvalue()
        path = f"data/{self._folder}/{self._next_name}.parquet"
        self._store.put(f"{self._path}/{path}", data)
        self.chunks.append(encoder.staged(path, self._segment_id, data.size, digest_of(data)))
        self._open, self.open_bytes = None, 0
