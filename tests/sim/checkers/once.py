"""An event has one place for ever, a place has one event, and the offsets of a segment no gap.

A key has one segment at a time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import combinations

from tests.sim.checkers.layouts import ENDLESS
from tests.sim.checkers.streams import Position, StreamHistory, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if an event is there twice, or an offset of a segment is missing."""
    for stream in streams_of(calls).values():
        _one_place(stream)
        _one_segment(stream)
        _no_gap(stream)
        _as_many_before(stream)


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


def _as_many_before(stream: StreamHistory) -> None:
    """Before an offset that is answered there are as many events: so many were tried by then."""
    begins = sorted(tried.began for tried in stream.tried.values() if tried.began is not None)
    for event, tried in stream.tried.items():
        for call, (segment, offset) in tried.positions():
            most = bisect_left(begins, call.ended or 0)
            if offset >= most:
                raise Violation(
                    "offsets have no gap",
                    f"{event!r} is {offset} in segment {segment}, of {most} events: {call}",
                )


def _one_segment(stream: StreamHistory) -> None:
    """The events of a key are in segments that come after one another, those of a call in one.

    Without a record of the layout only the second is known.
    """
    lanes: dict[str, dict[str, str]] = {}
    units: dict[tuple[int, str], tuple[str, str]] = {}
    for event, (segment, _) in sorted(stream.places().items()):
        tried = stream.tried.get(event)
        if tried is None or tried.key is None:
            continue
        first, other = units.setdefault((tried.batch, tried.key), (event, segment))
        if other != segment:
            raise Violation(
                "a key has one segment at a time",
                f"{first!r} of key {tried.key!r} is in segment {other}, {event!r} in {segment}",
            )
        lanes.setdefault(tried.key, {}).setdefault(segment, event)
    for key, segments in lanes.items():
        known = [one for one in segments if one in stream.layout.segments]
        for one, other in combinations(known, 2):
            ancestors = stream.layout.ancestors
            if one not in ancestors(other) and other not in ancestors(one):
                raise Violation(
                    "a key has one segment at a time",
                    f"{segments[one]!r} of key {key!r} is in segment {one}, "
                    f"{segments[other]!r} in {other}",
                )
