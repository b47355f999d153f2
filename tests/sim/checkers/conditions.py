"""A conditional append lands where it was expected, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.streams import Position, StreamHistory, placed, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if one lands elsewhere, or a refusal names what was never the position."""
    streams = streams_of(calls)
    for call in of(calls, "write_if"):
        stream = streams[call.arguments["stream"]]
        expected = call.arguments["expected"]
        if "position" in expected:
            _of_position(stream, call, placed(expected["position"]))
        elif "cut" in expected and call.ok:
            first = placed(call.value[0])
            if first[0] in expected["cut"] and first[1] != expected["cut"][first[0]]:
                raise Violation(
                    "a conditional append lands where expected", f"at {first} in {call}"
                )


def _of_position(stream: StreamHistory, call: Recorded, expected: Position) -> None:
    places = stream.places()
    events = [event for _, event in call.arguments["events"]]
    for number, event in enumerate(events):
        place = places.get(event)
        if place is not None and place != (expected[0], expected[1] + number):
            raise Violation(
                "a conditional append lands where expected", f"{event!r} is at {place}: {call}"
            )
    actual = call.value.get("position") if call.outcome == "fail" and call.value else None
    if actual is None or call.error != "ConditionFailed":
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
