"""The watermark is of times that were noted, waits for the writers, and never goes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.sim.checkers.layouts import ENDLESS
from tests.sim.checkers.streams import Position, StreamHistory, Tried, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation for a watermark that is behind an earlier one, or ahead of a writer.

    A writer holds it from its first note until a ``forget`` begins: it is closed or removed, or
    may have been silent for too long. A cut is compared with a stream's events where the history
    has any.
    """
    streams = streams_of(calls)
    _times_rise(of(calls, "note_time"), of(calls, "forget"))
    for call in of(calls, "watermark"):
        if not call.ok:
            continue
        _is_new(calls, call)
        if call.value is None:
            continue
        stream = call.arguments["stream"]
        _noted(calls, call)
        if stream in streams and streams[stream].tried:
            _cut(calls, streams[stream], call)
        for other in of(calls, "watermark"):
            if other.ok and other.arguments["stream"] == stream and call.before(other):
                if other.value is None or other.value["lower"] < call.value["lower"]:
                    raise Violation("a watermark never goes back", f"{call}; then {other}")
                if other.value["upper"] < call.value["upper"] or _is_behind(other, call):
                    raise Violation("a watermark never goes back", f"{call}; then {other}")


def _times_rise(notes: Sequence[Recorded], forgets: Sequence[Recorded]) -> None:
    """A process that notes a time for a writer is refused an earlier one."""
    for first in notes:
        for second in notes if first.ok else ():
            same = first.process == second.process and all(
                first.arguments[name] == second.arguments[name] for name in ("stream", "writer")
            )
            is_earlier = second.arguments["time"] < first.arguments["time"]
            if not (same and is_earlier and second.ok and first.before(second)):
                continue
            if not any(
                forget.arguments["writer"] == first.arguments["writer"]
                and forget.began < second.began
                for forget in forgets
            ):
                raise Violation("noted times of a writer rise", f"{first}; then {second}")


def _cut(calls: Sequence[Recorded], stream: StreamHistory, call: Recorded) -> None:
    """A cut is not behind the stream's tail, and of one of the notes of each of its bounds it has
    all that was there: what its writer had begun to write, and what was acknowledged."""
    assert call.ended is not None
    cut = {str(segment): end for segment, end in call.value["cut"].items()}
    places = stream.places()
    tried = [t for t in stream.tried.values() if t.began is not None and t.began < call.ended]
    for segment, end in cut.items():
        elsewhere = {t.event for t in tried if places.get(t.event, (segment, 0))[0] != segment}
        if len(tried) - len(elsewhere) < end < ENDLESS:
            raise Violation(
                "the cut of a watermark is in its stream",
                f"segment {segment} has at most {len(tried) - len(elsewhere)} events: {call}",
            )
    for bound in ("lower", "upper"):
        notes = [
            note
            for note in of(calls, "note_time")
            if note.arguments["stream"] == stream.name
            and note.arguments["time"] == call.value[bound]
            and note.may_have_happened
            and note.began < call.ended
        ]
        lacking = [
            lack for note in notes if (lack := _lacks(stream, places, tried, cut, note)) is not None
        ]
        if notes and len(lacking) == len(notes):
            raise Violation(
                "the cut of a watermark has what was there when its times were noted",
                f"{lacking[0]!r} at {places[lacking[0]]}: {call}",
            )


def _lacks(
    stream: StreamHistory,
    places: Mapping[str, Position],
    tried: Sequence[Tried],
    cut: Mapping[str, int],
    note: Recorded,
) -> str | None:
    """Return an event that was there before a time was noted, and lies behind a cut."""
    for one in tried:
        since, place = one.acknowledged(), places.get(one.event)
        is_own = one.writer == note.arguments["writer"] and (one.began or 0) < note.began
        was_there = is_own or (since is not None and since < note.began)
        if was_there and place is not None and not stream.layout.before(place, cut):
            return one.event
    return None


def _is_behind(later: Recorded, earlier: Recorded) -> bool:
    """Whether a cut has fewer events of a segment than an earlier one."""
    cut = later.value.get("cut", {})
    return any(cut.get(segment, end) < end for segment, end in earlier.value.get("cut", {}).items())


def _is_new(calls: Sequence[Recorded], call: Recorded) -> None:
    """No watermark is older than what each writer was told to have noted before it was asked for.

    A note of unknown outcome may hold it, too, and whoever comes back counts from that on.
    """
    assert call.ended is not None
    newest: dict[str, int] = {}
    told: set[str] = set()
    for note in of(calls, "note_time"):
        writer, time = note.arguments["writer"], note.arguments["time"]
        if note.arguments["stream"] != call.arguments["stream"] or not note.may_have_happened:
            continue
        if note.ok and note.before(call):
            newest[writer] = max(time, newest.get(writer, time))
            told.add(writer)
        elif note.began < call.ended:
            newest.setdefault(writer, time)
    gone = {
        c.arguments["writer"]
        for c in of(calls, "forget")
        if c.arguments["stream"] == call.arguments["stream"] and c.began < call.ended
    }
    if told - gone and (call.value is None or call.value["lower"] < min(newest.values())):
        raise Violation("a watermark is of the newest notes", f"{newest}: {call}")


def _noted(calls: Sequence[Recorded], call: Recorded) -> None:
    stream = call.arguments["stream"]
    assert call.ended is not None
    notes = [
        note
        for note in of(calls, "note_time")
        if note.arguments["stream"] == stream and note.may_have_happened and note.began < call.ended
    ]
    times = [note.arguments["time"] for note in notes]
    for bound in ("lower", "upper"):
        if call.value[bound] not in times:
            raise Violation("a watermark is of noted times", f"nobody noted {bound} of {call}")
    for writer in sorted({note.arguments["writer"] for note in notes}):
        mine = [note for note in notes if note.arguments["writer"] == writer]
        gone = any(
            c.arguments["stream"] == stream
            and c.arguments["writer"] == writer
            and c.began < call.ended
            for c in of(calls, "forget")
        )
        newest = max(note.arguments["time"] for note in mine)
        ahead = call.value["lower"] > newest
        if ahead and not gone and _before_others(mine[0], calls, call):
            raise Violation(
                "a watermark waits for its writers", f"{writer!r} has noted {newest}: {call}"
            )


def _before_others(first: Recorded, calls: Sequence[Recorded], call: Recorded) -> bool:
    """A writer counts from its first note on, and holds what no other had reached by then."""
    return all(
        first.before(note)
        for note in of(calls, "note_time")
        if note.arguments["stream"] == call.arguments["stream"]
        and note.may_have_happened
        and note.arguments["writer"] != first.arguments["writer"]
        and note.arguments["time"] >= call.value["lower"]
    )
