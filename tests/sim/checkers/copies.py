"""A backup that is complete has what was acknowledged before it began, as one version has it, and
no open transaction."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.streams import Cut, Position, StreamHistory, Tried, placed, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a copy lacks events, has others, or a part of a call or transaction."""
    streams = streams_of(calls)
    for read in of(calls, "read_copy"):
        stream = streams.get(read.arguments["stream"])
        if read.ok and read.value.get("open"):
            raise Violation("no transaction of the root is open in a copy", f"{read}")
        if read.ok and stream is None and read.value["events"]:
            raise Violation("a copy has nothing from nowhere", f"nobody wrote to it: {read}")
        if read.ok and stream is not None:
            _check(calls, stream, read)


def _check(calls: Sequence[Recorded], stream: StreamHistory, read: Recorded) -> None:
    backups = [
        call
        for call in of(calls, "backup")
        if call.arguments["copy"] == read.arguments["copy"] and call.may_have_happened
    ]
    done = [call for call in backups if call.ok and call.before(read)]
    # A backup that was killed may be finished by a late request of its own.
    ends = [backup.ended for backup in backups]
    latest = read.ended if None in ends else max((end for end in ends if end), default=0)
    places, found = stream.places(), {}
    for segment, offset, key, event in read.value["events"]:
        position = placed([segment, offset])
        tried = stream.tried.get(event)
        if tried is None:
            raise Violation("a copy has nothing from nowhere", f"{event!r} in {read}")
        assert latest is not None
        if tried.began is None or tried.began > latest:
            raise Violation("a copy has nothing from nowhere", f"{event!r} in {read}")
        if event in found or tried.key != key or places.get(event, position) != position:
            raise Violation(
                "a copy has each event where it was", f"{event!r} at {position}: {read}"
            )
        found[event] = position
    for event, tried in stream.tried.items():
        since, place = tried.acknowledged(), places.get(event)
        owed = since is not None and any(since < backup.began for backup in done)
        if owed and event not in found and _is_behind(stream, tried, place, read):
            raise Violation("a copy lacks nothing that was acknowledged", f"{event!r}: {read}")
    _whole_batches(stream, found, read)
    _in_order(stream, read, _heads(calls, stream))


def _heads(calls: Sequence[Recorded], stream: StreamHistory) -> list[Cut]:
    """Return all heads that the stream may have had, none if they are not known."""
    open_calls = [
        call
        for call in of(calls, "truncate", "retain")
        if call.arguments["stream"] == stream.name and call.may_have_happened and not call.ok
    ]
    if any(call.operation == "retain" for call in open_calls):
        return []
    return [*stream.heads_until(), *(call.arguments["cut"] for call in open_calls)]


def _is_behind(stream: StreamHistory, tried: Tried, place: Position | None, read: Recorded) -> bool:
    """Whether an event lies behind the head of a copy."""
    start = read.value["from"]
    if place is None:
        return stream.is_behind(start, tried)
    return not stream.layout.before(place, start)


def _in_order(stream: StreamHistory, read: Recorded, heads: Sequence[Cut]) -> None:
    """It has each segment without a gap from its head on, and after those before it; its head is
    none that the stream never had."""
    lost = stream.layout.beyond(read.value["from"], heads, stream.places().values())
    if lost is not None and heads:
        raise Violation("a copy begins where its stream did", f"{lost} is before {read}")
    begun: list[str] = []
    due: dict[str, int] = {str(segment): at for segment, at in read.value["from"].items()}
    for segment, offset, *_ in read.value["events"]:
        name = str(segment)
        if offset != due.get(name, 0):
            raise Violation("a copy has its events in order", f"{segment}, {offset}: {read}")
        due[name] = offset + 1
        if any(name in stream.layout.ancestors(other) for other in begun):
            raise Violation("a copy has its events in order", f"segment {segment} late: {read}")
        begun += [] if name in begun else [name]


def _whole_batches(
    stream: StreamHistory, found: dict[str, tuple[str, int]], read: Recorded
) -> None:
    batches: dict[int, list[str]] = {}
    for event, tried in stream.tried.items():
        batches.setdefault(tried.batch, []).append(event)
    places = stream.places()
    for batch in batches.values():
        there = [event for event in batch if event in found]
        gone = [event for event in batch if event not in found]
        if there and any(
            _is_behind(stream, stream.tried[event], places.get(event), read) for event in gone
        ):
            raise Violation("a copy has no part of a call", f"{there} without {gone}: {read}")
