"""The events of one call, and those of one transaction in a stream, are seen all or none."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.streams import Read, StreamHistory, Tried, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a read up to the tail shows a part, and no truncation took the rest."""
    for stream in streams_of(calls).values():
        units: dict[str | int, list[Tried]] = {}
        for tried in stream.tried.values():
            units.setdefault(tried.transaction or tried.batch, []).append(tried)
        for read in stream.reads:
            if read.to_the_tail:
                _check(stream, read, units)


def _check(stream: StreamHistory, read: Read, units: dict[str | int, list[Tried]]) -> None:
    present = {seen.event for seen in read.seen}
    places = stream.places()
    for unit, events in units.items():
        missing = [tried.event for tried in events if tried.event not in present]
        if not missing or len(missing) == len(events):
            continue
        for event in missing:
            place = places.get(event)
            if place is None and not stream.is_behind(read.start, stream.tried[event]):
                continue  # nobody ever saw it, and the head has moved: it was truncated
            if place is None or not stream.layout.before(place, read.start):
                raise Violation(
                    "all or none", f"{read.call} has a part of {unit!r} and not {event!r}"
                )
