"""Final outcomes of writes: what a future reports once its write is durable or has failed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Any, Protocol

from pravega_spark.errors import PravegaSparkError
from pravega_spark.model import EventPointer


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


class FailedWrites:
    """All writes that one failure of the writer lost."""

    __slots__ = ("_error", "is_reported")

    def __init__(self, error: PravegaSparkError) -> None:
        """Keep the cause."""
        self._error = error
        self.is_reported = False
        """Whether a future or a call has reported the failure to the caller."""

    def failure(self) -> PravegaSparkError | None:
        """Return the cause, which from now on counts as reported."""
        self.is_reported = True
        return self._error

    def result(self, number: int) -> Any:
        """Raise the cause."""
        raise self._error
