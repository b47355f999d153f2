"""Events that await their row group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import own_memory
from pravega_spark.engine.chunks.chunk_encoder import checked_ends, row_groups
from pravega_spark.limits import ROW_GROUP_BYTES, ROW_GROUP_EVENTS

_PARTS: Final = 16
"""So many parts are copied into one: each costs memory of its own, however few events it has."""
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
        """Begin empty."""
        self._hold([])

    def _hold(self, held: list[tuple[pa.Table, NDArray[np.int64]]]) -> None:
        self._held = held
        """Events, with the cumulative bytes after each."""
        self._owned = 0
        """How many of the first of these have memory of their own."""
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
