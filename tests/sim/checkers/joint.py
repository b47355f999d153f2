"""Streams hold the joint transactions that they share in one order: that of the decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

from tests.sim.checkers.streams import StreamHistory, streams_of
from tests.sim.checkers.violations import Violation
from tests.sim.recorded import Recorded, of


def check(calls: Sequence[Recorded]) -> None:
    """Raise a Violation if what two streams show of joint transactions cannot be one order."""
    streams = streams_of(calls)
    joint = {
        call.arguments["transaction"]
        for call in of(calls, "stage")
        if len(call.arguments["streams"]) > 1
    }
    later: dict[str, dict[str, str]] = {}
    for name, stream in streams.items():
        for first, second, why in _orders(stream, joint):
            later.setdefault(first, {}).setdefault(second, f"{name}: {why}")
    cycle = _cycle(later)
    if cycle:
        steps = [f"{a!r} before {b!r} ({later[a][b]})" for a, b in pairwise(cycle)]
        raise Violation("joint transactions have one order", "; ".join(steps))


def _orders(stream: StreamHistory, joint: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield pairs of transactions, the first of which is earlier in this stream, and why."""
    places: dict[str, dict[str, int]] = {}
    known = stream.places()
    for tried in stream.tried.values():
        if tried.transaction in joint:
            mine = places.setdefault(tried.transaction or "", {})
            if tried.event in known:
                segment, offset = known[tried.event]
                mine[segment] = offset
    for one, other in combinations(sorted(places), 2):
        for segment in places[one].keys() & places[other].keys():
            first, second = sorted((one, other), key=lambda t: places[t][segment])
            yield first, second, f"offsets of segment {segment}"
    for read in stream.reads:
        if not read.to_the_tail or not read.is_whole(stream.layout):
            continue
        present = {t.transaction for s in read.seen if (t := stream.tried.get(s.event))}
        for one in places:
            for other in places:
                if one in present and other not in present:
                    yield one, other, f"line {read.call.ended} shows only the first"


def _cycle(later: dict[str, dict[str, str]]) -> list[str]:
    """Return the nodes of a cycle, the first also as the last; empty if there is none."""
    done: set[str] = set()
    for root in later:
        path: list[str] = []
        waiting = [(root, iter(later.get(root, ())))] if root not in done else []
        path += [root] if waiting else []
        while waiting:
            node, following = waiting[-1]
            for other in following:
                if other in path:
                    return [*path[path.index(other) :], other]
                if other not in done:
                    waiting.append((other, iter(later.get(other, ()))))
                    path.append(other)
                    break
            else:
                done.add(node)
                waiting.pop()
                path.pop()
    return []
