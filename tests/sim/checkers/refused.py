"""Nobody ever sees an event that was refused, aborted, not committed, or not yet written."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.streams import streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if somebody saw what no call may have written by then."""
    for stream in streams_of(calls).values():
        for seen in stream.seen():
            tried = stream.tried.get(seen.event)
            if tried is None:
                raise Violation("nothing from nowhere", f"nobody wrote {seen.event!r}: {seen.call}")
            if seen.call.operation == "read" and seen.key != tried.key:
                raise Violation(
                    "nothing from nowhere",
                    f"{seen.event!r} of key {tried.key!r} has {seen.key!r} in {seen.call}",
                )
            ended = seen.call.ended
            assert ended is not None
            if tried.began is None:
                how = "was not committed" if not tried.calls else f"was refused: {tried.calls[-1]}"
                raise Violation(
                    "refused never appears", f"{seen.event!r} {how}; seen by {seen.call}"
                )
            if tried.began > ended:
                raise Violation(
                    "nothing before it is written",
                    f"{seen.event!r} was seen by {seen.call}, before line {tried.began}",
                )
