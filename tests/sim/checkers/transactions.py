"""A transaction is decided once: committed and visible, or aborted and never seen."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.checkers.streams import StreamHistory, Tried, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if two answers contradict, or somebody saw what was decided otherwise.

    A ``settle`` that ended is a round that carries out what was decided before it began: after it
    a transaction of unknown outcome is in all of its streams, or in none and never will be.
    """
    streams = streams_of(calls)
    aborts: dict[str, list[Recorded]] = {}
    for call in of(calls, "abort"):
        aborts.setdefault(call.arguments["transaction"], []).append(call)
    for call in of(calls, "commit"):
        for other in aborts.get(call.arguments["transaction"], ()):
            if call.ok and other.ok:
                raise Violation("a transaction is decided once", f"{call}; and {other}")
    for stream in streams.values():
        for seen in stream.seen():
            tried = stream.tried.get(seen.event)
            for abort in aborts.get((tried and tried.transaction) or "", ()):
                if abort.ok:
                    raise Violation(
                        "refused never appears", f"{seen.event!r} of {abort}; seen by {seen.call}"
                    )
    _settled(calls, streams)
    for stream in streams.values():
        _in_order(calls, stream)


def _in_order(calls: Sequence[Recorded], stream: StreamHistory) -> None:
    """Of two transactions, the second of which was not asked for before the first was decided, no
    read shows the second alone, nor an event of a key from it before one from the first. A second
    one that is an append waits for no decision: it comes after what was visible."""
    began: dict[str, int] = {}
    decided: dict[str, int] = {}
    visible: dict[str, int] = {}
    appended: set[str] = set()
    for call in of(calls, "commit"):
        name = call.arguments["transaction"]
        if call.may_have_happened:
            began[name] = min(call.began, began.get(name, call.began))
        if call.arguments.get("append", False):
            appended.add(name)
        if call.ok and call.ended is not None:
            decided[name] = min(call.ended, decided.get(name, call.ended))
            if call.arguments.get("wait", True):
                visible[name] = min(call.ended, visible.get(name, call.ended))
    for read in stream.reads:
        places: dict[str, dict[str | None, list[int]]] = {}
        for number, seen in enumerate(read.seen):
            tried = stream.tried.get(seen.event)
            if tried is not None and tried.transaction in began:
                keys = places.setdefault(tried.transaction, {})
                keys.setdefault(tried.key, []).append(number)
        mine: dict[str | None, list[Tried]] = {}
        for tried in stream.tried.values():
            mine.setdefault(tried.transaction, []).append(tried)
        for first in filter(mine.__contains__, decided):
            for second, keys in places.items():
                line = (visible if second in appended else decided).get(first)
                if first == second or line is None or began[second] < line:
                    continue
                if (
                    first not in places
                    and read.to_the_tail
                    and all(stream.is_behind(read.start, tried) for tried in mine[first])
                ):
                    raise Violation(
                        "transactions come in the order of their decisions",
                        f"{second!r} is there without {first!r}: {read.call}",
                    )
                for key, numbers in places.get(first, {}).items():
                    if key is not None and key in keys and numbers[-1] > keys[key][0]:
                        raise Violation(
                            "transactions come in the order of their decisions",
                            f"{second!r} before {first!r} for key {key!r}: {read.call}",
                        )


def _settled(calls: Sequence[Recorded], streams: dict[str, StreamHistory]) -> None:
    settles = [call for call in of(calls, "settle") if call.ok]
    for commit in of(calls, "commit"):
        if not commit.may_have_happened:
            continue
        transaction = commit.arguments["transaction"]
        parts = {
            name: [t.event for t in stream.tried.values() if t.transaction == transaction]
            for name, stream in streams.items()
        }
        shown: tuple[int, str, Recorded] | None = None
        for name, events in parts.items():
            for seen in streams[name].seen():
                line = seen.call.ended
                assert line is not None
                if seen.event in events and (shown is None or line < shown[0]):
                    shown = (line, name, seen.call)
        decided = shown[0] if shown is not None else None
        if commit.ok and commit.ended is not None:
            decided = min(commit.ended, decided or commit.ended)
        if decided is None:
            continue
        after = [s for s in settles if s.began > decided]
        if commit.ok and commit.arguments.get("wait", True):
            settled = commit.ended
        else:
            settled = min((s.ended for s in after if s.ended is not None), default=None)
        if settled is not None:
            _all_parts(streams, parts, settled, commit)


def _all_parts(
    streams: dict[str, StreamHistory],
    parts: dict[str, list[str]],
    settled: int,
    commit: Recorded,
) -> None:
    for name, events in parts.items():
        places = streams[name].places()
        for read in streams[name].reads:
            if read.call.began < settled or not read.to_the_tail:
                continue
            present = {seen.event for seen in read.seen}
            for event in events:
                place = places.get(event)
                cut_off = (
                    not streams[name].is_behind(read.start, streams[name].tried[event])
                    if place is None
                    else streams[name].layout.before(place, read.start)
                )
                if event not in present and not cut_off:
                    raise Violation(
                        "a decided transaction is in all of its streams",
                        f"{commit} was settled on line {settled}; {read.call} lacks {event!r}",
                    )
