"""Where a stream is to be truncated: Pravega's tables as pure functions of one version. No I/O.

An entry of the retention set is the tail as it was at some version. With ``age`` for a policy by
time and ``retained`` (bytes after the entry) for one by size, the *minimum entry* is the newest one
of at least the minimum, the *last entry* beyond the maximum the newest one of more than that. The
bound is the lower bound of what the subscribers published.

| policy | no bound | with a bound |
| --- | --- | --- |
| time | the minimum entry, or nothing | the table of ``_by_time`` |
| size | the minimum entry, or nothing, and what the maximum forces | the table of ``_by_size`` |
| consumption | nothing, but for the maximum | the bound, or the same tables where it has limits |
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pravega_spark.engine.layout.epochs import Layout
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut, Order, locate
from pravega_spark.model import StreamCut
from pravega_spark.policies import LimitUnit, RetentionPolicy, RetentionType
from pravega_spark.retention.lower_bound import highest, lowest


@dataclass(frozen=True, slots=True)
class RetentionEntry:
    """The tail at a version: the time in its commit, and all bytes ever written before it.

    ``time_ms`` is in ms since 1970. How old the entry is, its ``RetentionSet`` tells.
    """

    version: int
    time_ms: int
    size_bytes: int
    cut: StreamCut
    sizes: Mapping[int, int] = field(default_factory=dict)
    """Bytes of the cut's segments before it."""


class RetentionSet(Protocol):
    """Entries in order of version, which is also that of time, size and cut."""

    def around(
        self, is_before: Callable[[RetentionEntry], bool]
    ) -> tuple[RetentionEntry | None, RetentionEntry | None]:
        """Return the newest entry for which a test holds, the oldest for which it does not.

        The test holds for the entries up to one of them and for none after it.
        """

    def written_ms(self, entry: RetentionEntry) -> int:
        """Return a time before which all that is before the entry was written."""


class RetentionRule(enum.Enum):
    """What decided how far a truncation goes."""

    NO_POLICY = "the stream has no retention policy"
    SEALING = "the stream is being sealed"
    NO_SUBSCRIBER = "no subscriber has published a cut"
    NOTHING_BEYOND = "nothing is beyond the minimum"
    MINIMUM = "all beyond the minimum"
    CONSUMED = "all that is consumed"
    CONSUMED_BEYOND = "all that is consumed and beyond the minimum"
    MAXIMUM = "all beyond the maximum"


@dataclass(frozen=True, slots=True)
class TruncationDecision:
    """Truncate at ``cut``, or not at all if it is None; ``minimum`` is where the minimum begins."""

    rule: RetentionRule
    cut: LocatedCut | None = None
    minimum: LocatedCut | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision depends on.

    ``bound`` is None while no subscriber has published, and never below the head. ``bytes_at``
    gives the bytes of a segment before an offset; ``offset_after``, of a segment, an offset in it,
    a later one and a number of bytes, the first offset between them with so many bytes before it.
    """

    layout: Layout
    policy: RetentionPolicy
    entries: RetentionSet
    bound: LocatedCut | None
    now_ms: int
    bytes_at: Callable[[int, int], int]
    offset_after: Callable[[int, int, int, int], int]

    @property
    def head(self) -> LocatedCut:
        """The stream's head."""
        return locate(self.layout, self.layout.head)

    def kept(self, entry: RetentionEntry) -> int:
        """Return what the policy limits: the age of an entry, or the bytes that are after it."""
        if self.policy.unit is LimitUnit.TIME_MS:
            return self.now_ms - self.entries.written_ms(entry)
        return self.retained_from(entry, self.head)

    def retained(self, cut: LocatedCut) -> int:
        """Return the bytes between a cut and the tail."""
        return cut.bytes_to(locate(self.layout, StreamCut.LATEST), self.bytes_at)

    def retained_from(self, entry: RetentionEntry, bound: LocatedCut) -> int:
        """Return the bytes that are after an entry and after a cut."""

        def at(segment_id: int, offset: int) -> int:
            is_known = segment_id in entry.sizes and entry.cut.positions[segment_id] == offset
            return entry.sizes[segment_id] if is_known else self.bytes_at(segment_id, offset)

        start = highest(bound, self.cut_of(entry))
        return start.bytes_to(locate(self.layout, StreamCut.LATEST), at)

    def cut_of(self, entry: RetentionEntry) -> LocatedCut:
        """Return the entry's cut, located in this version."""
        return locate(self.layout, entry.cut)


def decide(situation: Situation) -> TruncationDecision:
    """Return where the stream is to be truncated; nothing below the head is ever asked for."""
    policy, bound = situation.policy, situation.bound
    if policy.type is RetentionType.CONSUMPTION and bound is None:
        found = _limited(situation, situation.head)
        if found.rule is RetentionRule.MAXIMUM:
            return found
        return TruncationDecision(RetentionRule.NO_SUBSCRIBER, None, found.minimum)
    if bound is None:
        least = _minimum(situation)
        found = TruncationDecision(
            RetentionRule.NOTHING_BEYOND if least is None else RetentionRule.MINIMUM, least, least
        )
        if policy.unit is not LimitUnit.SIZE_BYTES:
            return found
        return _forced(situation, least or situation.head, least) or found
    return _limited(situation, bound)


def _limited(situation: Situation, bound: LocatedCut) -> TruncationDecision:
    unit = situation.policy.unit
    if unit is LimitUnit.NONE:
        return TruncationDecision(RetentionRule.CONSUMED, bound)
    by_unit = _by_time if unit is LimitUnit.TIME_MS else _by_size
    return by_unit(situation, bound, _minimum(situation))


def _minimum(situation: Situation) -> LocatedCut | None:
    """Return the cut of the newest entry of at least the minimum, or None."""
    least = situation.policy.minimum
    entry, _ = situation.entries.around(lambda entry: situation.kept(entry) >= least)
    return None if entry is None else situation.cut_of(entry).raised_to_head()


def _by_time(
    situation: Situation, bound: LocatedCut, least: LocatedCut | None
) -> TruncationDecision:
    """Decide by time; the minimum is strong: an event younger than it stays, whoever read it.

    | minimum entry, seen from the bound | truncate at |
    | --- | --- |
    | none | nothing |
    | before: subscribers are further | the minimum entry |
    | overlaps | the lower bound of both (Pravega: the newest entry before the bound) |
    | equal or after | the bound |

    Where that is behind the last entry beyond the maximum, it is moved on to it. If the set knows
    no entry in the next version, it may be too early: if the cut is behind it everywhere, it is
    moved on to the oldest entry within the maximum, unless the minimum forbids that.
    """
    if least is None:
        return TruncationDecision(RetentionRule.NOTHING_BEYOND)
    found = _consumed(situation, bound, least)
    assert found.cut is not None
    limit = _beyond(situation, found.cut)
    if limit is None:
        return found
    return TruncationDecision(RetentionRule.MAXIMUM, highest(found.cut, limit), least)


def _consumed(situation: Situation, bound: LocatedCut, least: LocatedCut) -> TruncationDecision:
    order = least.compare(bound)
    if order is Order.BEFORE:
        return TruncationDecision(RetentionRule.MINIMUM, least, least)
    if order is Order.OVERLAPS:
        both = lowest((least, bound))
        return TruncationDecision(RetentionRule.CONSUMED_BEYOND, both, least)
    return TruncationDecision(RetentionRule.CONSUMED, bound, least)


def _beyond(situation: Situation, cut: LocatedCut) -> LocatedCut | None:
    """Return where a cut must move to for the maximum age, or None if it keeps it."""
    most, least = situation.policy.maximum, situation.policy.minimum
    if most is None:
        return None
    last, within = situation.entries.around(lambda entry: situation.kept(entry) > most)
    if last is None:
        return None
    limit = situation.cut_of(last).raised_to_head()
    order = cut.compare(limit)
    if order is Order.EQUAL_OR_AFTER:
        return None
    is_exact = within is None or within.version == last.version + 1
    if is_exact or order is Order.OVERLAPS or situation.kept(within) < least:  # type: ignore[arg-type]
        return limit
    return situation.cut_of(within).raised_to_head()  # type: ignore[arg-type]


def _by_size(
    situation: Situation, bound: LocatedCut, least: LocatedCut | None
) -> TruncationDecision:
    """Decide by size. The bound retains ``r`` bytes.

    | case | truncate at |
    | --- | --- |
    | r < minimum, no minimum entry | nothing |
    | r < minimum, minimum entry before the bound | the minimum entry |
    | r < minimum, they overlap | the lower bound of both (Pravega: as by time) |
    | minimum <= r <= maximum | the bound |
    | r > maximum | as far on from the bound as the maximum forces, see ``_forced`` |
    """
    if situation.retained(bound) < situation.policy.minimum:
        if least is None:
            return TruncationDecision(RetentionRule.NOTHING_BEYOND)
        return _consumed(situation, bound, least)
    return _forced(situation, bound, least) or TruncationDecision(
        RetentionRule.CONSUMED, bound, least
    )


def _forced(
    situation: Situation, bound: LocatedCut, least: LocatedCut | None
) -> TruncationDecision | None:
    """Return how far on from a cut the maximum size forces to go; None if the cut keeps it.

    What is consumed goes on every key; of the rest what is older by its entry; between two
    entries one segment after the other, to the event. No further than the minimum allows: where
    one event is larger than what lies between the limits, the event stays.
    """
    retained, most = situation.retained(bound), situation.policy.maximum
    if most is None or retained <= most:
        return None
    last, within = situation.entries.around(
        lambda entry: situation.retained_from(entry, bound) > most
    )
    start, end = (
        given if entry is None else highest(bound, situation.cut_of(entry))
        for entry, given in ((last, bound), (within, locate(situation.layout, StreamCut.LATEST)))
    )
    kept = situation.retained(start)
    limit = _to_the_event(situation, start, end, kept - most, kept - situation.policy.minimum)
    if situation.retained(limit) == retained:
        return None
    return TruncationDecision(RetentionRule.MAXIMUM, limit, least)


def _to_the_event(
    situation: Situation, start: LocatedCut, end: LocatedCut, size_bytes: int, most_bytes: int
) -> LocatedCut:
    """Return the earliest cut from one to another with at least so many bytes between.

    If that is more than ``most_bytes``, return the cut one event before.
    """
    frontier = Frontier(start)
    passed = 0
    for rng in start.ranges_to(end):
        if passed >= size_bytes:
            break
        segment_id, offset = rng.segment_id, rng.end
        before = situation.bytes_at(segment_id, rng.start)
        size = situation.bytes_at(segment_id, offset) - before
        if passed + size > size_bytes:
            wanted = before + size_bytes - passed
            if len(rng) > 1:
                offset = situation.offset_after(segment_id, rng.start, rng.end, wanted)
                size = situation.bytes_at(segment_id, offset) - before
            if passed + size > most_bytes:
                offset -= 1
        frontier.offsets[segment_id] = offset
        passed += size
    frontier.advance()
    return locate(situation.layout, frontier.cut())
