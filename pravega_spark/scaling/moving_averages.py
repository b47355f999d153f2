"""The rates of one segment: moving averages of events and bytes, and the scale events they cause.

Rules and numbers are Pravega's (docs/scaling.md). The averages differ in two ways, since a log
shows events in commits, not one by one:

* The events of a commit are spread evenly over the ticks since the commit before. Pravega counts
  silent ticks as 0, and all events in the last tick.
* An average is over the time since the statistics began. Pravega's begins with the first rate,
  which at one commit a minute would be twelve times the true rate, and still five times after the
  cool-down of 10 minutes.

For a continuously written segment both equal Pravega's averages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pravega_spark.policies import ScalingPace, ScalingType
from pravega_spark.scaling.commit_traffic import NO_TRAFFIC, Traffic, TransactionTraffic

FOREVER: Final = (1 << 63) - 1
"""The end of a cold mark that lasts until the segment is sealed."""
UP_FACTORS: Final = (5.0, 2.0, 1.0)
"""A segment is too fast if its average over 2, 5 or 10 minutes exceeds this times the target."""
DOWN_FACTORS: Final = (1.0, 1.0, 1.0, 0.5)
"""A segment is slow if all four averages are below these factors of the target."""

Averages = tuple[float, float, float, float]
"""Rates over about 2, 5, 10 and 20 minutes, in events or in bytes a second."""
ZERO: Final[Averages] = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ScaleUpEvent:
    """The average with index ``rule`` in UP_FACTORS was ``rate``, too fast for ``target``."""

    time_ms: int
    splits: int
    rule: int
    rate: float
    target: int


@dataclass(slots=True)
class SegmentRates:
    """The statistics of one active segment; times are commit times in ms.

    ``since_ms`` is when the statistics began: with the segment, or with its first write after a
    long silence. ``pending`` is the traffic since the last tick. ``events`` and ``size_bytes`` are
    weighted sums of rates; divided by the weight of the whole time since the beginning they are the
    averages.
    """

    since_ms: int
    ticked_ms: int
    written_ms: int
    reported_ms: int
    up_ms: int
    """When the last scale-up event was, which mutes further ones; at first the creation."""
    down_ms: int
    """The same for scale-down events, which an up event also mutes."""
    pending: Traffic = NO_TRAFFIC
    events: Averages = ZERO
    size_bytes: Averages = ZERO
    up: ScaleUpEvent | None = None
    cold_until_ms: int = 0
    """The end of the cold mark, 0 without one."""
    cold_since_ms: int = 0
    """When that cold mark was set."""

    @classmethod
    def begin(cls, time_ms: int) -> SegmentRates:
        """Return the statistics of a segment that is created at a time: muted, as in Pravega."""
        return cls(time_ms, time_ms, time_ms, time_ms, time_ms, time_ms)

    def restart(self, time_ms: int) -> None:
        """Begin the statistics again after a long silence; mutes and the cold mark stay."""
        self.since_ms = self.ticked_ms = self.reported_ms = time_ms
        self.pending, self.events, self.size_bytes = NO_TRAFFIC, ZERO, ZERO

    def forget_events(self, time_ms: float) -> None:
        """Drop what was judged by another target; from that time on nothing mutes a new event."""
        self.up, self.cold_until_ms, self.cold_since_ms = None, 0, 0
        self.up_ms = self.down_ms = min(self.up_ms, self.down_ms, int(time_ms) - 1)

    def mark_cold(self, time_ms: int, until_ms: int) -> None:
        """Mark the segment cold from one time until another, unless it is cold for longer."""
        if until_ms > self.cold_until_ms:
            self.cold_since_ms, self.cold_until_ms = time_ms, until_ms

    def averages(self, kind: ScalingType, pace: ScalingPace) -> Averages:
        """Return the averages in the unit of a policy: events a second, or KiB a second."""
        if kind is ScalingType.DATA_RATE:
            return self.rates(self.size_bytes, pace, 1_024)
        return self.rates(self.events, pace)

    def rates(self, sums: Averages, pace: ScalingPace, unit: int = 1) -> Averages:
        """Return the averages of ``events`` or of ``size_bytes``, a second, in a unit."""
        passed_ms = self.ticked_ms - self.since_ms
        if passed_ms <= 0:
            return ZERO
        weights = window_weights(passed_ms, pace)
        a, b, c, d = (total / weight / unit for total, weight in zip(sums, weights, strict=True))
        return a, b, c, d

    def tick(self, now_ms: int, pace: ScalingPace) -> None:
        """Advance the averages to a time; pending traffic counts evenly since the last tick."""
        passed_ms = now_ms - self.ticked_ms
        if passed_ms <= 0:
            return
        weights, pending = window_weights(passed_ms, pace), self.pending
        self.ticked_ms, self.pending = now_ms, NO_TRAFFIC
        self.events = _moved(self.events, pending.events * 1_000 / passed_ms, weights)
        self.size_bytes = _moved(self.size_bytes, pending.size_bytes * 1_000 / passed_ms, weights)

    def credit(self, transactions: Iterable[TransactionTraffic], pace: ScalingPace) -> None:
        """Count transactions that lived longer than a tick as if their events had come evenly.

        For a transaction that lived L ms each tick gets count x tick / L: the rate count / L over
        its life. The part before the statistics began does not count. The transactions' commit is
        at the time of the last tick.
        """
        for transaction in transactions:
            lived_ms = self.ticked_ms - transaction.created_ms
            if lived_ms >= pace.tick_ms:
                weights = window_weights(min(lived_ms, self.ticked_ms - self.since_ms), pace)
                traffic = transaction.traffic
                self.events = _added(self.events, traffic.events * 1_000 / lived_ms, weights)
                self.size_bytes = _added(
                    self.size_bytes, traffic.size_bytes * 1_000 / lived_ms, weights
                )


def rule_exceeded(averages: Averages, target: int, age_ms: float, pace: ScalingPace) -> int | None:
    """Return the index of the first average that requires a split at an age, or None."""
    for rule, factor in enumerate(UP_FACTORS):
        if averages[rule] > factor * target and age_ms > pace.windows_ms[rule]:
            return rule
    return None


def is_slow(averages: Averages, target: int) -> bool:
    """Return whether all averages are so low that a segment of sufficient age is cold."""
    return all(r < factor * target for r, factor in zip(averages, DOWN_FACTORS, strict=True))


def window_weights(time_ms: float, pace: ScalingPace) -> Averages:
    """Return the weight of a time span in each average: 1 - exp(-time / window).

    For a tick of 5 s that is Pravega's 1 - exp(-(5/60) / W), W in minutes.
    """
    a, b, c, d = (-math.expm1(-time_ms / window_ms) for window_ms in pace.windows_ms)
    return a, b, c, d


def _moved(sums: Averages, rate: float, weights: Averages) -> Averages:
    a, b, c, d = (old + part * (rate - old) for old, part in zip(sums, weights, strict=True))
    return a, b, c, d


def _added(sums: Averages, rate: float, weights: Averages) -> Averages:
    a, b, c, d = (old + part * rate for old, part in zip(sums, weights, strict=True))
    return a, b, c, d
