"""Why a segment is split, merged or left as it is: the reasons in verdicts, with their numbers."""

from __future__ import annotations

from typing import Final

from pravega_spark.policies import ScalingType
from pravega_spark.scaling.moving_averages import (
    FOREVER,
    UP_FACTORS,
    ScaleUpEvent,
    SegmentRates,
    is_slow,
    rule_exceeded,
)
from pravega_spark.scaling.scale_events import StreamRates

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
