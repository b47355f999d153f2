"""Where a stream is truncated: Pravega's rules as pure functions of one version. No I/O.

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
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pravega_spark.engine.layout.frontier import Frontier
from pravega_spark.engine.layout.located_cut import LocatedCut, Order, locate
from pravega_spark.policies import LimitUnit
from pravega_spark.retention.cut_bounds import lower_bound_of, upper_bound_of
from pravega_spark.retention.truncation_inputs import TruncationInputs


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
    """Decide for a policy by time or size, whatever subscribers need.

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
