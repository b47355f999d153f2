"""What is acknowledged, or was seen, is there: in every later read that covers its place."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.streams import Read, StreamHistory, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if a read lacks what an earlier answer promised it."""
    for stream in streams_of(calls).values():
        _check(stream)
        for read in stream.reads:
            _as_asked(stream, read)
        for opened in of(calls, "open_writer"):
            if opened.ok and opened.arguments["stream"] == stream.name:
                _number(stream, opened)


def _number(stream: StreamHistory, opened: Recorded) -> None:
    """The number that a writer with an id is told counts all of its events that are durable.

    Whoever continues the id goes on after that number, so its events were first tried in order.
    """
    assert opened.ended is not None
    its = [t for t in stream.tried.values() if t.writer == opened.arguments["writer"]]
    for tried in its[opened.value :]:
        since = tried.acknowledged()
        if since is not None and since < opened.began:
            raise Violation(
                "a writer is told how many of its events are there",
                f"{tried.event!r} was acknowledged on line {since}, and is not in {opened}",
            )
    begun = [t for t in its if t.began is not None and t.began < opened.ended]
    if opened.value > len(begun):
        raise Violation(
            "a writer is told how many of its events are there",
            f"nobody had written more than {len(begun)} by {opened}",
        )


def _as_asked(stream: StreamHistory, read: Read) -> None:
    """A read that was given cuts lies between them; it may begin later, at the head."""
    events = list(stream.places().values())
    start, end = (read.call.arguments.get(name) for name in ("from", "to"))
    heads = stream.heads_until(read.call.ended or 0)
    wrong = None
    if start is not None:
        wrong = stream.layout.beyond(start, [read.start], events)
        wrong = wrong or stream.layout.beyond(read.start, [start, *heads], events)
    if end is not None:
        wrong = wrong or stream.layout.beyond(end, [read.end, *heads], events)
        wrong = wrong or stream.layout.beyond(read.end, [end, *heads], events)
    if wrong is not None:
        raise Violation("a read has what it was asked for", f"{wrong} in {read.call}")


def _check(stream: StreamHistory) -> None:
    places = stream.places()
    known: dict[str, tuple[int, str]] = {}
    for event, tried in stream.tried.items():
        acknowledged = tried.acknowledged()
        if acknowledged is not None:
            known[event] = (acknowledged, f"was acknowledged on line {acknowledged}")
    for seen in stream.seen():
        ended = seen.call.ended
        assert ended is not None
        if ended < known.get(seen.event, (ended + 1, ""))[0]:
            known[seen.event] = (ended, f"was seen by {seen.call.process} on line {ended}")
    for read in stream.reads:
        present = {seen.event for seen in read.seen}
        for event, (since, how) in known.items():
            if since < read.call.began and event not in present:
                _absent(stream, read, event, places.get(event), how)


def _absent(
    stream: StreamHistory, read: Read, event: str, place: tuple[str, int] | None, how: str
) -> None:
    """Refuse an event's absence unless a truncation, or the cut that was asked for, explains it."""
    if place is None:  # a transaction's event that nobody ever saw: it may have been truncated
        owed = read.to_the_tail and stream.is_behind(read.start, stream.tried[event])
    else:
        owed = not stream.layout.before(place, read.start)
        owed = owed and (read.to_the_tail or stream.layout.before(place, read.end))
    if owed:
        raise Violation(
            "acknowledged is there", f"{event!r} at {place} {how}, {read.call} lacks it"
        )
