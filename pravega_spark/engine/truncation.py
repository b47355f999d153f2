"""Truncation: one commit moves the head and lets go what is below it; files are deleted later.

The head never moves back. With the chunks leave the log's state the epochs before every segment
of the head, and the segments that no kept epoch names; each is a row of the stream's history
first. An epoch that routes an open transaction stays, and all after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pravega_spark.engine import cuts
from pravega_spark.engine.actions import Add, Body, Remove
from pravega_spark.engine.append import sealed_error
from pravega_spark.engine.crashpoints import crash_point
from pravega_spark.engine.cuts import Order
from pravega_spark.engine.files import place_of, rows_of
from pravega_spark.engine.history import HistoryRow, append_history
from pravega_spark.engine.records import (
    EPOCH_PREFIX,
    SEGMENT_PREFIX,
    STREAM_DOMAIN,
    StreamState,
    Truncation,
)
from pravega_spark.engine.snapshot import Snapshot
from pravega_spark.engine.stream import Stream, StreamView
from pravega_spark.errors import InvalidStreamCut
from pravega_spark.model import StreamCut, segment_epoch


@dataclass(frozen=True, slots=True)
class Truncated:
    """What a truncation did: the head it set and what it let go; zeros if the head was there."""

    version: int
    head: StreamCut
    events: int = 0
    size_bytes: int = 0
    """Of the events in chunks that went as a whole."""
    chunks: int = 0


def truncate(stream: Stream, cut: StreamCut | str, *, by: str = "user") -> Truncated:
    """Move the head to a cut and remove the chunks wholly below it, in one commit; idempotent.

    ``by`` tells history and readers who did it. Raises InvalidStreamCut for a cut that is none
    of this stream or behind the head anywhere, StreamSealed, NoSuchStream.
    """
    done: list[Truncated] = []
    known = stream.view()
    goal = _goal(known, cut)
    if goal == known.head:
        return Truncated(known.version, known.head)
    oldest = _oldest_epoch(known, goal)
    append_history(stream, list(_leaving(known, oldest)))
    crash_point("truncate.history")

    def decide(snapshot: Snapshot | None) -> Body | None:
        if snapshot is None:
            raise stream.absent()
        view = StreamView(snapshot)
        view.check_life(known.life)
        head = _goal(view, cut)
        if head == view.head:
            done[:] = [Truncated(view.version, view.head)]
            return None
        remembered = max(view.oldest_epoch, min(oldest, _oldest_epoch(view, head)))
        body, result = _body(stream, view, head, remembered, by)
        done[:] = [result]
        return body

    stream.log.commit(decide)
    return done[0]


def _goal(view: StreamView, cut: StreamCut | str) -> StreamCut:
    """Return the head that is asked for; raise unless it may be one."""
    goal = cuts.canonical(view, cuts.resolve(view, cut))
    if goal == view.head:
        return goal
    if view.record.state is not StreamState.ACTIVE:
        raise sealed_error(view)
    if cuts.compare(view, goal, view.head) is not Order.EQUAL_OR_AFTER:
        raise InvalidStreamCut(
            f"stream {view.stream} cannot be truncated at {goal}: that is behind the head, "
            f"{view.head}, at least in part, and the head never moves back."
        )
    return goal


def _oldest_epoch(view: StreamView, head: StreamCut) -> int:
    """Return the oldest epoch that a stream with this head still needs."""
    epochs = [segment_epoch(segment_id) for segment_id, _ in head]
    return min([*epochs, *(opened.epoch for opened in view.transactions.values())])


def _leaving(view: StreamView, oldest: int) -> Iterator[HistoryRow]:
    """Yield the epochs before the oldest one to be kept, and the segments that only they name."""
    kept = set(view.epoch(oldest).segment_ids)
    domains, gone = view.snapshot.domains, set()
    for number in range(view.oldest_epoch, oldest):
        name = f"{EPOCH_PREFIX}{number}"
        yield HistoryRow("epoch", view.version, name, domains[name])
        gone.update(set(view.epoch(number).segment_ids) - kept)
    for segment_id in sorted(gone):
        name = f"{SEGMENT_PREFIX}{segment_id}"
        yield HistoryRow("segment", view.version, name, domains[name])


def _body(
    stream: Stream, view: StreamView, head: StreamCut, oldest: int, by: str
) -> tuple[Body, Truncated]:
    now_ms, version = stream.runtime.now_ms(), view.version + 1
    record = replace(
        view.record,
        head=head.positions,
        oldest_epoch=oldest,
        truncation=Truncation(version, now_ms, by),
    )
    gone = _chunks(stream, view, head)
    events = cuts.distance_events(view, view.head, head)
    size_bytes = sum(int((add.tags or {})["bytes"]) for add in gone)
    body = Body(
        "TRUNCATE STREAM",
        {"head": str(head), "by": by},
        {"numTruncatedEvents": events, "numRemovedFiles": len(gone)},
        {
            STREAM_DOMAIN: record.encode(),
            **dict.fromkeys(row.name for row in _leaving(view, oldest)),
        },
        removes=[Remove.of(add, now_ms) for add in gone],
    )
    return body, Truncated(version, head, events, size_bytes, len(gone))


def _chunks(stream: Stream, view: StreamView, head: StreamCut) -> list[Add]:
    """Return the chunks that lie below the new head as a whole."""
    gone: list[Add] = []
    with stream.log.files() as files:
        for rng in cuts.ranges_between(view, view.head, head):
            found = files.find(rng.segment_id, rng.start, rng.end)
            gone += [add for add in found if place_of(add)[1] + rows_of(add) <= rng.end]
    return gone
