"""One batch of events for one commit, with the futures of its writes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from pravega_spark.engine.chunks.format import RAW, EventFormat, SmallEvent, TypedEvent
from pravega_spark.engine.chunks.tiny import LoneEvent
from pravega_spark.engine.stream.watermarks import TimeNote
from pravega_spark.engine.writing.encode import TableRows
from pravega_spark.engine.writing.futures import ConditionalWrite, EventOutcomes, WriteFuture
from pravega_spark.engine.writing.outcomes import DurableEvents, DurableGroup, EventPositions, Run
from pravega_spark.engine.writing.stage import StoredEvent
from pravega_spark.errors import ConditionFailed
from pravega_spark.values.limits import WRITER_BATCH_BYTES, WRITER_BATCH_EVENTS, WRITER_EVENT_BYTES

_SINGLES = (bytes, TypedEvent)
"""The types of single events: the writer of a stream has one of them."""
_SINGLE_KINDS = ({bytes}, {TypedEvent})
CLOSE = 1
"""In a barrier: the writer closes after it."""
FIELDS = 5
"""An entry is this many items in a row: event, routing key, time, number or future, outcomes.

A single event has a write number and the EventOutcomes that its future refers to; so has a large
one, a StoredEvent, which is a batch of its own. An atomic write has a list of events, and its
future instead of a number. TableRows and ConditionalWrites have what they need themselves.
A barrier has None as its event: it is completed once all earlier writes are; its key is the note,
or a TimeNote, its time ``CLOSE`` or 0.
"""

QueueEntry = tuple[
    SmallEvent | list[SmallEvent] | TableRows | StoredEvent | ConditionalWrite | None,
    str | TimeNote | None,
    int,
    int | WriteFuture[Any] | None,
    EventOutcomes | None,
]


class WriteBatch:
    """Events of one commit; fixed once it is sent to the log, so that a retry is the same batch."""

    __slots__ = (
        "_barrier_count", "_groups", "_singles", "_tables", "conditional", "entries", "events",
        "is_last", "keyless_groups", "keys", "large", "note", "size_bytes", "taken_at", "time_note",
        "times_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        """Begin an empty batch."""
        self.events: list[Any] = []
        """The events that are not rows of a table, with a key and a time each."""
        self.keys: list[str | None] = []
        self.times_ns: list[int] = []
        self.keyless_groups: list[tuple[int, int]] = []
        """(first row, count) of atomic writes without a key, each of which needs one segment."""
        self.large: StoredEvent | None = None
        """The only event, if it is a large one."""
        self.size_bytes = 0
        """Counted as in the writer's buffer."""
        self.note: str | None = None
        self.time_note: TimeNote | None = None
        self.is_last = False
        """Whether the writer closes after this batch."""
        self.entries = 0
        """The number of writes and barriers."""
        self.taken_at: float | None = None
        """When a thread took the batch from the queue; None unless somebody observes that."""
        self._singles: list[tuple[int, list[int], list[EventOutcomes]]] = []
        """Adjacent single events: the row of the first, and each one's number and outcomes."""
        self._groups: list[tuple[WriteFuture[Any], int, int]] = []
        """Futures of atomic writes and barriers, with first row and count: 0 for a barrier."""
        self._tables: list[tuple[int, TableRows]] = []
        """Rows of tables, with the row of the first."""
        self._barrier_count = 0
        self.conditional: ConditionalWrite | None = None
        """The only write of the batch, if that is a conditional one."""

    @property
    def count(self) -> int:
        """The number of events."""
        rows = sum(rows.count for _, rows in self._tables)
        return len(self.events) + rows + (self.large is not None)

    @property
    def event_bytes(self) -> int:
        """The bytes of the events."""
        payload = 0 if self.large is None else self.large.chunk.event_bytes
        return payload + self.size_bytes - self.count * WRITER_EVENT_BYTES

    def content(self, event_format: EventFormat = RAW) -> pa.Table | LoneEvent | StoredEvent | None:
        """Return the events in the writer's format; None without events."""
        if self.large is not None:
            return self.large
        if event_format.is_raw and len(self.events) == 1 and not self._tables:
            lone = LoneEvent.of(self.keys[0], self.times_ns[0] // 1_000, self.events[0])
            if lone is not None:
                return lone
        return self.table(event_format) if self.count else None

    def table(self, event_format: EventFormat = RAW) -> pa.Table:
        """Return the events as a table of the format, in the order of their writes."""
        if not self._tables:
            return self._encoded(0, len(self.events), event_format)
        parts, first, before = [], 0, 0
        for row, rows in self._tables:
            last = row - before
            if last > first:
                parts.append(self._encoded(first, last, event_format))
            parts.append(event_format.widened(rows.table()))
            first, before = last, before + rows.count
        if first < len(self.events):
            parts.append(self._encoded(first, len(self.events), event_format))
        return pa.concat_tables(parts)

    def _encoded(self, first: int, last: int, event_format: EventFormat) -> pa.Table:
        part = slice(first, last)
        times_us = np.asarray(self.times_ns[part], np.int64) // 1_000
        return event_format.encode(self.keys[part], times_us, self.events[part])

    @classmethod
    def of(cls, items: list[Any]) -> WriteBatch:
        """Return a batch of the first of these entries; its ``entries`` is how many it took."""
        batch = cls()
        end = min(len(items), WRITER_BATCH_EVENTS * FIELDS)
        columns = [items[field:end:FIELDS] for field in range(FIELDS)]
        events: list[Any] = columns[0]
        others: list[int] = []
        kinds = set(map(type, events))
        if kinds not in _SINGLE_KINDS:
            others = [i for i, event in enumerate(events) if type(event) not in _SINGLES]
        for other in (*others, len(events)):
            first = batch.entries
            singles = [column[first:other] for column in columns] if others else columns
            batch._add_singles(*singles)
            if batch.entries < other or other == len(events):
                break
            if not batch._add_other(*(column[other] for column in columns)):
                break
        return batch

    def _add_singles(
        self,
        events: list[Any],
        keys: list[str | None],
        times_ns: list[int],
        numbers: list[int],
        outcomes: list[EventOutcomes],
    ) -> None:
        """Append as many of these single events as fit."""
        if not events or self._is_complete:
            return
        size = sum(map(len, events)) + len(events) * WRITER_EVENT_BYTES
        held = self.count
        room = WRITER_BATCH_EVENTS - held
        if len(events) > room or self.size_bytes + size > WRITER_BATCH_BYTES:
            sizes = [*accumulate(len(event) + WRITER_EVENT_BYTES for event in events)]
            room = min(room, bisect_right(sizes, WRITER_BATCH_BYTES - self.size_bytes))
            room = max(room, 0 if held else 1)
            if not room:
                return
            events, keys, times_ns = events[:room], keys[:room], times_ns[:room]
            numbers, outcomes, size = numbers[:room], outcomes[:room], sizes[room - 1]
        self._singles.append((held, numbers, outcomes))
        self.events += events
        self.keys += keys
        self.times_ns += times_ns
        self.size_bytes += size
        self.entries += len(events)

    def _add_other(self, event: Any, key: Any, time_ns: int, future: Any, outcomes: Any) -> bool:
        """Append what is not a single event; return False if it needs a later batch."""
        if type(event) is not StoredEvent:
            return self._add_group(event, key, time_ns, future)
        if self.entries or self._is_complete:
            return False
        self.large = event
        self._singles.append((0, [future], [outcomes]))
        self.size_bytes += WRITER_EVENT_BYTES
        self.entries += 1
        return True

    def _add_group(self, event: Any, key: Any, time_ns: int, future: WriteFuture[Any]) -> bool:
        """Append a barrier, an atomic write or rows; return False if they need a later batch."""
        # A flush that follows a large event is of its commit, and so are a note and a close.
        if self._is_complete and not (event is None and self._is_large_alone):
            return False
        first, count = self.count, 0
        if type(event) is TableRows:
            return self._add_rows(first, event)
        if type(event) is ConditionalWrite:
            return self._add_conditional(event, key, time_ns)
        if event is None:
            if type(key) is TimeNote:
                self.time_note = key.after(self.time_note)
            else:
                self.note = key
            self.is_last = time_ns == CLOSE
            self._barrier_count += 1
        else:
            count = len(event)
            size = sum(map(len, event)) + count * WRITER_EVENT_BYTES
            if not self._has_room(first, count, size):
                return False
            self.events += event
            self.keys += repeat(key, count)
            self.times_ns += repeat(time_ns, count)
            self.size_bytes += size
            if key is None and count > 1:
                self.keyless_groups.append((first, count))
        self._groups.append((future, first, count))
        self.entries += 1
        return True

    def _add_rows(self, first: int, rows: TableRows) -> bool:
        if rows.is_taken:
            self.entries += 1
            return True
        if not self._has_room(first, rows.count, rows.size_bytes):
            return False
        rows.is_taken = True
        self._tables.append((first, rows))
        self.size_bytes += rows.size_bytes
        self.entries += 1
        return True

    def _add_conditional(self, write: ConditionalWrite, key: str | None, time_ns: int) -> bool:
        """Take the write as the only one: what is refused must not take others with it."""
        if self.entries:
            return False
        self.conditional, self.entries, self.size_bytes = write, 1, write.size_bytes
        if isinstance(write.events, TableRows):
            self._tables.append((0, write.events))
            return True
        count = len(write.events)
        self.events += write.events
        self.keys += repeat(key, count)
        self.times_ns += repeat(time_ns, count)
        if key is None and count > 1:
            self.keyless_groups.append((0, count))
        return True

    def _has_room(self, held: int, count: int, size: int) -> bool:
        is_full = held + count > WRITER_BATCH_EVENTS or self.size_bytes + size > WRITER_BATCH_BYTES
        return not (held and is_full)

    @property
    def _is_complete(self) -> bool:
        """Whether the batch takes no further entry: notes, closes and large events end one."""
        is_alone = self.conditional is not None or self.large is not None
        return self.is_last or self.note is not None or is_alone

    @property
    def _is_large_alone(self) -> bool:
        """Whether the batch is a large event, and barriers that say nothing but that it ends."""
        return self.large is not None and not self.is_last and self.note is None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.count and self.note is None and self.time_note is None

    @property
    def only_leaves(self) -> bool:
        """Whether all that the batch says is that its writer leaves: no write depends on it."""
        note = self.time_note
        is_bare = not self.count and self.note is None
        return is_bare and note is not None and note.leaves and note.time_us is None

    @property
    def writes(self) -> int:
        """The number of writes, without barriers."""
        return self.entries - self._barrier_count

    def complete(self, positions: EventPositions | None) -> None:
        """Complete the futures; an empty batch has no positions."""
        if positions is not None:
            runs: dict[EventOutcomes, list[Run]] = {}
            for row, numbers, outcomes in self._singles:
                for shared, run in _runs(row, numbers, outcomes):
                    runs.setdefault(shared, []).append(run)
            for shared, found in runs.items():
                shared.add(DurableEvents(positions, found))
            for row, rows in self._tables:
                rows.outcome.add(positions, row, rows.count)
            write = self.conditional
            if write is not None and not self._tables:
                write.outcome.complete(positions, None if write.is_single else self.count)
        for future, row, count in self._groups:
            first = None
            if positions is not None and count:
                first = positions.pointer(row, cache=False)
            future._complete(DurableGroup(first, count))

    def refuse(self, error: ConditionFailed) -> None:
        """Complete the only write of the batch, a conditional one, with its refusal."""
        assert self.conditional is not None
        self.conditional.outcome.refuse(error)


def _runs(
    row: int, numbers: list[int], outcomes: list[EventOutcomes]
) -> Iterator[tuple[EventOutcomes, Run]]:
    """Cut single events into runs of consecutive numbers with the same outcomes object."""
    count = len(numbers)
    if outcomes.count(outcomes[0]) == count and numbers == [*range(numbers[0], numbers[0] + count)]:
        yield outcomes[0], (numbers[0], count, row)
        return
    start = 0
    for end in range(1, count + 1):
        if (
            end == count
            or numbers[end] != numbers[end - 1] + 1
            or outcomes[end] is not outcomes[start]
        ):
            yield outcomes[start], (numbers[start], end - start, row + start)
            start = end


def ranks(segments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return for each row the number of earlier rows with the same value."""
    order = np.argsort(segments, kind="stable")
    ordered = segments[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(ordered)])
    result = np.empty(len(segments), np.int64)
    result[order] = np.arange(len(segments)) - np.repeat(starts, lengths)
    return result
