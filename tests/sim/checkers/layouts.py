"""The segments of a stream with their predecessors, and which positions lie before a cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

ENDLESS = 1 << 62
"""In a cut: the segment was read to its end, wherever that is."""


class Layout:
    """Which segments come after which; without a record of it none comes after another."""

    def __init__(self, predecessors: Mapping[str, Sequence[str]] | None = None) -> None:
        given = predecessors or {}
        self._above = {str(s): [str(p) for p in before] for s, before in given.items()}
        self.segments = tuple(self._above)
        self.ancestors = lru_cache(maxsize=None)(self._ancestors)

    def _ancestors(self, segment: str) -> frozenset[str]:
        found: set[str] = set()
        waiting = list(self._above.get(segment, []))
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += self._above.get(one, [])
        return frozenset(found)

    def is_first(self, cut: Mapping[str, int]) -> bool:
        """Return whether nothing can lie before a cut."""
        return not any(cut.values()) and not any(map(self.ancestors, cut))

    def before(self, position: tuple[str, int], cut: Mapping[str, int]) -> bool:
        """Return whether a position lies before a cut.

        A segment that the cut does not name lies before it if one that it names came after it.
        """
        segment, offset = position
        if segment in cut:
            return offset < cut[segment]
        return any(segment in self.ancestors(named) for named in cut)

    def behind(self, position: tuple[str, int], cut: Mapping[str, int]) -> bool:
        """Return whether a position lies at a cut or behind it: in a segment that the cut names,
        or in one that came after such a segment."""
        segment, offset = position
        if segment in cut:
            return offset >= cut[segment]
        return not self.ancestors(segment).isdisjoint(cut)

    def beyond(
        self,
        cut: Mapping[str, int],
        others: Sequence[Mapping[str, int]],
        events: Iterable[tuple[str, int]],
    ) -> tuple[str, int] | None:
        """Return where an event lies before ``cut`` and before none of the others, if at all."""
        last = [(segment, end - 1) for segment, end in cut.items() if 0 < end < ENDLESS]
        for position in (*last, *events):
            if self.before(position, cut) and not any(self.before(position, o) for o in others):
                return position
        return None

    def follow(self, segments: Iterable[str]) -> list[str]:
        """Return segments with each one after its ancestors."""
        return sorted(segments, key=lambda segment: (len(self.ancestors(segment)), segment))
