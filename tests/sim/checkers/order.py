"""The events of one key from one writer are read in the order in which they were written."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.streams import Read, StreamHistory, Tried, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a read, or their positions, have them in another order.

    The order of writing is that in which the calls began, and in a call that of its events; of
    events without a key only those of one segment have an order. The events of a transaction have
    it among themselves. Whatever is written after an acknowledgement lies behind what it is of.
    """
    for stream in streams_of(calls).values():
        _behind_what_is_there(stream)
        _in_no_sealed_segment(stream)
        _as_placed(stream)
        named = {c.arguments["writer"] for c in of(calls, "open_writer")}
        for read in stream.reads:
            _no_gap(stream, read, named)
            last: dict[tuple[str | None, ...], Tried] = {}
            for seen in read.seen:
                tried = stream.tried.get(seen.event)
                if tried is None:
                    continue
                lane = _lane(tried, seen.position[0])
                before = last.get(lane)
                if before is not None and before.number > tried.number:
                    raise Violation(
                        "events of a key are in write order",
                        f"{before.event!r} before {tried.event!r} of {lane[:2]} in {read.call}",
                    )
                last[lane] = tried


def _lane(tried: Tried, segment: str) -> tuple[str | None, ...]:
    """Return what has an order with an event: of one without a key it is its segment's."""
    return tried.transaction or tried.writer, tried.key, "" if tried.key is not None else segment


def _as_placed(stream: StreamHistory) -> None:
    """Whatever no read shows has its order by its place, in a segment or in one that follows it."""
    furthest: dict[tuple[str | None, ...], dict[str, tuple[int, str]]] = {}
    places = stream.places()
    for tried in sorted(stream.tried.values(), key=lambda one: one.number):
        if tried.event not in places:
            continue
        segment, offset = places[tried.event]
        lane = _lane(tried, segment)
        earlier = furthest.setdefault(lane, {})
        for other, (at, event) in earlier.items():
            is_segment_behind = segment in stream.layout.ancestors(other)
            if is_segment_behind or (other == segment and at > offset):
                raise Violation(
                    "events of a key are in write order",
                    f"{event!r} at {(other, at)} was written before {tried.event!r} of {lane[:2]}, "
                    f"which is at {(segment, offset)}",
                )
        earlier[segment] = offset, tried.event


def _in_no_sealed_segment(stream: StreamHistory) -> None:
    """Where a segment has an event, those before it are sealed: nothing enters them that was first
    tried later, but for transactions, which may by an epoch of their own."""
    there: dict[str, tuple[int, str]] = {}
    places = stream.places()
    known = [(t.acknowledged(), t.event) for t in stream.tried.values() if t.event in places]
    known += [(seen.call.ended, seen.event) for seen in stream.seen()]
    for since, event in known:
        for segment in stream.layout.ancestors(places[event][0]):
            if since is not None:
                there[segment] = min(there.get(segment, (since, event)), (since, event))
    for tried in stream.tried.values():
        if tried.event not in places or tried.transaction is not None or tried.began is None:
            continue
        line, event = there.get(places[tried.event][0], (tried.began, ""))
        if line < tried.began:
            raise Violation(
                "an append comes behind what is there",
                f"{event!r} was there on line {line}, and {tried.event!r}, which was first tried "
                f"on line {tried.began}, lies in a segment before its own",
            )


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
    places = {} if read.to_the_tail else stream.places()
    gone: dict[str, str] = {}
    for event, tried in stream.tried.items():
        if tried.writer not in named:
            continue
        if event not in present:
            place = places.get(event)
            if read.to_the_tail or (place and stream.layout.before(place, read.end)):
                gone.setdefault(tried.writer, event)
        elif tried.writer in gone:
            raise Violation(
                "events of a writer have no gap",
                f"{event!r} is there without {gone[tried.writer]!r}: {read.call}",
            )
