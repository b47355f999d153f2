"""How fast each segment is written, from the commits of the stream's own log. Pure, no clock.

Pravega measures next to the data and posts scale events to its controller. Here both are one fold
over the log: the commits tell events and bytes of each segment with their time, the stream's
policy and layout as well, so that the same commits give the same averages and events, however
often a scheduled job stopped in between. Rules and numbers are Pravega's (docs/scaling.md); the
averages differ from its in two ways, since events come here in commits, not one by one:

* What a commit brings came since the one before, so the ticks in between share it evenly. Pravega
  counts them as 0, and all in the last.
* An average is over the time since the statistics began. Pravega's begin at the first rate seen,
  which of a commit a minute would be twelve times the true one, and still five times after the
  cool-down of 10 minutes.

Both are Pravega's averages where a segment is written all the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.stream.records import (
    EPOCH_PREFIX,
    STREAM_DOMAIN,
    StreamRecord,
    StreamState,
    decode_epoch,
    decode_stream,
)
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.model import Epoch
from pravega_spark.policies import ScalingPace, ScalingPolicy, ScalingType
from pravega_spark.scaling.commit_traffic import (
    NO_EVENT,
    CommitTraffic,
    Merged,
    SegmentTraffic,
    traffic_of,
)

FOR_EVER: Final = (1 << 63) - 1
"""Cold until this time: until the segment is sealed."""
UP_FACTORS: Final = (5.0, 2.0, 1.0)
"""The averages over 2, 5 and 10 minutes call for a split above so many times the target."""
DOWN_FACTORS: Final = (1.0, 1.0, 1.0, 0.5)
"""All four averages below so many times the target: the segment is cold."""

Averages = tuple[float, float, float, float]
"""Rates over about 2, 5, 10 and 20 minutes, in events or in bytes a second."""
ZERO: Final[Averages] = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ScaleUp:
    """A scale event: the average number ``rule`` of UP_FACTORS was ``rate`` where ``target`` is."""

    time_ms: int
    splits: int
    rule: int
    rate: float
    target: int


@dataclass(slots=True)
class SegmentRates:
    """What the log tells of one active segment so far; times are commit times in ms.

    ``since_ms`` is when the statistics began: with the segment, or with its first write after a
    long silence. ``pending`` is what came after the last tick. ``events`` and ``size_bytes`` are
    sums of the rates by weight: divided by the weight of all time since the beginning, they are
    the averages.
    """

    since_ms: int
    ticked_ms: int
    written_ms: int
    reported_ms: int
    up_ms: int
    """When the last scale-up event was, which mutes further ones; at first the creation."""
    down_ms: int
    """The same for scale-down events, which an up event mutes too."""
    pending: SegmentTraffic = NO_EVENT
    events: Averages = ZERO
    size_bytes: Averages = ZERO
    up: ScaleUp | None = None
    cold_until_ms: int = 0
    cold_since_ms: int = 0
    """When the mark was set that ends then."""

    @classmethod
    def begin(cls, time_ms: int) -> SegmentRates:
        """Return the statistics of a segment that appears at this time: muted, as in Pravega."""
        return cls(time_ms, time_ms, time_ms, time_ms, time_ms, time_ms)

    def renew(self, time_ms: int) -> None:
        """Begin the statistics anew after a long silence; mutes and marks stay."""
        self.since_ms = self.ticked_ms = self.reported_ms = time_ms
        self.pending, self.events, self.size_bytes = NO_EVENT, ZERO, ZERO

    def mark(self, time_ms: int, until_ms: int) -> None:
        """Mark the segment cold from one time until another, unless it is cold for longer."""
        if until_ms > self.cold_until_ms:
            self.cold_since_ms, self.cold_until_ms = time_ms, until_ms

    def averages(self, kind: ScalingType, pace: ScalingPace) -> Averages:
        """Return the averages in the unit of a policy: events a second, or KiB a second."""
        passed_ms = self.ticked_ms - self.since_ms
        if passed_ms <= 0:
            return ZERO
        by_bytes = kind is ScalingType.DATA_RATE
        sums, unit = (self.size_bytes, 1_024) if by_bytes else (self.events, 1)
        weights = shares(passed_ms, pace)
        a, b, c, d = (found / w / unit for found, w in zip(sums, weights, strict=True))
        return a, b, c, d


@dataclass(slots=True)
class Rates:
    """The fold: the statistics of all active segments, by number, as of one version of the log.

    Numbers, not ids: a segment that a rolling transaction repeated under a newer epoch goes on.
    ``token`` is that of the version's commit, ``time_ms`` its time.
    """

    pace: ScalingPace
    version: int
    token: str
    time_ms: int
    life: int
    epoch: int
    policy: ScalingPolicy
    segments: dict[int, SegmentRates] = field(default_factory=dict)

    @classmethod
    def begin(cls, view: StreamView, pace: ScalingPace, time_ms: int | None = None) -> Rates:
        """Begin at a version of a stream, by default at its time; what was before is not known."""
        record = view.record
        time_ms = view.timestamp_ms if time_ms is None else time_ms
        made = cls(
            pace, view.version, view.snapshot.token, time_ms, record.life, record.active_epoch,
            record.configuration.scaling,
        )  # fmt: skip
        if record.state is not StreamState.DELETED:
            made._lay_out(view.active)
        return made

    @property
    def may_shrink(self) -> bool:
        """Whether the policy lets segments merge, and the stream has more than its minimum."""
        is_fixed = self.policy.type is ScalingType.FIXED
        return not is_fixed and len(self.segments) > self.policy.minimum

    def apply(self, commit: Commit, now_ms: float = math.inf) -> None:
        """Take in the commit of the next version.

        Time stands still for a commit of a host whose clock was ahead of ``now_ms``, or behind
        the commits before: its events count, its clock does not.
        """
        assert commit.version == self.version + 1, (commit.version, self.version)
        self.version, self.token = commit.version, commit.token
        if self.time_ms < commit.clock_ms <= now_ms:
            self.time_ms = commit.clock_ms
        text = commit.domains.get(STREAM_DOMAIN)
        if text is not None:
            self._change(commit, decode_stream(text))
        for number, written in traffic_of(commit).items():
            segment = self.segments.get(number)
            if segment is not None:
                self._write(segment, written)

    def _change(self, commit: Commit, record: StreamRecord) -> None:
        """Follow the stream's own record: policy, life and layout."""
        for segment in self.segments.values():
            self._mark_if_idle(segment)
        self.policy = record.configuration.scaling
        if record.state is StreamState.DELETED:
            self.segments = {}
        elif record.active_epoch != self.epoch:
            text = commit.domains[f"{EPOCH_PREFIX}{record.active_epoch}"]
            assert text is not None, f"version {commit.version} switches to an epoch it removes"
            self._lay_out(decode_epoch(record.active_epoch, text))
        self.life, self.epoch = record.life, record.active_epoch

    def _lay_out(self, epoch: Epoch) -> None:
        """Keep the segments that go on, begin those that are new, forget those that were sealed."""
        known = self.segments
        self.segments = {
            s.number: known.get(s.number) or SegmentRates.begin(self.time_ms)
            for s in epoch.segments
        }

    def is_idle(self, segment: SegmentRates, time_ms: float) -> bool:
        """Tell whether the segment is cold by that time for want of writes alone.

        While the stream is at its minimum it is not: a mark made then could pair up much later.
        """
        return self.may_shrink and time_ms - segment.written_ms > self.pace.idle_ms

    def is_cold(self, segment: SegmentRates, time_ms: float) -> bool:
        """Tell whether the segment is marked cold at a time, or idle."""
        return segment.cold_until_ms > time_ms or self.is_idle(segment, time_ms)

    def cold_since(self, segment: SegmentRates, time_ms: float) -> int:
        """Return when the mark was set by which the segment is cold at a time."""
        if segment.cold_until_ms > time_ms:
            return segment.cold_since_ms
        return segment.written_ms + math.ceil(self.pace.idle_ms)

    def _mark_if_idle(self, segment: SegmentRates) -> None:
        if self.is_idle(segment, self.time_ms):
            segment.mark(segment.written_ms + math.ceil(self.pace.idle_ms), FOR_EVER)

    def _write(self, segment: SegmentRates, written: CommitTraffic) -> None:
        now = self.time_ms
        self._mark_if_idle(segment)
        if now - segment.written_ms > self.pace.idle_ms:
            segment.renew(now)
        segment.written_ms = now
        short = [m.amount for m in written.merged if now - m.created_ms < self.pace.tick_ms]
        segment.pending = sum(short, segment.pending + written.plain)
        if len(short) < len(written.merged):
            tick(segment, now, self.pace)
            credit(segment, written.merged, self.pace)
        elif now - segment.ticked_ms > self.pace.tick_ms:
            tick(segment, now, self.pace)
        if now - segment.reported_ms > self.pace.report_ms:
            segment.reported_ms = now
            self._report(segment)

    def _report(self, segment: SegmentRates) -> None:
        """Judge the segment, as Pravega's segment store does when it reports to the processor."""
        now, pace, policy = self.time_ms, self.pace, self.policy
        age_ms = now - segment.since_ms
        if policy.type is ScalingType.FIXED or age_ms <= pace.cooldown_ms:
            return
        averages = segment.averages(policy.type, pace)
        rule = too_fast(averages, policy.target, age_ms, pace)
        if rule is not None:
            if now - segment.up_ms > pace.mute_ms:
                splits = max(2, int(max(averages[:3]) / policy.target))
                segment.up = ScaleUp(now, splits, rule, averages[rule], policy.target)
                segment.up_ms = segment.down_ms = now
        elif is_slow(averages, policy.target) and age_ms > pace.windows_ms[3]:
            if now - segment.down_ms <= pace.mute_ms:
                return
            segment.down_ms = now
            if self.may_shrink:
                segment.mark(now, now + math.ceil(pace.cold_ms))

    def current(self, number: int, time_ms: int) -> SegmentRates:
        """Return a segment's statistics as a write of nothing at that time would leave them."""
        copy = replace(self.segments[number])
        tick(copy, time_ms, self.pace)
        return copy

    def averages(self, segment: SegmentRates) -> Averages:
        """Return a segment's averages in the unit of the policy."""
        return segment.averages(self.policy.type, self.pace)


def too_fast(averages: Averages, target: int, age_ms: float, pace: ScalingPace) -> int | None:
    """Return the first average that calls for a split at that age, as an index; None if none."""
    for rule, factor in enumerate(UP_FACTORS):
        if averages[rule] > factor * target and age_ms > pace.windows_ms[rule]:
            return rule
    return None


def is_slow(averages: Averages, target: int) -> bool:
    """Tell whether all averages are so low that an old enough segment is cold."""
    return all(r < factor * target for r, factor in zip(averages, DOWN_FACTORS, strict=True))


def shares(time_ms: float, pace: ScalingPace) -> Averages:
    """Return how much so long a time counts in each average: 1 - exp(-time / window).

    For a tick of 5 s that is Pravega's 1 - exp(-(5/60) / W), W in minutes.
    """
    a, b, c, d = (-math.expm1(-time_ms / window_ms) for window_ms in pace.windows_ms)
    return a, b, c, d


def tick(segment: SegmentRates, now_ms: int, pace: ScalingPace) -> None:
    """Move the averages on to a time: what is pending came evenly since the last tick."""
    passed_ms = now_ms - segment.ticked_ms
    if passed_ms <= 0:
        return
    share, pending = shares(passed_ms, pace), segment.pending
    segment.ticked_ms, segment.pending = now_ms, NO_EVENT
    segment.events = _moved(segment.events, pending.events * 1_000 / passed_ms, share)
    segment.size_bytes = _moved(segment.size_bytes, pending.size_bytes * 1_000 / passed_ms, share)


def _moved(sums: Averages, rate: float, share: Averages) -> Averages:
    a, b, c, d = (old + part * (rate - old) for old, part in zip(sums, share, strict=True))
    return a, b, c, d


def credit(segment: SegmentRates, merged: Iterable[Merged], pace: ScalingPace) -> None:
    """Count the transactions that lived longer than a tick as if their events had come evenly.

    Of a life of L ms each tick gets count x tick / L, which is the rate count / L for so long; the
    time before the statistics began does not count. They are as of the commit of these.
    """
    now_ms = segment.ticked_ms
    for transaction in merged:
        life_ms = now_ms - transaction.created_ms
        if life_ms >= pace.tick_ms:
            share = shares(min(life_ms, now_ms - segment.since_ms), pace)
            amount = transaction.amount
            segment.events = _added(segment.events, amount.events * 1_000 / life_ms, share)
            segment.size_bytes = _added(
                segment.size_bytes, amount.size_bytes * 1_000 / life_ms, share
            )


def _added(sums: Averages, rate: float, share: Averages) -> Averages:
    a, b, c, d = (old + part * rate for old, part in zip(sums, share, strict=True))
    return a, b, c, d
