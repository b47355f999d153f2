"""A conditional append lands where it was expected, or nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.sim.checkers.layouts import ENDLESS
from tests.sim.checkers.streams import Position, StreamHistory, placed, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if one lands elsewhere, or a refusal names what was never the position."""
    streams = streams_of(calls)
    places = {name: stream.places() for name, stream in streams.items()}
    for call in of(calls, "write_if"):
        stream = streams[call.arguments["stream"]]
        expected = call.arguments["expected"]
        if "position" in expected:
            _of_position(stream, call, placed(expected["position"]))
        elif "cut" in expected:
            _of_cut(stream, places[stream.name], call, expected["cut"])
        else:
            _of_number(calls, call, expected["number"])


def _told(call: Recorded, name: str) -> Any:
    """Return what a refusal by the condition told, if it did."""
    is_refusal = call.error == "ConditionFailed" and call.value
    return call.value.get(name) if is_refusal else None


def _of_cut(
    stream: StreamHistory,
    places: Mapping[str, Position],
    call: Recorded,
    expected: Mapping[str, int],
) -> None:
    """The cut is the tail: in no segment that it names is an event behind it."""
    if call.ok:
        first = placed(call.value[0])
        if first[0] in expected and first[1] != expected[first[0]]:
            raise Violation("a conditional append lands where expected", f"at {first} in {call}")
        for event, (segment, offset) in places.items():
            tried = stream.tried.get(event)
            if offset < expected.get(segment, ENDLESS) or tried is None or tried.transaction:
                continue
            since = tried.acknowledged()
            if since is not None and since < call.began:
                raise Violation(
                    "a conditional append lands where expected",
                    f"{event!r} at {(segment, offset)} was there on line {since}: {call}",
                )
    if _told(call, "cut") == expected:
        raise Violation("a refusal has another position", f"{call}")


def _of_number(calls: Sequence[Recorded], call: Recorded, expected: int) -> None:
    """The number counts what the writer's handle has in the stream, and a handle goes on in order.

    A handle is known by its ``session``; without one at most as much is there as its writer tried.
    """
    given = call.arguments
    of_writer = [
        other
        for other in of(calls, "write", "write_if", "open_writer")
        if all(other.arguments[name] == given[name] for name in ("stream", "writer"))
    ]
    opened = of(of_writer, "open_writer")
    mine = [
        other
        for other in of(of_writer, "write", "write_if")
        if other.began < call.began and other.may_have_happened
    ]
    session, least, most = given.get("session"), 0, sum(len(c.arguments["events"]) for c in mine)
    if session is not None:
        mine = [c for c in mine if c.arguments.get("session") == session]
        base = [c.value for c in opened if c.ok and c.arguments.get("session") == session]
        begun = base[0] if base else 0
        least = begun + sum(len(c.arguments["events"]) for c in mine if c.ok and c.before(call))
        most = begun + sum(len(c.arguments["events"]) for c in mine)
    actual = _told(call, "number")
    if actual == expected:
        raise Violation("a refusal has another position", f"{call}")
    if actual is not None and not least <= actual <= most:
        raise Violation(
            "a refusal names a position of that moment", f"it is {least} to {most}: {call}"
        )
    if call.ok and not least <= expected <= most:
        raise Violation(
            "a conditional append lands where expected", f"the number is {least} to {most}: {call}"
        )
    is_known = session is not None and least == most == expected
    if call.error == "ConditionFailed" and is_known:
        raise Violation("a refusal has another position", f"the number is {most}: {call}")


def _of_position(stream: StreamHistory, call: Recorded, expected: Position) -> None:
    places = stream.places()
    events = [event for _, event in call.arguments["events"]]
    for number, event in enumerate(events):
        place = places.get(event)
        if place is not None and place != (expected[0], expected[1] + number):
            raise Violation(
                "a conditional append lands where expected", f"{event!r} is at {place}: {call}"
            )
    actual = _told(call, "position")
    if actual is None:
        return
    segment, offset = placed(actual)
    if (segment, offset) == expected:
        raise Violation("a refusal has another position", f"{call}")
    for event, place in places.items():
        tried = stream.tried.get(event)
        if tried is None or place[0] != segment:
            continue
        since, began = tried.acknowledged(), tried.began
        if since is not None and since < call.began and place[1] >= offset:
            raise Violation(
                "a refusal names a position of that moment",
                f"{event!r} was at {place} since line {since}: {call}",
            )
        assert call.ended is not None
        if began is not None and began > call.ended and place[1] < offset:
            raise Violation(
                "a refusal names a position of that moment",
                f"{event!r} came to {place} after line {began}: {call}",
            )
