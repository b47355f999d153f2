"""Where a stream is truncated: Pravega's rules as pure functions of one version and its cuts.

An entry of the retention set is the tail of the stream at some version. A policy by time limits the
age of entries, a policy by size the bytes after them. The *minimum entry* is the newest entry that
has at least the minimum, the *maximum entry* the newest one that exceeds the maximum. The lower
bound is that of the cuts that subscribers published. Only a policy by consumption waits for it.

| policy | truncate at |
| --- | --- |
| time | the minimum entry, or nothing; the maximum has no effect |
| size | the minimum entry, or nothing; further if the maximum requires it |
| consumption, with a lower bound | the bound; with limits see ``_by_time`` and ``_by_size`` |
| consumption, without a lower bound | nothing, unless the maximum requires it |

The lower bound of several cuts is what all have read, the upper bound what any has read. A cut is a
point on the chain of segments of each key. The lower bound takes the earliest point of each key,
the upper bound the latest. Both are consistent cuts: each cut has passed a segment on all of its
keys or on none, and so have the earliest and the latest of several. The order of the cuts does not
matter.

(Pravega folds its subscribers' cuts into a map, and the result depends on the order in which their
entries are visited; where that result is a valid cut, it is that of ``lower_bound_of``.)
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pravega_spark.config.policies import LimitUnit, RetentionPolicy
from pravega_spark.engine.layout.cut_validation import Cell, offset_in, overlapping_cells
from pravega_spark.engine.layout.epochs import Layout, Lineage
from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut, Order, locate, reached
from pravega_spark.values.segments import Segment, StreamCut


@dataclass(frozen=True, slots=True)
class _Bound:
    """A consistent cut of which only the cells are known."""

    lineage: Lineage
    cells: Sequence[Cell]

    def offset_in(self, segment: Segment, /) -> int:
        return offset_in(self.cells, [cell.low for cell in self.cells], segment)


def lower_bound_of(given: Iterable[LocatedCut]) -> LocatedCut:
    """Return the latest cut that is ahead of none of the given ones; there is exactly one.

    Cuts below the head count as the head. The result is in canonical form.
    """
    first, *others = [cut.raised_to_head() for cut in given]
    bound = _Bound(first.lineage, first.cells)
    for cut in others:
        bound = replace(bound, cells=list(_earlier(bound.cells, cut.cells)))
    return reached(Frontier(bound))


def upper_bound_of(a: LocatedCut, b: LocatedCut) -> LocatedCut:
    """Return the earliest cut that is behind neither of the two, in canonical form."""
    frontier = Frontier(a.raised_to_head(), b.raised_to_head())
    frontier.advance()
    return reached(frontier)


def _earlier(left: Sequence[Cell], right: Sequence[Cell]) -> Iterator[Cell]:
    for pair in overlapping_cells(left, right):
        low, high = max(cell.low for cell in pair), min(cell.high for cell in pair)
        yield replace(min(pair, key=lambda cell: cell.age), low=low, high=high)


@dataclass(frozen=True, slots=True)
class RetentionEntry:
    """The tail of a stream at one version, with the time in the version's commit.

    ``time_ms`` is in ms since 1970, ``size_bytes`` counts all bytes written up to the version. The
    age of an entry follows from ``RetentionSet.written_ms``, not from ``time_ms``.
    """

    version: int
    time_ms: int
    size_bytes: int
    cut: StreamCut
    sizes: Mapping[int, int] = field(default_factory=dict)
    """The bytes of each of the cut's segments before the cut."""


class RetentionSet(Protocol):
    """The entries of a stream, ordered by version, and so by time, size and cut."""

    def partition(
        self, is_before: Callable[[RetentionEntry], bool]
    ) -> tuple[RetentionEntry | None, RetentionEntry | None]:
        """Return the newest entry that passes a test, and the oldest one that fails it.

        The test must hold for all entries up to some entry, and for none after it.
        """

    def written_ms(self, entry: RetentionEntry) -> int:
        """Return a time by which all events before the entry were written."""


@dataclass(frozen=True, slots=True)
class TruncationInputs:
    """All that a truncation decision depends on.

    ``lower_bound`` is that of the subscribers' cuts, never below the head, or None without a
    subscriber that holds data; only a policy by consumption needs it. ``bytes_at(segment_id,
    offset)`` returns the bytes of a segment before an offset. ``offset_after(segment_id, start,
    end, size_bytes)`` returns the first offset from start to end with at least this many bytes of
    the segment before it. ``shared_state`` is the cut before the newest state of a state
    synchronizer, which no policy may pass.
    """

    layout: Layout
    policy: RetentionPolicy
    entries: RetentionSet
    lower_bound: LocatedCut | None
    now_ms: int
    bytes_at: Callable[[int, int], int]
    offset_after: Callable[[int, int, int, int], int]
    shared_state: LocatedCut | None = None

    @property
    def head(self) -> LocatedCut:
        """The stream's head."""
        return locate(self.layout, self.layout.head)

    @property
    def tail(self) -> LocatedCut:
        """The stream's tail."""
        return locate(self.layout, StreamCut.LATEST)

    def limited_amount(self, entry: RetentionEntry) -> int:
        """Return the amount that the policy limits: an entry's age, or the bytes after it."""
        if self.policy.unit is LimitUnit.TIME_MS:
            return self.now_ms - self.entries.written_ms(entry)
        return self.bytes_after_both(entry, self.head)

    def bytes_after(self, cut: LocatedCut) -> int:
        """Return the bytes between a cut and the tail."""
        return cut.bytes_to(self.tail, self.bytes_at)

    def bytes_after_both(self, entry: RetentionEntry, cut: LocatedCut) -> int:
        """Return the bytes that are both after an entry and after a cut."""

        def bytes_at(segment_id: int, offset: int) -> int:
            is_known = segment_id in entry.sizes and entry.cut.positions[segment_id] == offset
            return entry.sizes[segment_id] if is_known else self.bytes_at(segment_id, offset)

        return upper_bound_of(cut, self.cut_of(entry)).bytes_to(self.tail, bytes_at)

    def cut_of(self, entry: RetentionEntry) -> LocatedCut:
        """Return the entry's cut, located in this version."""
        return locate(self.layout, entry.cut)


class RetentionRule(enum.Enum):
    """The rule that decided the cut of a truncation, in words."""

    NO_POLICY = "the stream has no retention policy"
    SEALING = "the stream is being sealed"
    NO_SUBSCRIBER = "no subscriber has published a cut"
    NOTHING_BEYOND = "nothing is beyond the minimum"
    MINIMUM = "all beyond the minimum"
    CONSUMED = "all that is consumed"
    CONSUMED_BEYOND = "all that is consumed and beyond the minimum"
    MAXIMUM = "all beyond the maximum"
    SHARED_STATE = "all before the newest shared state"


@dataclass(frozen=True, slots=True)
class TruncationDecision:
    """Truncate at ``cut``, or not at all if it is None; ``minimum`` is the minimum entry's cut."""

    rule: RetentionRule
    cut: LocatedCut | None = None
    minimum: LocatedCut | None = None


def decide_truncation(inputs: TruncationInputs) -> TruncationDecision:
    """Return where the stream is truncated; never below the head, nor past a shared state."""
    decision = _by_policy(inputs)
    state = inputs.shared_state
    if decision.cut is None or state is None or state.is_at_or_after(decision.cut):
        return decision
    return TruncationDecision(RetentionRule.SHARED_STATE, state, decision.minimum)


def _by_policy(inputs: TruncationInputs) -> TruncationDecision:
    if not inputs.policy.waits_for_subscribers:
        return _by_minimum(inputs)
    if inputs.lower_bound is not None:
        return _by_limits(inputs, inputs.lower_bound)
    decision = _by_limits(inputs, inputs.head)
    if decision.rule is RetentionRule.MAXIMUM:
        return decision
    return TruncationDecision(RetentionRule.NO_SUBSCRIBER, None, decision.minimum)


def _by_minimum(inputs: TruncationInputs) -> TruncationDecision:
    """Decide for a policy by time or size, which does not regard subscribers.

    By size, the cut is exact to the event where the entries would retain more than the maximum.
    """
    minimum = _minimum_cut(inputs)
    if inputs.policy.unit is LimitUnit.SIZE_BYTES:
        limited = _within_maximum_size(inputs, minimum or inputs.head, minimum)
        if limited is not None:
            return limited
    rule = RetentionRule.NOTHING_BEYOND if minimum is None else RetentionRule.MINIMUM
    return TruncationDecision(rule, minimum, minimum)


def _by_limits(inputs: TruncationInputs, bound: LocatedCut) -> TruncationDecision:
    unit = inputs.policy.unit
    if unit is LimitUnit.NONE:
        return TruncationDecision(RetentionRule.CONSUMED, bound)
    by_unit = _by_time if unit is LimitUnit.TIME_MS else _by_size
    return by_unit(inputs, bound, _minimum_cut(inputs))


def _minimum_cut(inputs: TruncationInputs) -> LocatedCut | None:
    """Return the cut of the minimum entry, or None if all entries have less than the minimum."""
    minimum = inputs.policy.minimum
    entry, _ = inputs.entries.partition(lambda entry: inputs.limited_amount(entry) >= minimum)
    return None if entry is None else inputs.cut_of(entry).raised_to_head()


def _by_time(
    inputs: TruncationInputs, bound: LocatedCut, minimum: LocatedCut | None
) -> TruncationDecision:
    """Decide by consumption within limits of time.

    An event younger than the minimum stays, even if all have consumed it.

    | minimum entry relative to the bound | truncate at |
    | --- | --- |
    | none | nothing |
    | before: subscribers are further | the minimum entry |
    | overlaps | the lower bound of both (Pravega: the newest entry before the bound) |
    | equal or after | the bound |

    A cut behind the maximum entry moves on to that entry. If the set has no entry of the next
    version, the maximum entry may be too early; a cut behind it on every key then moves on to the
    oldest entry within the maximum, unless the minimum forbids that.
    """
    if minimum is None:
        return TruncationDecision(RetentionRule.NOTHING_BEYOND)
    decision = _consumed_beyond_minimum(bound, minimum)
    assert decision.cut is not None
    limit = _limit_by_maximum_age(inputs, decision.cut)
    if limit is None:
        return decision
    return TruncationDecision(RetentionRule.MAXIMUM, upper_bound_of(decision.cut, limit), minimum)


def _consumed_beyond_minimum(bound: LocatedCut, minimum: LocatedCut) -> TruncationDecision:
    order = minimum.compare(bound)
    if order is Order.BEFORE:
        return TruncationDecision(RetentionRule.MINIMUM, minimum, minimum)
    if order is Order.OVERLAPS:
        both = lower_bound_of((minimum, bound))
        return TruncationDecision(RetentionRule.CONSUMED_BEYOND, both, minimum)
    return TruncationDecision(RetentionRule.CONSUMED, bound, minimum)


def _limit_by_maximum_age(inputs: TruncationInputs, cut: LocatedCut) -> LocatedCut | None:
    """Return the cut that ``cut`` must reach for the maximum age, or None if it needs no move."""
    maximum, minimum = inputs.policy.maximum, inputs.policy.minimum
    if maximum is None:
        return None
    last, within = inputs.entries.partition(lambda entry: inputs.limited_amount(entry) > maximum)
    if last is None:
        return None
    limit = inputs.cut_of(last).raised_to_head()
    order = cut.compare(limit)
    if order is Order.EQUAL_OR_AFTER:
        return None
    if within is None or within.version == last.version + 1 or order is Order.OVERLAPS:
        return limit
    if inputs.limited_amount(within) < minimum:
        return limit
    return inputs.cut_of(within).raised_to_head()


def _by_size(
    inputs: TruncationInputs, bound: LocatedCut, minimum: LocatedCut | None
) -> TruncationDecision:
    """Decide by consumption within limits of size. The lower bound retains ``r`` bytes.

    | case | truncate at |
    | --- | --- |
    | r < minimum, no minimum entry | nothing |
    | r < minimum, minimum entry before the bound | the minimum entry |
    | r < minimum, they overlap | the lower bound of both (Pravega: as by time) |
    | minimum <= r <= maximum | the bound |
    | r > maximum | as far after the bound as the maximum requires, see ``_within_maximum_size`` |
    """
    if inputs.bytes_after(bound) < inputs.policy.minimum:
        if minimum is None:
            return TruncationDecision(RetentionRule.NOTHING_BEYOND)
        return _consumed_beyond_minimum(bound, minimum)
    return _within_maximum_size(inputs, bound, minimum) or TruncationDecision(
        RetentionRule.CONSUMED, bound, minimum
    )


def _within_maximum_size(
    inputs: TruncationInputs, start: LocatedCut, minimum: LocatedCut | None
) -> TruncationDecision | None:
    """Return the first cut after ``start`` that retains at most the maximum size.

    Returns None if ``start`` does so itself. Events of older entries are truncated first, on all
    keys; between two entries one segment after the other, to the event. The minimum stays: if one
    event is larger than the difference between the limits, the event stays.
    """
    retained, maximum = inputs.bytes_after(start), inputs.policy.maximum
    if maximum is None or retained <= maximum:
        return None
    last, within = inputs.entries.partition(
        lambda entry: inputs.bytes_after_both(entry, start) > maximum
    )
    low = start if last is None else upper_bound_of(start, inputs.cut_of(last))
    high = inputs.tail if within is None else upper_bound_of(start, inputs.cut_of(within))
    at_low = inputs.bytes_after(low)
    limit = _cut_after_bytes(inputs, low, high, at_low - maximum, at_low - inputs.policy.minimum)
    if inputs.bytes_after(limit) == retained:
        return None
    return TruncationDecision(RetentionRule.MAXIMUM, limit, minimum)


def _cut_after_bytes(
    inputs: TruncationInputs, start: LocatedCut, end: LocatedCut, least_bytes: int, most_bytes: int
) -> LocatedCut:
    """Return the earliest cut from start to end with at least ``least_bytes`` between.

    If that exceeds ``most_bytes``, return the cut one event earlier.
    """
    frontier = Frontier(start)
    passed = 0
    for rng in start.ranges_to(end):
        if passed >= least_bytes:
            break
        segment_id, offset = rng.segment_id, rng.end
        before = inputs.bytes_at(segment_id, rng.start)
        size = inputs.bytes_at(segment_id, offset) - before
        if passed + size > least_bytes:
            wanted = before + least_bytes - passed
            if len(rng) > 1:
                offset = inputs.offset_after(segment_id, rng.start, rng.end, wanted)
                size = inputs.bytes_at(segment_id, offset) - before
            if passed + size > most_bytes:
                offset -= 1
        frontier.offsets[segment_id] = offset
        passed += size
    frontier.advance()
    return locate(inputs.layout, frontier.cut())
