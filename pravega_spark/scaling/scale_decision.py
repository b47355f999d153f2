"""What to do with each segment, from rates alone: split, merge or leave. Pure, no I/O, no clock.

Rules and numbers are those of Pravega's auto-scale requests (docs/scaling.md). Here a mark stands
until it is acted on, since a scheduled job may come when the event itself is long past; marks are
taken in the order in which they were set, each seeing only those before it, as their events would.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pravega_spark.engine.chunks.routing import POSITIONS
from pravega_spark.engine.layout.epochs import split
from pravega_spark.limits import MAX_SEGMENTS
from pravega_spark.model import KeyRange, Segment
from pravega_spark.policies import ScalingType
from pravega_spark.scaling.segment_rates import (
    FOR_EVER,
    UP_FACTORS,
    Averages,
    Rates,
    ScaleUp,
    SegmentRates,
    is_slow,
    too_fast,
)

NAMES = ("r2", "r5", "r10", "r20")
"""The averages, named by Pravega's minutes at whatever pace."""
_UNITS = {ScalingType.EVENT_RATE: "events/s", ScalingType.DATA_RATE: "KiB/s"}


class Action(enum.Enum):
    """What is to be done with a segment."""

    NONE = "none"
    """Nothing: the load is within the target."""
    WAIT = "wait"
    """It is too fast, but too young, muted, or not yet judged."""
    SPLIT = "split"
    MERGE = "merge"
    COLD = "cold"
    """It is cold, but there is nobody to merge it with, or the stream is at its minimum."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one segment, with the averages in the policy's unit and the reason."""

    segment: Segment
    action: Action
    reason: str
    averages: Averages | None = None


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """One scale: the segments to seal and the ranges that take over their keys."""

    action: Action
    seal: tuple[int, ...]
    ranges: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """The verdict on every active segment in range order, and the scales that follow from them."""

    verdicts: tuple[Verdict, ...]
    requests: tuple[ScaleRequest, ...] = ()


Divide = Callable[[Segment, int], tuple[tuple[KeyRange, ...], str]]
"""Given a segment and a number of parts, their ranges, and what there is to say about them."""


def equal_parts(segment: Segment, parts: int) -> tuple[tuple[KeyRange, ...], str]:
    """Divide the range evenly; the last part ends exactly where the segment does."""
    return split(segment.key_range, parts), "even parts"


FIXED: Final = "the number of segments is fixed"


def leave(active: Sequence[Segment], reason: str) -> ScaleDecision:
    """Decide nothing, for one reason that holds for all segments."""
    return ScaleDecision(tuple(Verdict(segment, Action.NONE, reason) for segment in active))


def decide(
    active: Sequence[Segment], rates: Rates, now_ms: int, divide: Divide = equal_parts
) -> ScaleDecision:
    """Decide on the active segments, in range order, at a time.

    A stream with a fixed number of segments is left alone. All requests are disjoint; the merges
    leave at least the policy's minimum whether the splits are made or not.
    """
    found: dict[int, tuple[Action, str]] = {}
    requests: list[ScaleRequest] = []
    if rates.policy.type is ScalingType.FIXED:
        found = dict.fromkeys(range(len(active)), (Action.NONE, FIXED))
    else:
        requests += _splits(active, rates, now_ms, divide, found)
        requests += _merges(active, rates, now_ms, found)
    verdicts = []
    for place, segment in enumerate(active):
        current = rates.current(segment.number, now_ms)
        action, reason = found.get(place) or _left(current, rates, now_ms)
        averages = rates.averages(current)
        verdicts.append(Verdict(segment, action, reason, averages))
    return ScaleDecision(tuple(verdicts), tuple(requests))


def _splits(
    active: Sequence[Segment],
    rates: Rates,
    now_ms: int,
    divide: Divide,
    found: dict[int, tuple[Action, str]],
) -> list[ScaleRequest]:
    """Split what has an up event that still counts, into at most the policy's factor."""
    requests = []
    room = MAX_SEGMENTS - len(active)
    for place, segment in enumerate(active):
        up = rates.segments[segment.number].up
        if up is None or now_ms - up.time_ms >= rates.pace.cold_ms:
            continue
        parts = min(up.splits, max(2, rates.policy.factor))
        why = _why_up(up, rates)
        if parts - 1 > room:
            found[place] = Action.WAIT, f"{why}; a stream has at most {MAX_SEGMENTS} segments"
        elif (segment.key_range.high - segment.key_range.low) * POSITIONS < parts:
            found[place] = Action.WAIT, f"{why}; its range is too narrow for {parts} parts"
        else:
            ranges, note = divide(segment, parts)
            room -= len(ranges) - 1
            requests.append(ScaleRequest(Action.SPLIT, (segment.segment_id,), ranges))
            found[place] = Action.SPLIT, f"{why}: {len(ranges)} {note}"
    return requests


def _merges(
    active: Sequence[Segment], rates: Rates, now_ms: int, found: dict[int, tuple[Action, str]]
) -> list[ScaleRequest]:
    """Merge cold neighbours, as far as the policy's minimum lets."""
    known = [rates.segments[segment.number] for segment in active]
    cold = {
        place: rates.cold_since(segment, now_ms)
        for place, segment in enumerate(known)
        if place not in found and rates.is_cold(segment, now_ms)
    }
    spare = len(active) - rates.policy.minimum
    groups = _groups(sorted(cold, key=lambda place: (cold[place], place)), spare)
    requests = []
    for group in groups:
        members = [active[place] for place in group]
        whole = KeyRange(members[0].key_range.low, members[-1].key_range.high)
        ids = tuple(member.segment_id for member in members)
        requests.append(ScaleRequest(Action.MERGE, ids, (whole,)))
        for place in group:
            others = " and ".join(str(member) for member in members if member != active[place])
            why = _why_cold(known[place], rates, now_ms)
            found[place] = Action.MERGE, f"{why}; with {others}"
    spare -= sum(len(group) - 1 for group in groups)
    rest = "no cold neighbour" if spare > 0 else f"the minimum is {rates.policy.minimum} segments"
    for place in cold.keys() - found.keys():
        found[place] = Action.COLD, f"{_why_cold(known[place], rates, now_ms)}; {rest}"
    return requests


def _groups(order: Sequence[int], spare: int) -> list[list[int]]:
    """Return which cold places are merged, given how many segments the stream can spare.

    ``order`` has the places by the time of their marks. Each looks at its two neighbours; those
    marked before it, and not merged yet, join it: at most three become one.
    """
    seen: set[int] = set()
    groups: list[list[int]] = []
    for place in order:
        seen.add(place)
        group = [near for near in (place - 1, place, place + 1) if near in seen]
        if spare == 1:
            group = group[:2]
        if spare >= 1 and len(group) > 1:
            groups.append(group)
            spare -= len(group) - 1
            seen.difference_update(group)
    return groups


def _why_up(up: ScaleUp, rates: Rates) -> str:
    limit = f"{UP_FACTORS[up.rule]:g} x {up.target:,}" if up.rule < 2 else f"{up.target:,}"
    return f"{NAMES[up.rule]} was {up.rate:,.1f} > {limit} {_UNITS[rates.policy.type]}"


def _why_cold(segment: SegmentRates, rates: Rates, now_ms: int) -> str:
    silent_ms = now_ms - segment.written_ms
    if silent_ms > rates.pace.idle_ms:
        return f"no event for {_seconds(silent_ms)}"
    if segment.cold_until_ms == FOR_EVER:
        return "once idle, cold until sealed"
    return f"too slow, cold for {_seconds(segment.cold_until_ms - now_ms)} more"


def _left(segment: SegmentRates, rates: Rates, now_ms: int) -> tuple[Action, str]:
    """Return what is said of a segment with which nothing is done; its averages are of now."""
    pace, policy = rates.pace, rates.policy
    averages, age_ms = rates.averages(segment), now_ms - segment.since_ms
    rule = too_fast(averages, policy.target, pace.windows_ms[3] + 1, pace)
    if rule is None:
        of = f"the target, {policy.target:,} {_UNITS[policy.type]}"
        slow = f"slow for {of}, but not cold yet"
        return Action.NONE, slow if is_slow(averages, policy.target) else f"within {of}"
    limit = f"{UP_FACTORS[rule]:g} x the target"
    why = f"{NAMES[rule]} is {averages[rule]:,.1f} > {limit}"
    least_ms = max(pace.cooldown_ms, pace.windows_ms[rule])
    if age_ms <= least_ms:
        return Action.WAIT, f"{why}; {_seconds(age_ms)} old, waits until {_seconds(least_ms)}"
    if now_ms - segment.up_ms <= pace.mute_ms:
        muted_ms = segment.up_ms + pace.mute_ms - now_ms
        return Action.WAIT, f"{why}; muted for {_seconds(muted_ms)} more"
    return Action.WAIT, f"{why}; judged at writes, every {_seconds(pace.report_ms)} at most"


def _seconds(time_ms: float) -> str:
    return f"{time_ms / 1_000:,.3g} s" if time_ms < 10_000 else f"{time_ms / 1_000:,.0f} s"
