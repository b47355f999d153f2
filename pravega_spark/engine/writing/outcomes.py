"""Final outcomes of writes: what a future reports once its write is durable or has failed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import itemgetter
from typing import Any, Protocol, overload

from pravega_spark.errors import PravegaSparkError
from pravega_spark.values.segments import EventPointer


class EventPositions(Protocol):
    """Finds the events of a durable batch in the stream."""

    def pointer(self, row: int, *, cache: bool = True) -> EventPointer:
        """Return the pointer of one event; without ``cache`` only this row is computed."""
        ...


Run = tuple[int, int, int]
"""Consecutive write numbers of a batch: the first number, the count, the row of the first."""


class DurableEvents:
    """The single-event writes that one batch made durable."""

    __slots__ = ("_positions", "_runs")

    def __init__(self, positions: EventPositions, runs: Iterable[Run]) -> None:
        """Map write numbers to the rows of the batch."""
        self._positions = positions
        self._runs = tuple(sorted(runs))

    def _row(self, number: int) -> int:
        """Return the row of a write, or -1 if it is in another batch."""
        at = bisect_right(self._runs, number, key=itemgetter(0)) - 1
        first, count, row = self._runs[at]
        return row + number - first if 0 <= number - first < count else -1

    def has(self, number: int) -> bool:
        """Return True if this batch holds the write."""
        return self._row(number) >= 0

    def failure(self) -> PravegaSparkError | None:
        """Return None: the writes are durable."""
        return None

    def result(self, number: int) -> Any:
        """Return the pointer of the event."""
        return self._positions.pointer(self._row(number))


class DurableGroup:
    """A durable atomic write, or a barrier that the writer has reached (no events)."""

    __slots__ = ("_count", "_first")

    def __init__(self, first: EventPointer | None, count: int) -> None:
        """Take the pointer of the first event; the others follow it in the same segment."""
        self._first = first
        self._count = count

    def find(self, number: int) -> DurableGroup:
        """Return itself: the outcome is final."""
        return self

    def failure(self) -> PravegaSparkError | None:
        """Return None: the write is durable."""
        return None

    def result(self, number: int) -> tuple[EventPointer, ...]:
        """Return the pointers of the events."""
        first = self._first
        if first is None:
            return ()
        return tuple(replace(first, offset=first.offset + i) for i in range(self._count))


class EventPointers(Sequence[EventPointer]):
    """The pointers of a table's rows, in order; each is computed when it is asked for."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Iterable[tuple[EventPositions, int, int]]) -> None:
        """Take the positions of each batch, the row of its first event in it, and the count."""
        self._parts = tuple(parts)
        self._ends = tuple(accumulate(count for _, _, count in self._parts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> EventPointer: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[EventPointer, ...]: ...
    def __getitem__(self, index: int | slice) -> EventPointer | tuple[EventPointer, ...]:
        """Return the pointer of a row, or a tuple of those of several rows."""
        rows = range(len(self))[index]
        if isinstance(rows, range):
            return tuple(map(self._pointer, rows))
        return self._pointer(rows)

    def _pointer(self, row: int) -> EventPointer:
        at = bisect_right(self._ends, row)
        positions, first, count = self._parts[at]
        return positions.pointer(first + row - (self._ends[at] - count))

    def __repr__(self) -> str:
        return f"<EventPointers of {len(self)} events>"


class DurableTable:
    """The rows of a table that are durable so far."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[EventPositions, int, int]] = []

    def add(self, positions: EventPositions, row: int, count: int) -> None:
        """Add the next ``count`` rows; ``row`` is the first one's in its batch."""
        self._parts.append((positions, row, count))

    def failure(self) -> PravegaSparkError | None:
        """Return None: the rows are durable."""
        return None

    def result(self, number: int) -> EventPointers:
        """Return the pointers of the rows."""
        return EventPointers(self._parts)


class FailedWrites:
    """All writes that one failure of the writer lost."""

    __slots__ = ("_error", "reports")

    def __init__(self, error: PravegaSparkError) -> None:
        self._error = error
        self.reports = 0
        """How often a future or a call has reported the failure to the caller."""

    def failure(self) -> PravegaSparkError | None:
        """Return the cause, which from now on counts as reported."""
        self.reports += 1
        return self._error

    def result(self, number: int) -> Any:
        """Raise the cause."""
        raise self._error
