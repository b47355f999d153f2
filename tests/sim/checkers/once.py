"""An event has one place for ever, a place has one event, and the offsets of a segment no gap."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.layouts import ENDLESS
from tests.sim.checkers.streams import Position, StreamHistory, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if an event is there twice, or an offset of a segment is missing."""
    for stream in streams_of(calls).values():
        _one_place(stream)
        _no_gap(stream)


def _one_place(stream: StreamHistory) -> None:
    places: dict[str, tuple[Position, Recorded]] = {}
    events: dict[Position, tuple[str, Recorded]] = {}

    def note(event: str, position: Position, call: Recorded) -> None:
        place, first = places.setdefault(event, (position, call))
        if place != position:
            raise Violation(
                "exists exactly once",
                f"{event!r} is at {place} by {first}, at {position} by {call}",
            )
        other, first = events.setdefault(position, (event, call))
        if other != event:
            raise Violation(
                "a place has one event", f"{position} has {other!r} by {first}, {event!r} by {call}"
            )

    for event, tried in stream.tried.items():
        for call, position in tried.positions():
            note(event, position, call)
    for read in stream.reads:
        twice: set[str] = set()
        for seen in read.seen:
            note(seen.event, seen.position, seen.call)
            if seen.event in twice:
                raise Violation("exists exactly once", f"{seen.event!r} twice in {read.call}")
            twice.add(seen.event)
    for seen in stream.handed:
        note(seen.event, seen.position, seen.call)


def _no_gap(stream: StreamHistory) -> None:
    for read in stream.reads:
        offsets: dict[str, list[int]] = {}
        for seen in read.seen:
            offsets.setdefault(seen.position[0], []).append(seen.position[1])
        for segment, found in offsets.items():
            start = read.start.get(segment, 0)
            if found != list(range(start, start + len(found))):
                raise Violation(
                    "offsets have no gap", f"segment {segment} from {start}: {found} in {read.call}"
                )
        for segment, end in read.end.items():
            if end == ENDLESS:
                continue
            count = len(offsets.get(segment, ()))
            if read.start.get(segment, 0) + count != max(end, read.start.get(segment, 0)):
                raise Violation(
                    "offsets have no gap",
                    f"segment {segment} has {count} of the events up to {end} in {read.call}",
                )
