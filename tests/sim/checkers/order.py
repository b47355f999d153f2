"""The events of one key from one writer are read in the order in which they were written."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.streams import Read, StreamHistory, Tried, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a read, or positions of one segment, have them in another order.

    The order of writing is that in which the calls began, and in a call that of its events; of
    events without a key only those of one segment have an order. The events of a transaction have
    it among themselves. Whatever is written after an acknowledgement lies behind what it is of.
    """
    for stream in streams_of(calls).values():
        _behind_what_is_there(stream)
        named = {c.arguments["writer"] for c in of(calls, "open_writer")}
        for read in stream.reads:
            _no_gap(stream, read, named)
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


def _behind_what_is_there(stream: StreamHistory) -> None:
    """In a segment no event lies behind one that was first tried after it was acknowledged."""
    segments: dict[str, list[tuple[int, str]]] = {}
    for event, (segment, offset) in stream.places().items():
        segments.setdefault(segment, []).append((offset, event))
    for segment, events in segments.items():
        latest = (-1, "")
        for _, event in sorted(events):
            tried = stream.tried.get(event)
            if tried is None or tried.began is None:
                continue
            since = tried.acknowledged()
            if since is not None and since < latest[0]:
                raise Violation(
                    "an append comes behind what is there",
                    f"{event!r} was acknowledged on line {since}, and {latest[1]!r}, which was "
                    f"first tried on line {latest[0]}, lies before it in segment {segment}",
                )
            latest = max(latest, (tried.began, event))


def _no_gap(stream: StreamHistory, read: Read, named: set[str]) -> None:
    """Of a writer with an id, no event is there while one before it is not."""
    if not read.is_whole(stream.layout):
        return
    present = {seen.event for seen in read.seen}
    gone: dict[str, str] = {}
    for event, tried in stream.tried.items():
        if tried.writer not in named:
            continue
        if event not in present:
            gone.setdefault(tried.writer, event)
        elif tried.writer in gone:
            raise Violation(
                "events of a writer have no gap",
                f"{event!r} is there without {gone[tried.writer]!r}: {read.call}",
            )
