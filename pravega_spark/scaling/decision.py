"""Which segments are split and which are merged, and why, from their rates alone. Pure.

Rules and numbers are those of Pravega's auto-scale requests (docs/policies.md). Pravega handles
each scale event when it occurs. A scheduled job may run long after it, so here a cold mark remains
until a scale or its end, and marks are handled in the order in which they were set: a segment can
merge only with neighbours that were marked before it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pravega_spark.config.policies import ScalingType
from pravega_spark.engine.chunks.routing import POSITIONS
from pravega_spark.engine.layout.epochs import split
from pravega_spark.scaling.rates import (
    FOREVER,
    UP_FACTORS,
    Averages,
    ScaleUpEvent,
    SegmentRates,
    StreamRates,
    is_slow,
    rule_exceeded,
)
from pravega_spark.values.limits import MAX_SEGMENTS
from pravega_spark.values.segments import KeyRange, Segment

AVERAGE_NAMES: Final = ("r2", "r5", "r10", "r20")
"""The averages, named by Pravega's windows in minutes at any pace."""
_UNITS: Final = {ScalingType.EVENT_RATE: "events/s", ScalingType.DATA_RATE: "KiB/s"}


def why_too_fast(up: ScaleUpEvent, rates: StreamRates) -> str:
    """Return why a segment had a scale-up event."""
    limit = f"{UP_FACTORS[up.rule]:g} x {up.target:,}" if up.rule < 2 else f"{up.target:,}"
    return f"{AVERAGE_NAMES[up.rule]} was {up.rate:,.1f} > {limit} {_UNITS[rates.policy.type]}"


def why_cold(segment: SegmentRates, rates: StreamRates, now_ms: int) -> str:
    """Return why a segment is cold."""
    silent_ms = now_ms - segment.written_ms
    if silent_ms > rates.pace.idle_ms:
        return f"no event for {_seconds(silent_ms)}"
    if segment.cold_until_ms == FOREVER:
        return "once idle, cold until sealed"
    return f"too slow, cold for {_seconds(segment.cold_until_ms - now_ms)} more"


def why_unchanged(segment: SegmentRates, rates: StreamRates, now_ms: int) -> tuple[bool, str]:
    """Return whether a segment that is not scaled is too fast, and why it is not scaled.

    The segment's averages must be current.
    """
    pace, policy = rates.pace, rates.policy
    averages, age_ms = rates.averages(segment), now_ms - segment.since_ms
    rule = rule_exceeded(averages, policy.target, pace.windows_ms[3] + 1, pace)
    if rule is None:
        target = f"the target, {policy.target:,} {_UNITS[policy.type]}"
        if is_slow(averages, policy.target):
            return False, f"slow for {target}, but not cold yet"
        return False, f"within {target}"
    why = f"{AVERAGE_NAMES[rule]} is {averages[rule]:,.1f} > {UP_FACTORS[rule]:g} x the target"
    least_ms = max(pace.cooldown_ms, pace.windows_ms[rule])
    if age_ms <= least_ms:
        return True, f"{why}; {_seconds(age_ms)} old, waits until {_seconds(least_ms)}"
    if now_ms - segment.up_ms <= pace.mute_ms:
        muted_ms = segment.up_ms + pace.mute_ms - now_ms
        return True, f"{why}; muted for {_seconds(muted_ms)} more"
    return True, f"{why}; judged at writes, every {_seconds(pace.report_ms)} at most"


def _seconds(time_ms: float) -> str:
    return f"{time_ms / 1_000:,.3g} s" if time_ms < 10_000 else f"{time_ms / 1_000:,.0f} s"


class Action(enum.Enum):
    """What a decision does with a segment."""

    NONE = "none"
    """No change: the load is within the target."""
    WAIT = "wait"
    """The segment is too fast, but too young, muted, or not yet judged."""
    SPLIT = "split"
    MERGE = "merge"
    COLD = "cold"
    """The segment is cold, but has no cold neighbour, or the stream is at its minimum."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on one segment, with the averages in the policy's unit and the reason."""

    segment: Segment
    action: Action
    reason: str
    averages: Averages | None = None


@dataclass(frozen=True, slots=True)
class ScaleRequest:
    """One scale: the segments to seal and the ranges that replace them."""

    action: Action
    seal: tuple[int, ...]
    ranges: tuple[KeyRange, ...]


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """The verdict on each active segment in range order, and the resulting scales."""

    verdicts: tuple[Verdict, ...]
    requests: tuple[ScaleRequest, ...] = ()


SplitRange = Callable[[Segment, int], tuple[tuple[KeyRange, ...], str]]
"""Splits a segment's range into a number of parts; returns them with a note for the reason."""


def split_evenly(segment: Segment, parts: int) -> tuple[tuple[KeyRange, ...], str]:
    """Split the range evenly; the last part ends exactly at the segment's end."""
    return split(segment.key_range, parts), "even parts"


FIXED: Final = "the number of segments is fixed"


def no_scale(active: Sequence[Segment], reason: str) -> ScaleDecision:
    """Return a decision that changes no segment, for one reason."""
    return ScaleDecision(tuple(Verdict(segment, Action.NONE, reason) for segment in active))


def decide_scale(
    active: Sequence[Segment],
    rates: StreamRates,
    now_ms: int,
    split_range: SplitRange = split_evenly,
) -> ScaleDecision:
    """Decide on the active segments, in range order, at a time.

    A stream with a fixed number of segments does not change. All requests are disjoint. The merges
    alone leave at least the policy's minimum, even if no split succeeds.
    """
    actions: dict[int, tuple[Action, str]] = {}
    requests: list[ScaleRequest] = []
    if rates.policy.type is ScalingType.FIXED:
        actions = dict.fromkeys(range(len(active)), (Action.NONE, FIXED))
    else:
        splits = _splits(active, rates, now_ms, split_range)
        actions |= splits.actions
        merges = _merges(active, rates, now_ms, splits.actions)
        actions |= merges.actions
        requests = [*splits.requests, *merges.requests]
    verdicts = []
    for index, segment in enumerate(active):
        current = rates.current(segment.number, now_ms)
        if index in actions:
            action, reason = actions[index]
        else:
            is_too_fast, reason = why_unchanged(current, rates, now_ms)
            action = Action.WAIT if is_too_fast else Action.NONE
        verdicts.append(Verdict(segment, action, reason, rates.averages(current)))
    return ScaleDecision(tuple(verdicts), tuple(requests))


class _Scales(NamedTuple):
    """Scales, and the action and reason for each segment, by its index."""

    requests: list[ScaleRequest]
    actions: dict[int, tuple[Action, str]]


def _splits(
    active: Sequence[Segment], rates: StreamRates, now_ms: int, split_range: SplitRange
) -> _Scales:
    """Split the segments with a recent scale-up event into at most the policy's factor of parts."""
    requests: list[ScaleRequest] = []
    actions: dict[int, tuple[Action, str]] = {}
    room = MAX_SEGMENTS - len(active)
    for index, segment in enumerate(active):
        up = rates.segments[segment.number].up
        if up is None or up.target != rates.policy.target:
            continue  # none, or judged by a target of before
        if now_ms - up.time_ms >= rates.pace.cold_ms:
            continue
        parts = min(up.splits, max(2, rates.policy.factor))
        why = why_too_fast(up, rates)
        if parts - 1 > room:
            actions[index] = Action.WAIT, f"{why}; a stream has at most {MAX_SEGMENTS} segments"
        elif (segment.key_range.high - segment.key_range.low) * POSITIONS < parts:
            actions[index] = Action.WAIT, f"{why}; its range is too narrow for {parts} parts"
        else:
            ranges, note = split_range(segment, parts)
            room -= len(ranges) - 1
            requests.append(ScaleRequest(Action.SPLIT, (segment.segment_id,), ranges))
            actions[index] = Action.SPLIT, f"{why}: {len(ranges)} {note}"
    return _Scales(requests, actions)


def _merges(
    active: Sequence[Segment], rates: StreamRates, now_ms: int, excluded: Container[int]
) -> _Scales:
    """Merge cold neighbours as far as the policy's minimum allows, except for some indexes."""
    segments = [rates.segments[segment.number] for segment in active]
    cold = {
        index: rates.cold_since(segment, now_ms)
        for index, segment in enumerate(segments)
        if index not in excluded and rates.is_cold(segment, now_ms)
    }
    spare = len(active) - rates.policy.minimum
    groups = _groups(sorted(cold, key=lambda index: (cold[index], index)), spare)
    requests: list[ScaleRequest] = []
    actions: dict[int, tuple[Action, str]] = {}
    for group in groups:
        members = [active[index] for index in group]
        whole = KeyRange(members[0].key_range.low, members[-1].key_range.high)
        ids = tuple(member.segment_id for member in members)
        requests.append(ScaleRequest(Action.MERGE, ids, (whole,)))
        for index in group:
            others = " and ".join(str(member) for member in members if member != active[index])
            why = why_cold(segments[index], rates, now_ms)
            actions[index] = Action.MERGE, f"{why}; with {others}"
    spare -= sum(len(group) - 1 for group in groups)
    rest = "no cold neighbour" if spare > 0 else f"the minimum is {rates.policy.minimum} segments"
    for index in cold.keys() - actions.keys():
        actions[index] = Action.COLD, f"{why_cold(segments[index], rates, now_ms)}; {rest}"
    return _Scales(requests, actions)


def _groups(order: Sequence[int], spare: int) -> list[list[int]]:
    """Return which cold segments are merged, as groups of indexes.

    ``order`` has the indexes by the times of their cold marks, ``spare`` is how many segments the
    stream can lose. Each segment merges with its neighbours that were marked before it and are not
    merged yet: at most three become one.
    """
    seen: set[int] = set()
    groups: list[list[int]] = []
    for index in order:
        seen.add(index)
        group = [near for near in (index - 1, index, index + 1) if near in seen]
        if spare == 1:
            group = group[:2]
        if spare >= 1 and len(group) > 1:
            groups.append(group)
            spare -= len(group) - 1
            seen.difference_update(group)
    return groups
