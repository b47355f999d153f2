"""The buffer of a transaction's handle: events in memory, then chunks that await a manifest.

Events are Python objects first, and Arrow columns by segment once they are many; rows of tables are
columns at once. Columns wait until they fill a chunk, so that a large transaction makes few large
files.

Each change is one step: an interrupt finds an event in memory, in columns or in a chunk, and never
in two of them or in none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pravega_spark.engine.chunks.arrow_arrays import own_memory
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.chunk_encoder import checked_ends, cuts
from pravega_spark.engine.chunks.chunk_writer import stage
from pravega_spark.engine.chunks.event_format import EventFormat, SmallEvent
from pravega_spark.engine.chunks.routing import Router, group
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.batch_staging import RoutedEvents, stage_routed
from pravega_spark.engine.writing.large_event_staging import stage_large_event
from pravega_spark.engine.writing.table_rows import EventTable
from pravega_spark.errors import InvalidInput
from pravega_spark.limits import (
    CHUNK_BYTES,
    CHUNK_EVENTS,
    TRANSACTION_BATCH_BYTES,
    TRANSACTION_BATCH_EVENTS,
    TRANSACTION_BUFFER_BYTES,
)
from pravega_spark.model import Segment, segment_text
from pravega_spark.transactions.transaction_paths import chunk_folder


class _HeldEvents(NamedTuple):
    """What a buffer holds; replaced as a whole, except that an event is appended in one step."""

    staged: Sequence[StagedChunk]
    """Chunks in the transaction's folder, in the order of the events."""
    columns: Mapping[int, pa.Table]
    """Newer events of each segment, which do not fill a chunk yet."""
    events: list[tuple[SmallEvent, str | None, int]]
    """The newest events, with their keys and times."""


class TransactionBuffer:
    """Events that one handle accepted and that no manifest is known to name; not thread-safe.

    Errors lose nothing: staged chunks stay until the handle knows that a manifest names them, and
    events that could not be staged stay in memory, so every call can be repeated.
    """

    def __init__(
        self,
        stream: StreamLog,
        transaction_id: str,
        epoch: int,
        segments: Sequence[Segment],
        event_format: EventFormat,
    ) -> None:
        """Begin empty; the events are routed to ``segments``, those of the epoch."""
        self._stream = stream
        self._id = transaction_id
        self._epoch = epoch
        self._segments = segments
        self.event_format = event_format
        """The columns of the events; those of a later schema once an event needs it."""
        self.drop()

    def drop(self) -> None:
        """Drop everything."""
        self._held = _HeldEvents((), {}, [])
        self._size_bytes = 0
        """About the bytes of the newest events: one that is interrupted may not be counted."""

    def forget(self, chunks: Collection[StagedChunk]) -> None:
        """Drop chunks that a manifest names."""
        named = {chunk.path for chunk in chunks}
        left = [chunk for chunk in self.staged if chunk.path not in named]
        self._held = self._held._replace(staged=left)

    @property
    def staged(self) -> Sequence[StagedChunk]:
        """Chunks in the transaction's folder, in the order of the events."""
        return self._held.staged

    @property
    def unstaged(self) -> int:
        """The number of events that are in memory only."""
        held = self._held
        return len(held.events) + sum(int(rows.num_rows) for rows in held.columns.values())

    @property
    def is_empty(self) -> bool:
        """Whether it holds neither events nor chunks."""
        return not self.unstaged and not self.staged

    @property
    def is_full(self) -> bool:
        """Whether it must be :meth:`spilled <spill>` before it accepts more events."""
        full = len(self._held.events) >= TRANSACTION_BATCH_EVENTS
        return full or self._size_bytes >= TRANSACTION_BATCH_BYTES

    def add(self, events: Sequence[SmallEvent], routing_key: str | None, time_us: int) -> None:
        """Add events with one routing key and time, in order."""
        self._held.events.extend([(event, routing_key, time_us) for event in events])
        self._size_bytes += sum(map(len, events))

    def collect(
        self,
        events: Iterable[SmallEvent],
        routing_key: str | None,
        check: Callable[[], None],
    ) -> TransactionBuffer:
        """Return a new buffer of the same transaction with these events, for :meth:`join`.

        So a write of any size holds no more memory than a buffer, and this buffer has none of its
        events if that raises. ``check`` is called each time that chunks were staged.
        """
        batch = self._new()
        time_us = self._stream.runtime.now_us()
        piece: list[SmallEvent] = []
        size = 0
        for event in events:
            piece.append(event)
            size += len(event)
            if size >= TRANSACTION_BATCH_BYTES or len(piece) >= TRANSACTION_BATCH_EVENTS:
                batch.event_format = self.event_format
                batch.add(piece, routing_key, time_us)
                piece, size = [], 0
                if batch.spill():
                    check()
        batch.event_format = self.event_format
        batch.add(piece, routing_key, time_us)
        return batch

    def collect_table(self, rows: EventTable, check: Callable[[], None]) -> TransactionBuffer:
        """Return a new buffer with the rows of a table, as :meth:`collect` does with events."""
        batch = self._new()
        for events in rows.tables(TRANSACTION_BATCH_BYTES, self._stream.runtime.now_ns()):
            batch._hold(group(*batch._routed(events)))
            if batch.spill():
                check()
        return batch

    def newest_format(self, life: int) -> EventFormat:
        """Return the stream's format as it is now, in which events are encoded from now on."""
        self.event_format = self._stream.view(life=life).event_format
        return self.event_format

    def _new(self) -> TransactionBuffer:
        """Return an empty buffer of the same transaction."""
        return TransactionBuffer(
            self._stream, self._id, self._epoch, self._segments, self.event_format
        )

    def collect_large(
        self, pieces: Iterator[memoryview], routing_key: str | None
    ) -> TransactionBuffer:
        """Store a large event, and return a new buffer with its chunk, for :meth:`join`."""
        stream, folder = self._stream, chunk_folder(self._id)
        batch = self._new()
        segment_id = Router(self._segments).segment_of(
            self._id if routing_key is None else routing_key
        )
        chunk = stage_large_event(stream, folder, pieces, segment_id=segment_id, key=routing_key)
        batch._held = _HeldEvents(_known([chunk]), {}, [])
        return batch

    def join(self, batch: TransactionBuffer) -> None:
        """Add the events of a buffer that :meth:`collect` returned; none of them if it raises."""
        new = batch._held
        if new.staged or new.columns:
            self.spill()
            # A segment's older events must precede the staged chunks of the batch.
            segment_ids = {chunk.segment_id for chunk in new.staged} & self._held.columns.keys()
            self._stage_columns({s: self._held.columns[s].num_rows for s in sorted(segment_ids)})
            self._stage_columns(self._surplus(sum(t.nbytes for t in new.columns.values())))
        held = self._held
        columns = self._joined(new.columns.items())
        self._held = _HeldEvents([*held.staged, *new.staged], columns, [*held.events, *new.events])
        self._size_bytes += batch._size_bytes

    def check(self, chunks: Sequence[StagedChunk]) -> None:
        """Raise InvalidInput for chunks that a commit of this transaction could not append.

        One commit ends all decided transactions: such a chunk would block every one of them.
        """
        folder = f"data/{chunk_folder(self._id)}/"
        segment_ids = {segment.segment_id for segment in self._segments}
        for chunk in chunks:
            inside = chunk.path.startswith(folder) and chunk.rows > 0
            if not inside or (segment_ids and chunk.segment_id not in segment_ids):
                raise InvalidInput(
                    f"{chunk.path} ({chunk.rows} events of segment "
                    f"{segment_text(chunk.segment_id)}) does not belong to transaction {self._id}, "
                    f"whose chunks are staged in {folder}, for the segments of epoch {self._epoch}."
                )

    def spill(self) -> bool:
        """Make room for more events; return whether that staged chunks.

        A chunk is staged once it is full. If all columns together exceed their limit, the largest
        ones are staged: so chunks are large however the events spread over the segments.
        """
        before = len(self.staged)
        if self._held.events:
            self._hold(group(*self._routed(self._encoded())), keeps_events=False)
        self._stage_columns(self._full_chunks())
        self._stage_columns(self._surplus())
        return len(self.staged) > before

    def _hold(self, parts: Iterable[tuple[int, pa.Table]], *, keeps_events: bool = True) -> None:
        """Add events to the columns of their segments, in place of the newest ones or after all."""
        columns = self._joined((segment_id, own_memory(rows)) for segment_id, rows in parts)
        self._held = _HeldEvents(self.staged, columns, self._held.events if keeps_events else [])
        if not keeps_events:
            self._size_bytes = 0

    def _joined(self, parts: Iterable[tuple[int, pa.Table]]) -> dict[int, pa.Table]:
        """Return the columns with more events behind them."""
        columns = dict(self._held.columns)
        for segment_id, rows in parts:
            columns[segment_id] = self._after(columns.get(segment_id), rows)
        return columns

    def _after(self, held: pa.Table | None, rows: pa.Table) -> pa.Table:
        """Return events after those that are held, which may be of an older schema."""
        if held is None:
            return rows
        return pa.concat_tables([self.event_format.widened(part) for part in (held, rows)])

    def stage(self) -> None:
        """Stage all events in memory as chunks."""
        if self._held.columns:
            self.spill()
            self._stage_columns({s: rows.num_rows for s, rows in self._held.columns.items()})
        elif self._held.events:
            events, indexes, segment_ids = self._routed(self._encoded())
            routed = RoutedEvents(segment_ids, indexes)
            chunks = stage_routed(self._stream, chunk_folder(self._id), events, routed)
            self._held = _HeldEvents([*self.staged, *_known(chunks)], {}, [])
            self._size_bytes = 0

    def _encoded(self) -> pa.Table:
        events, keys, times_us = map(list, zip(*self._held.events, strict=True))
        return self.event_format.encode(keys, times_us, events)

    def _routed(self, events: pa.Table) -> tuple[pa.Table, np.ndarray[Any, Any], tuple[int, ...]]:
        """Return events, and the segment of each, as an index into segment ids."""
        router = Router(self._segments)
        # Events without a key share one segment: the transaction's id routes them.
        keys = events.column("routing_key").fill_null(self._id)
        return events, router.segment_indexes(keys, start=0), router.segment_ids

    def _full_chunks(self) -> dict[int, int]:
        """Return for each segment how many of its oldest events fill chunks."""
        full: dict[int, int] = {}
        for segment_id, held in self._held.columns.items():
            if held.nbytes > CHUNK_BYTES or held.num_rows > CHUNK_EVENTS:
                *complete, _ = cuts(checked_ends(held), CHUNK_EVENTS, CHUNK_BYTES)
                if complete:
                    full[segment_id] = complete[-1][1]
        return full

    def _surplus(self, more_bytes: int = 0) -> dict[int, int]:
        """Return the largest segments, as above.

        Without them the columns keep their limit, together with so many more bytes.
        """
        columns = self._held.columns
        sizes = {segment_id: held.nbytes for segment_id, held in columns.items()}
        found: dict[int, int] = {}
        while sizes and sum(sizes.values()) + more_bytes > TRANSACTION_BUFFER_BYTES:
            largest = max(sizes, key=sizes.__getitem__)
            found[largest] = columns[largest].num_rows
            del sizes[largest]
        return found

    def _stage_columns(self, rows: Mapping[int, int]) -> None:
        """Stage that many of the oldest events of some segments, each in chunks of its own."""
        stream, folder, name = self._stream, chunk_folder(self._id), self._stream.runtime.token()

        columns = dict(self._held.columns)

        def stage_oldest(segment_id: int) -> list[StagedChunk]:
            oldest = columns[segment_id].slice(0, rows[segment_id])
            chunk_name = f"{name}-{segment_id}"
            target = stream.store, stream.path, folder, segment_id
            return stage(*target, oldest, name=chunk_name, key=stream.chunk_key)

        staged = list(self.staged)
        found = stream.runtime.each(stage_oldest, list(rows))
        for (segment_id, count), chunks in zip(rows.items(), found, strict=True):
            staged += _known(chunks)
            left = columns.pop(segment_id).slice(count)
            if left.num_rows:
                columns[segment_id] = own_memory(left)
        self._held = self._held._replace(staged=staged, columns=columns)


def _known(chunks: Sequence[StagedChunk]) -> Sequence[StagedChunk]:
    """Return chunks whose statistics are made, so that their manifest cannot fail."""
    for chunk in chunks:
        chunk.stats_json()
    return chunks
