"""The load of one segment for display: its rates, and whether it is hot or cold. Pure, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pravega_spark.policies import ScalingType
from pravega_spark.scaling.moving_averages import Averages, rule_exceeded
from pravega_spark.scaling.scale_events import StreamRates


@dataclass(frozen=True, slots=True)
class SegmentLoad:
    """Averages over 2, 5, 10 and 20 minutes a second, and the marks; times in ms since 1970.

    ``hot``: faster than the policy's target allows, or marked for a split. ``cold``: marked for a
    merge, or idle. ``cooldown_until_ms``: too young to be judged before then. ``muted_until_ms``:
    no split before then, because one was due or the segment was created. Both are None when that
    time is over.
    """

    time_ms: int
    events: Averages
    size_bytes: Averages
    hot: bool
    cold: bool
    muted_until_ms: int | None
    cooldown_until_ms: int | None


def segment_load(rates: StreamRates, number: int, time_ms: int) -> SegmentLoad | None:
    """Return the load of a segment at a time, or None if the rates do not have the segment.

    The time is that of the rates, or a later one if no commit came since.
    """
    if number not in rates.segments or rates.policy.type is ScalingType.FIXED:
        return None
    now_ms = max(time_ms, rates.time_ms)
    pace, segment = rates.pace, rates.current(number, now_ms)
    rule = rule_exceeded(rates.averages(segment), rates.policy.target, pace.windows_ms[3] + 1, pace)
    is_marked = segment.up is not None and now_ms - segment.up.time_ms < pace.cold_ms
    muted_until_ms = segment.up_ms + math.ceil(pace.mute_ms)
    cooldown_until_ms = segment.since_ms + math.ceil(pace.cooldown_ms)
    return SegmentLoad(
        now_ms,
        segment.rates(segment.events, pace),
        segment.rates(segment.size_bytes, pace),
        rule is not None or is_marked,
        rates.is_cold(segment, now_ms),
        muted_until_ms if now_ms <= muted_until_ms else None,
        cooldown_until_ms if now_ms <= cooldown_until_ms else None,
    )
