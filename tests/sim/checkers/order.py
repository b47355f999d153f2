"""The events of one key from one writer are read in the order in which they were written."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.streams import Tried, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a read, or positions of one segment, have them in another order.

    The order of writing is that in which the calls began, and in a call that of its events; of
    events without a key only those of one segment have an order. The events of a transaction have
    it among themselves.
    """
    for stream in streams_of(calls).values():
        for read in stream.reads:
            last: dict[tuple[str | None, ...], Tried] = {}
            for seen in read.seen:
                tried = stream.tried.get(seen.event)
                if tried is None:
                    continue
                who = tried.transaction or tried.writer
                lane = (who, tried.key, "" if tried.key is not None else seen.position[0])
                before = last.get(lane)
                if before is not None and before.number > tried.number:
                    raise Violation(
                        "events of a key are in write order",
                        f"{before.event!r} before {tried.event!r} of {lane[:2]} in {read.call}",
                    )
                last[lane] = tried
