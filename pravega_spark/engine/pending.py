"""A batch of events on its way into the log, with the futures of their writes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import numpy as np

from pravega_spark.config import WRITER_BATCH_BYTES, WRITER_BATCH_EVENTS, WRITER_EVENT_BYTES
from pravega_spark.engine.futures import Lost, WriteFuture, Written

CLOSE = 1
"""In an entry that is no write: the writer is closed behind it."""

Entry = WriteFuture[Any]
"""A write on its way: event (a list of them for an atomic write), routing key and time.

With None for the event it is a mark, settled when all before it are: note, then ``CLOSE`` or 0.
"""


class Placed(NamedTuple):
    """Where the events of a batch are: for each its index in ``states``, and its offset."""

    states: Sequence[Written | None]
    places: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, Any]


class Pending:
    """Events of one commit; its borders never change once it is offered to the log."""

    __slots__ = (
        "_futures", "_rows", "events", "groups", "is_last", "keys", "note", "size_bytes",
        "times_us",
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
        self._futures: list[WriteFuture[Any]] = []
        self._rows: list[tuple[int, int]] | None = None
        """For each future its first event and its count: 0 for a mark, -1 for a lone event.

        None where all are lone events.
        """

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> tuple[Pending, int]:
        """Return a batch of the first entries, and how many these are."""
        batch, position = cls(), 0
        events: list[Any] = [entry._event for entry in entries]
        others: list[int] = []
        if set(map(type, events)) != {bytes}:
            others = [i for i, event in enumerate(events) if type(event) is not bytes]
        for end in (*others, len(entries)):
            fit = batch._add_events(events[position:end], entries[position:end])
            if fit < end - position:
                return batch, position + fit
            if end < len(entries) and not batch._add(entries[end]):
                return batch, end
            position = end + 1
        return batch, len(entries)

    def _add_events(self, events: list[bytes], entries: Sequence[Entry]) -> int:
        """Append writes of one event each; return how many of them fit."""
        if not entries or self._is_closed:
            return 0
        size = sum(map(len, events)) + len(events) * WRITER_EVENT_BYTES
        room = WRITER_BATCH_EVENTS - len(self.events)
        if len(events) > room or self.size_bytes + size > WRITER_BATCH_BYTES:
            sizes = [*accumulate(len(event) + WRITER_EVENT_BYTES for event in events)]
            room = min(room, bisect_right(sizes, WRITER_BATCH_BYTES - self.size_bytes))
            room = max(room, 0 if self.events else 1)
            if not room:
                return 0
            events, entries, size = events[:room], entries[:room], sizes[room - 1]
        if self._rows is not None:
            first = len(self.events)
            self._rows += [(row, -1) for row in range(first, first + len(events))]
        self.events += events
        self.keys += [entry._key for entry in entries]
        self.times_us += [entry._offset for entry in entries]
        self.size_bytes += size
        self._futures += entries
        return len(events)

    def _add(self, entry: Entry) -> bool:
        """Append a mark or an atomic write; return False if it must go into a later batch."""
        if self._is_closed:
            return False
        event, first, count = entry._event, len(self.events), 0
        if event is not None:
            events = event if isinstance(event, list) else [event]
            count = len(events)
            size = sum(map(len, events)) + count * WRITER_EVENT_BYTES
            full = first + count > WRITER_BATCH_EVENTS
            if first and (full or self.size_bytes + size > WRITER_BATCH_BYTES):
                return False
            self.events += events
            self.keys += repeat(entry._key, count)
            self.times_us += repeat(entry._offset, count)
            self.size_bytes += size
            if entry._key is None and count > 1:
                self.groups.append((first, count))
        else:
            self.note, self.is_last = entry._key, entry._offset == CLOSE
        if self._rows is None:
            self._rows = [(row, -1) for row in range(first)]
        self._rows.append((first, count if isinstance(event, list) else -count))
        self._futures.append(entry)
        return True

    @property
    def _is_closed(self) -> bool:
        return self.is_last or self.note is not None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.events and self.note is None

    @property
    def entries(self) -> int:
        """How many writes and marks it holds."""
        return len(self._futures)

    @property
    def writes(self) -> int:
        """How many writes it holds, without marks."""
        if self._rows is None:
            return len(self._futures)
        return sum(count != 0 for _, count in self._rows)

    def settle(self, placed: Placed) -> None:
        """Complete the futures."""
        places, offsets = placed.places.tolist(), placed.offsets.tolist()
        states: Any = placed.states
        if self._rows is None:
            for future, place, offset in zip(self._futures, places, offsets, strict=True):
                future._event = future._key = None
                future._offset = offset
                future._at = states[place]
            return
        for future, (first, count) in zip(self._futures, self._rows, strict=True):
            if not count:
                future.settle(FLUSHED)
            else:
                state = states[places[first]]
                future.settle(state if count < 0 else state.group(count), offsets[first])

    def fail(self, lost: Lost) -> None:
        """Fail the futures."""
        for future in self._futures:
            future.settle(lost)


FLUSHED = Written("", 0, 0)
"""State of a mark when all before it are durable."""
NOWHERE = Placed((), np.empty(0, np.int64), np.empty(0, np.int64))
"""Where the events of an empty batch are."""


def ranks(segments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each row how many rows before it have the same value."""
    order = np.argsort(segments, kind="stable")
    ordered = segments[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    result = np.empty(len(segments), np.int64)
    result[order] = np.arange(len(segments)) - np.repeat(starts, lengths)
    return result
