"""Conditional appends: what must hold on the version that a commit builds on.

A condition is decided by whoever commits the batch, on the snapshot of that commit and on the
batches before it in the same commit. So nothing can come between the decision and the events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from pravega_spark.arguments import check_whole, is_whole, shown
from pravega_spark.engine.layout.epochs import Layout, few
from pravega_spark.engine.layout.located_cut import locate, tail
from pravega_spark.engine.stream.fencing import check_token
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    ConditionFailed,
    InvalidInput,
    InvalidStreamCut,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.model import EventPointer, StreamCut, segment_text

ExpectedPosition = StreamCut | EventPointer | int
"""Where the stream, a segment, or the writer must be: its position just before the write."""
ANY_OFFSET = -1
"""The offset of a pointer that only says which segment takes the event, as long as it is open."""


@dataclass(frozen=True, slots=True)
class AppendCondition:
    """What a batch needs; a batch with a condition is committed by its owner alone."""

    expected: StreamCut | EventPointer | None = None
    fencing_token: str | None = None
    begins_state: bool = False
    """Whether the batch is a state of a state synchronizer, which its commit says."""

    def check(self, view: StreamView, draft: Layout | None = None) -> None:
        """Raise ConditionFailed or FencingTokenMismatch unless the next commit may hold the batch.

        ``draft`` has the earlier batches of that commit, by default none.
        """
        if self.fencing_token is not None:
            check_token(view, self.fencing_token)
        layout = cast("Layout", view) if draft is None else draft
        if isinstance(self.expected, EventPointer):
            _check_segment(layout, self.expected)
        elif self.expected is not None:
            _check_tail(layout, self.expected)


def check_expected(expected: object, stream: str, life: int) -> ExpectedPosition:
    """Return what a caller expects; raise InvalidInput or StaleIdentity if it can never hold."""
    if isinstance(expected, int) and is_whole(expected) and expected >= 0:
        return expected
    if not isinstance(expected, (StreamCut, EventPointer)):
        raise InvalidInput(
            "expected must be a StreamCut (the tail of the stream), an EventPointer (where the "
            "first event of the write shall be) or a whole number (the writer's "
            f"last_event_number), got {shown(expected)}."
        )
    if isinstance(expected, EventPointer):
        check_whole("the offset of expected", expected.offset)
    if expected.stream != stream:
        raise InvalidStreamCut(
            f"expected={expected} is no position of stream {stream}: give one of that stream, such "
            "as its tail."
        )
    if expected.life != life:
        raise StaleIdentity(
            f"expected={expected} is a position in life {expected.life} of stream {stream}, and "
            f"this writer writes to life {life}; read the stream again.",
            name=stream,
            life=expected.life,
            current_life=life,
        )
    return expected


def check_number(stream: str, expected: int, actual: int) -> None:
    """Raise ConditionFailed unless the writer's last event number is the expected one."""
    if expected != actual:
        raise ConditionFailed(
            f"stream {stream}: the writer's last event number is {actual}, not {expected}; nothing "
            "was written. Decide again with that number.",
            stream=stream,
            expected=expected,
            actual=actual,
        )


def _check_segment(layout: Layout, expected: EventPointer) -> None:
    """Raise ConditionFailed unless the next event of the pointer's segment gets the pointer."""
    segment_id = expected.segment_id
    if not layout.has_segment(segment_id):
        raise _elsewhere(layout, expected, "is not in the stream, or was truncated")
    record = layout.segment(segment_id)
    if record.sealed_epoch is not None:
        lineage = layout.lineage
        after = [segment_text(s.segment_id) for s in lineage.successors(lineage.find(segment_id))]
        raise _elsewhere(layout, expected, f"was sealed by a scale; {few(after)} followed it")
    if expected.offset not in (record.next_offset, ANY_OFFSET):
        actual = EventPointer(expected.stream, expected.life, segment_id, record.next_offset)
        raise ConditionFailed(
            f"the next event of segment {expected.segment} is {actual}, not {expected}; nothing "
            "was written. Read on from there, and decide again.",
            stream=expected.stream,
            expected=expected,
            actual=actual,
        )


def other_segment(layout: Layout, expected: EventPointer, key: str | None) -> ConditionFailed:
    """Return the error of a write whose routing key belongs to another segment."""
    return _elsewhere(layout, expected, f"does not take the routing key {shown(key)}")


def _check_tail(layout: Layout, expected: StreamCut) -> None:
    """Raise ConditionFailed if there is an event after the cut; a scale is none."""
    actual, reason = tail(layout), "there are events after it"
    if actual == expected:
        return
    try:
        if not locate(layout, expected).events_to(locate(layout, actual)):
            return
    except (InvalidStreamCut, TruncatedData) as error:
        reason = str(error).rstrip(".")
    raise ConditionFailed(
        f"the tail of stream {layout.stream} is {actual}, not {expected}: {reason}. Nothing was "
        "written. Read up to the tail, and decide again.",
        stream=layout.stream,
        expected=expected,
        actual=actual,
    )


def _elsewhere(layout: Layout, expected: EventPointer, why: str) -> ConditionFailed:
    actual = tail(layout)
    return ConditionFailed(
        f"stream {layout.stream}: segment {expected.segment} of expected={expected} {why}. Nothing "
        f"was written. Read up to the tail, {actual}, and decide again.",
        stream=layout.stream,
        expected=expected,
        actual=actual,
    )
