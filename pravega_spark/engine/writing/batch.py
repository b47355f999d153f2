"""What a writer has queued, and the batch of the first of it that one commit takes.

The queue is one list with five fields in a row for each entry, and nobody but ``Entries`` indexes
it. A single event lies in it field by field: a write takes about a microsecond, and with a tuple
for each event a fill and split of the queue would cost at least twice as much, with an object three
to six times (CPython 3.11). All other writes cost more than an object anyway: each is one, with
padding behind it. What leaves the list is typed: runs of single events, by column, and those
objects.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pravega_spark.engine.chunks.format import RAW, EventFormat, SmallEvent, TypedEvent
from pravega_spark.engine.chunks.tiny import LoneEvent
from pravega_spark.engine.stream.watermarks import TimeNote
from pravega_spark.engine.writing.encode import TableRows
from pravega_spark.engine.writing.futures import (
    ConditionalWrite,
    EventOutcomes,
    WriteFuture,
    complete,
)
from pravega_spark.engine.writing.outcomes import DurableEvents, DurableGroup, EventPositions, Run
from pravega_spark.engine.writing.stage import StoredEvent
from pravega_spark.errors import ConditionFailed
from pravega_spark.values.limits import WRITER_BATCH_BYTES, WRITER_BATCH_EVENTS, WRITER_EVENT_BYTES

_FIELDS = 5
_SINGLES = (bytes, TypedEvent)
"""The types of single events: the writer of a stream has one of them."""
_SINGLE_KINDS = ({bytes}, {TypedEvent})


class AtomicWrite(NamedTuple):
    """Events that are committed together, in one segment."""

    events: list[SmallEvent]
    key: str | None
    time_ns: int
    future: WriteFuture[Any]


class LargeEvent(NamedTuple):
    """An event whose payload is stored already; a separate batch."""

    stored: StoredEvent
    number: int
    outcomes: EventOutcomes
    """What the future refers to, by that number."""


class Barrier(NamedTuple):
    """No write: completed once all earlier ones are, with what the writer notes there."""

    future: WriteFuture[Any]
    note: str | TimeNote | None = None
    closes: bool = False
    """Whether the writer ends after it."""


Write = AtomicWrite | TableRows | LargeEvent | ConditionalWrite | Barrier
"""Whatever is queued that is not a single event."""

Entry = (
    tuple[SmallEvent, str | None, int, int, EventOutcomes] | tuple[Write, None, None, None, None]
)
"""The event, its routing key, its time in ns, its number, and the outcomes that its future refers
to by that number; or another write."""


def entry_of(write: Write) -> Entry:
    """Return the entry of a write that is not a single event."""
    return write, None, None, None, None


class Singles(NamedTuple):
    """Adjacent single events, by column."""

    events: list[SmallEvent]
    keys: list[str | None]
    times_ns: list[int]
    numbers: list[int]
    outcomes: list[EventOutcomes]

    def first(self, count: int) -> Singles:
        """Return the first ones."""
        return Singles(
            self.events[:count],
            self.keys[:count],
            self.times_ns[:count],
            self.numbers[:count],
            self.outcomes[:count],
        )


class Entries:
    """The entries of a writer's queue, which any thread extends and one takes from."""

    __slots__ = ("_items", "extend")

    def __init__(self) -> None:
        self._items: list[Any] = []
        self.extend: Callable[[Entry], None] = self._items.extend
        """Add an entry in one step, whatever interrupts it: the list's own method, and no call of
        ours around it."""

    def __len__(self) -> int:
        return len(self._items) // _FIELDS

    @property
    def writes(self) -> int:
        """The number of entries without barriers."""
        return len(self) - sum(type(first) is Barrier for first in self._items[::_FIELDS])

    def parts(self, most: int) -> Iterator[Singles | Write]:
        """Yield the first entries, as many as there are now and at most ``most``, in order."""
        end = min(len(self._items), most * _FIELDS)
        # Five slices with a step are the split: they run in C, for any number of events.
        columns = [self._items[field:end:_FIELDS] for field in range(_FIELDS)]
        firsts = columns[0]
        if set(map(type, firsts)) in _SINGLE_KINDS:
            yield Singles(*columns)
            return
        at = 0
        for other in [i for i, first in enumerate(firsts) if type(first) not in _SINGLES]:
            if other > at:
                yield Singles(*(column[at:other] for column in columns))
            yield firsts[other]
            at = other + 1
        if at < len(firsts):
            yield Singles(*(column[at:] for column in columns))

    def drop(self, count: int) -> None:
        """Forget the first entries, which a batch has taken."""
        del self._items[: count * _FIELDS]


class WriteBatch:
    """Events of one commit; fixed once it is sent to the log, so that a retry is the same batch."""

    __slots__ = (
        "_barrier_count", "_groups", "_singles", "_tables", "conditional", "entries", "events",
        "is_last", "keyless_groups", "keys", "large", "note", "size_bytes", "taken_at", "time_note",
        "times_ns",
    )  # fmt: skip

    def __init__(self) -> None:
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
    def of(cls, entries: Entries) -> WriteBatch:
        """Return a batch of the first of these entries; its ``entries`` is how many it took."""
        batch = cls()
        for part in entries.parts(WRITER_BATCH_EVENTS):
            is_taken = batch._add_singles(part) if isinstance(part, Singles) else batch._add(part)
            if not is_taken:
                break
        return batch

    def _add_singles(self, singles: Singles) -> bool:
        """Append as many of these single events as fit; return whether all do."""
        if self._is_complete:
            return False
        given = len(singles.events)
        size = sum(map(len, singles.events)) + given * WRITER_EVENT_BYTES
        held = self.count
        room = WRITER_BATCH_EVENTS - held
        if given > room or self.size_bytes + size > WRITER_BATCH_BYTES:
            sizes = [*accumulate(len(event) + WRITER_EVENT_BYTES for event in singles.events)]
            room = min(room, bisect_right(sizes, WRITER_BATCH_BYTES - self.size_bytes))
            room = max(room, 0 if held else 1)
            if not room:
                return False
            singles, size = singles.first(room), sizes[room - 1]
        self._singles.append((held, singles.numbers, singles.outcomes))
        self.events += singles.events
        self.keys += singles.keys
        self.times_ns += singles.times_ns
        self.size_bytes += size
        self.entries += len(singles.events)
        return len(singles.events) == given

    def _add(self, write: Write) -> bool:
        """Append what is not a single event; return False if it needs a later batch."""
        if isinstance(write, Barrier):
            return self._add_barrier(write)
        if self._is_complete:
            return False
        if isinstance(write, TableRows):
            return self._add_rows(write)
        if isinstance(write, AtomicWrite):
            return self._add_atomic(write)
        if self.entries:  # the two kinds that are left are alone in their batches
            return False
        if isinstance(write, ConditionalWrite):
            self._add_conditional(write)
        else:
            self._add_large(write)
        return True

    def _add_barrier(self, barrier: Barrier) -> bool:
        # A flush that follows a large event is of its commit, and so are a note and a close.
        if self._is_complete and not self._is_large_alone:
            return False
        if isinstance(barrier.note, TimeNote):
            self.time_note = barrier.note.after(self.time_note)
        else:
            self.note = barrier.note
        self.is_last = barrier.closes
        self._barrier_count += 1
        self._groups.append((barrier.future, self.count, 0))
        self.entries += 1
        return True

    def _add_atomic(self, write: AtomicWrite) -> bool:
        first, count = self.count, len(write.events)
        size = sum(map(len, write.events)) + count * WRITER_EVENT_BYTES
        if not self._has_room(first, count, size):
            return False
        self._add_events(write.events, write.key, write.time_ns)
        self.size_bytes += size
        self._groups.append((write.future, first, count))
        self.entries += 1
        return True

    def _add_events(self, events: list[SmallEvent], key: str | None, time_ns: int) -> None:
        """Append events that need one segment."""
        first, count = self.count, len(events)
        self.events += events
        self.keys += repeat(key, count)
        self.times_ns += repeat(time_ns, count)
        if key is None and count > 1:
            self.keyless_groups.append((first, count))

    def _add_rows(self, rows: TableRows) -> bool:
        if rows.is_taken:  # an interrupted call queued them twice
            self.entries += 1
            return True
        first = self.count
        if not self._has_room(first, rows.count, rows.size_bytes):
            return False
        rows.is_taken = True
        self._tables.append((first, rows))
        self.size_bytes += rows.size_bytes
        self.entries += 1
        return True

    def _add_conditional(self, write: ConditionalWrite) -> None:
        """Take the write as the only one: what is refused must not take others with it."""
        self.conditional, self.entries, self.size_bytes = write, 1, write.size_bytes
        if isinstance(write.events, TableRows):
            self._tables.append((0, write.events))
        else:
            self._add_events(write.events, write.key, write.time_ns)

    def _add_large(self, write: LargeEvent) -> None:
        """Take a large event as the only one."""
        self.large, self.entries, self.size_bytes = write.stored, 1, WRITER_EVENT_BYTES
        self._singles.append((0, [write.number], [write.outcomes]))

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
            complete(future, DurableGroup(first, count))

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
