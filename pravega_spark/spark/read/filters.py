"""Conditions on the columns of events, by which a read skips segments, chunks and rows.

The log records the segment, the offsets and the times of a chunk, and a segment holds the routing
keys of its range alone. So most chunks without a wanted event are never opened. In those that are,
rows are compared one by one: a filter returns exactly the events that satisfy it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import mask, numbers
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.chunks.routing import coded_keys, position
from pravega_spark.values.segments import KeyRange, SegmentRange

KEY: Final = "routing_key"
_TESTS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": lambda value, given: value == given[0],
    "<": lambda value, given: value < given[0],
    "<=": lambda value, given: value <= given[0],
    ">": lambda value, given: value > given[0],
    ">=": lambda value, given: value >= given[0],
    "in": lambda value, given: value in given,
    "starts with": lambda value, given: value.startswith(given[0]),
    "ends with": lambda value, given: value.endswith(given[0]),
    "contains": lambda value, given: given[0] in value,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A column compared with values, as in SQL: a null satisfies only ``is null``.

    ``column`` is ``offset``, ``timestamp`` (in us since 1970) or ``routing_key``; or, with ``=``
    before its name, one that has the same value in all events of a segment. A condition that is
    ``negated`` is not satisfied by a null either, except ``is null`` itself, which is for keys.
    """

    column: str
    operator: str
    values: tuple[Any, ...] | frozenset[Any] = ()
    negated: bool = False

    def holds(self, value: Any) -> bool:
        """Return whether a value satisfies the condition."""
        if self.operator == "is null":
            return (value is None) != self.negated
        return value is not None and bool(_TESTS[self.operator](value, self.values)) != self.negated

    def may_hold(self, low: int, high: int) -> bool:
        """Return False if no number from ``low`` to ``high``, both included, satisfies it."""
        if low == high:
            return self.holds(low)
        if self.operator in ("<", "<="):
            return self.holds(high if self.negated else low)
        if self.operator in (">", ">="):
            return self.holds(low if self.negated else high)
        return self.negated or any(low <= value <= high for value in self.values)

    def admits_keys(self, key_range: KeyRange) -> bool:
        """Return False if no routing key of a range satisfies the condition."""
        if self.negated or self.operator not in ("=", "in"):
            return True
        return any(key_range.low <= position(key) < key_range.high for key in self.values)

    def rows(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return which rows of a batch satisfy the condition."""
        column = batch.column(self.column)
        if self.column == KEY:
            codes, keys = coded_keys(column)
            found = [self.holds(key.decode()) for key in keys]
            return np.array([*found, self.holds(None)], np.bool_)[codes]
        values = numbers(column.view(pa.int64()))
        if self.operator == "in":
            return np.isin(values, np.array([*self.values], np.int64), invert=self.negated)
        chosen: NDArray[np.bool_] = _TESTS[self.operator](values, self.values)
        return ~chosen if self.negated else chosen


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Conditions that every event of a read satisfies; without any, all events do."""

    conditions: tuple[Condition, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a chunk that are compared."""
        return tuple(dict.fromkeys(c.column for c in self.conditions if c.column[0] != "="))

    def and_also(self, conditions: Iterable[Condition]) -> EventFilter:
        """Return the filter with more conditions."""
        return EventFilter((*self.conditions, *conditions))

    def within(self, constants: Mapping[str, Any], key_range: KeyRange) -> EventFilter | None:
        """Return what remains to be compared in the events of a segment; None if none fits."""
        rest = []
        for condition in self.conditions:
            if condition.column in constants:
                if not condition.holds(constants[condition.column]):
                    return None
                continue
            if condition.column == KEY and not condition.admits_keys(key_range):
                return None
            rest.append(condition)
        return EventFilter(tuple(rest))

    def chunks(self, rng: SegmentRange, refs: Iterable[ChunkRef]) -> list[ChunkRef]:
        """Return those chunks of a range that may hold a wanted event, by what the log records."""
        return [ref for ref in refs if all(self._bounds(rng, ref))]

    def _bounds(self, rng: SegmentRange, ref: ChunkRef) -> Iterator[bool]:
        for condition in self.conditions:
            if condition.column == "offset":
                low, high = max(rng.start, ref.base_offset), min(rng.end, ref.end) - 1
                yield condition.may_hold(low, high)
            elif condition.column == "timestamp":
                yield condition.may_hold(ref.min_timestamp_us, ref.max_timestamp_us)

    def select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted rows of a batch that has all of :attr:`columns`."""
        chosen = np.ones(batch.num_rows, np.bool_)
        for condition in self.conditions:
            chosen &= condition.rows(batch)
        return batch if chosen.all() else batch.filter(mask(chosen))


def is_ambiguous(value: Any) -> bool:
    """Return whether a date or time of Spark's filter may be that of another day.

    Spark passes them through Java's calendar, which has no 5 to 14 October 1582 and takes these for
    the 15th. The days beside them are here for time zones, and since nobody misses them.
    """
    return isinstance(value, date) and (1582, 10, 3) < value.timetuple()[:3] < (1582, 10, 26)


def of_keys(routing_keys: Iterable[str]) -> EventFilter:
    """Return the filter of the events with these routing keys; of all events without one."""
    keys = frozenset(routing_keys)
    return EventFilter((Condition(KEY, "in", keys),) if keys else ())
