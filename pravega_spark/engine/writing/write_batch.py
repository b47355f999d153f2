"""A batch of events on its way into the log, with the futures of their writes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, repeat
from typing import Any

import numpy as np

from pravega_spark.engine.writing.write_futures import WriteFuture
from pravega_spark.engine.writing.write_outcomes import (
    DurableGroup,
    DurableWrites,
    Generation,
    Places,
    Run,
)
from pravega_spark.limits import WRITER_BATCH_BYTES, WRITER_BATCH_EVENTS, WRITER_EVENT_BYTES

CLOSE = 1
"""In an entry that is no write: the writer is closed behind it."""
FIELDS = 5
"""An entry is so many items in a row: event, routing key, time, number or future, generation.

The future of a lone event knows its number and its generation. For an atomic write, whose event is
a list of them, the future itself stands in the place of its number. With None for the event it is
a mark, settled when all before it are: note, then ``CLOSE`` or 0.
"""

Entry = tuple[
    bytes | list[bytes] | None, str | None, int, int | WriteFuture[Any], Generation | None
]


class WriteBatch:
    """Events of one commit; its borders never change once it is offered to the log."""

    __slots__ = (
        "_futures", "_lone", "entries", "events", "groups", "is_last", "keys", "note",
        "size_bytes", "times_us",
    )  # fmt: skip

    def __init__(self) -> None:
        """Begin an empty batch."""
        self.events: list[bytes] = []
        self.keys: list[str | None] = []
        self.times_us: list[int] = []
        self.groups: list[tuple[int, int]] = []
        """(first, count) of atomic writes without a key, which must share a segment."""
        self.size_bytes = 0
        """As the writer's buffer counts it."""
        self.note: str | None = None
        self.is_last = False
        """Whether the writer is closed behind it."""
        self.entries = 0
        """How many writes and marks it holds."""
        self._lone: list[tuple[int, list[int], list[Generation]]] = []
        """Lone events in a row: the first one's row, and for each its number and generation."""
        self._futures: list[tuple[WriteFuture[Any], int, int]] = []
        """Of atomic writes and marks, with the first row and the count: 0 for a mark."""

    @classmethod
    def of(cls, items: list[Any]) -> WriteBatch:
        """Return a batch of the first of these entries; ``entries`` tells how many these are."""
        batch = cls()
        end = min(len(items), WRITER_BATCH_EVENTS * FIELDS)
        columns = [items[field:end:FIELDS] for field in range(FIELDS)]
        events: list[Any] = columns[0]
        others: list[int] = []
        if set(map(type, events)) != {bytes}:
            others = [i for i, event in enumerate(events) if type(event) is not bytes]
        for other in (*others, len(events)):
            first = batch.entries
            lone = [column[first:other] for column in columns] if others else columns
            batch._add_events(*lone)
            if batch.entries < other or other == len(events):
                break
            if not batch._add(*(column[other] for column in columns[:-1])):
                break
        return batch

    def _add_events(
        self,
        events: list[bytes],
        keys: list[str | None],
        times_us: list[int],
        numbers: list[int],
        generations: list[Generation],
    ) -> None:
        """Append writes of one event each, as many as fit."""
        if not events or self._is_closed:
            return
        size = sum(map(len, events)) + len(events) * WRITER_EVENT_BYTES
        room = WRITER_BATCH_EVENTS - len(self.events)
        if len(events) > room or self.size_bytes + size > WRITER_BATCH_BYTES:
            sizes = [*accumulate(len(event) + WRITER_EVENT_BYTES for event in events)]
            room = min(room, bisect_right(sizes, WRITER_BATCH_BYTES - self.size_bytes))
            room = max(room, 0 if self.events else 1)
            if not room:
                return
            events, keys, times_us = events[:room], keys[:room], times_us[:room]
            numbers, generations, size = numbers[:room], generations[:room], sizes[room - 1]
        self._lone.append((len(self.events), numbers, generations))
        self.events += events
        self.keys += keys
        self.times_us += times_us
        self.size_bytes += size
        self.entries += len(events)

    def _add(self, event: Any, key: str | None, time_us: int, future: WriteFuture[Any]) -> bool:
        """Append a mark or an atomic write; return False if it must go into a later batch."""
        if self._is_closed:
            return False
        first, count = len(self.events), 0
        if event is None:
            self.note, self.is_last = key, time_us == CLOSE
        else:
            count = len(event)
            size = sum(map(len, event)) + count * WRITER_EVENT_BYTES
            full = first + count > WRITER_BATCH_EVENTS
            if first and (full or self.size_bytes + size > WRITER_BATCH_BYTES):
                return False
            self.events += event
            self.keys += repeat(key, count)
            self.times_us += repeat(time_us, count)
            self.size_bytes += size
            if key is None and count > 1:
                self.groups.append((first, count))
        self._futures.append((future, first, count))
        self.entries += 1
        return True

    @property
    def _is_closed(self) -> bool:
        return self.is_last or self.note is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.events and self.note is None

    @property
    def writes(self) -> int:
        """How many writes it holds, without marks."""
        return self.entries - sum(not count for _, _, count in self._futures)

    def settle(self, places: Places | None) -> None:
        """Complete the futures; there are no places of an empty batch."""
        if places is not None:
            found: dict[Generation, list[Run]] = {}
            for row, numbers, generations in self._lone:
                for generation, run in _runs(row, numbers, generations):
                    found.setdefault(generation, []).append(run)
            for generation, runs in found.items():
                generation.add(DurableWrites(places, runs))
        for future, row, count in self._futures:
            pointer = places.pointer(row, alone=True) if places is not None and count else None
            future.settle(DurableGroup(pointer, count))


def _runs(
    row: int, numbers: list[int], generations: list[Generation]
) -> Iterator[tuple[Generation, Run]]:
    """Cut lone events into runs of consecutive numbers of one generation."""
    count = len(numbers)
    if generations.count(generations[0]) == count and numbers == [
        *range(numbers[0], numbers[0] + count)
    ]:
        yield generations[0], (numbers[0], count, row)
        return
    start = 0
    for end in range(1, count + 1):
        if (
            end == count
            or numbers[end] != numbers[end - 1] + 1
            or generations[end] is not generations[start]
        ):
            yield generations[start], (numbers[start], end - start, row + start)
            start = end


def ranks(segments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each row how many rows before it have the same value."""
    order = np.argsort(segments, kind="stable")
    ordered = segments[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    result = np.empty(len(segments), np.int64)
    result[order] = np.arange(len(segments)) - np.repeat(starts, lengths)
    return result
