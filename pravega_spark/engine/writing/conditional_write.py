"""One conditional write of a writer: the events, what it expects, and the outcome of its own.

A refusal is the outcome of this write alone: the writer goes on, and later writes follow.
"""

from __future__ import annotations

from pravega_spark.engine.chunks.event_format import SmallEvent
from pravega_spark.engine.writing.append_condition import ExpectedPosition
from pravega_spark.engine.writing.pending_writes import PendingWrites
from pravega_spark.engine.writing.table_rows import EventTable, TableRows
from pravega_spark.engine.writing.write_outcomes import (
    DurableEvents,
    DurableGroup,
    DurableTable,
    EventPositions,
    FailedWrites,
)
from pravega_spark.errors import ConditionFailed, EventTooLarge
from pravega_spark.limits import WRITER_BATCH_BYTES

_Final = DurableEvents | DurableGroup | DurableTable | FailedWrites


class ConditionalOutcome:
    """The outcome of one conditional write, to which its future refers."""

    __slots__ = ("_final", "pending")

    def __init__(self, pending: PendingWrites) -> None:
        """Begin without an outcome."""
        self.pending = pending
        self._final: _Final | None = None

    def find(self, number: int) -> _Final | None:
        """Return the outcome, or None while it is open."""
        failed = self.pending.failed  # read first: an outcome is recorded before a failure
        return self._final or failed

    def add(self, positions: EventPositions, row: int, count: int) -> None:
        """Record the rows of a table as durable."""
        durable = DurableTable()
        durable.add(positions, row, count)
        self._final = durable

    def complete(self, positions: EventPositions, count: int | None) -> None:
        """Record a list of events as durable, or (without a count) a single event."""
        if count is None:
            self._final = DurableEvents(positions, [(0, 1, 0)])
        else:
            self._final = DurableGroup(positions.pointer(0, cache=False), count)

    def refuse(self, error: ConditionFailed) -> None:
        """Record that nothing was written."""
        self._final = FailedWrites(error)


class ConditionalWrite:
    """Events that are committed only if the stream, a segment or the writer is where expected."""

    __slots__ = ("begins_state", "events", "expected", "is_single", "outcome", "size_bytes")

    def __init__(
        self,
        expected: ExpectedPosition,
        events: list[SmallEvent] | TableRows,
        size_bytes: int,
        outcome: ConditionalOutcome,
        *,
        is_single: bool = False,
        begins_state: bool = False,
    ) -> None:
        """Take the events; ``size_bytes`` is counted as in the writer's buffer."""
        self.expected = expected
        self.events = events
        self.size_bytes = size_bytes
        self.outcome = outcome
        self.is_single = is_single
        self.begins_state = begins_state


def only_part(name: str, rows: EventTable, time_ns: int, outcome: ConditionalOutcome) -> TableRows:
    """Return all rows of a table, which one commit must take; raise EventTooLarge otherwise."""
    parts = [*rows.parts(WRITER_BATCH_BYTES, time_ns, outcome)]
    if len(parts) > 1:
        raise EventTooLarge(
            f"a conditional write of {len(rows)} rows to stream {name}: its commit takes "
            f"{parts[0].count} of these rows; write fewer, or use a transaction."
        )
    return parts[0]
