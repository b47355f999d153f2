"""The rates of all segments of a stream, folded from the commits of its log. Pure, no clock.

Pravega measures next to the data and posts scale events to its controller. Here both are one fold
over the log, which has the traffic and time of each commit, and the stream's policy and layout. The
same commits give the same averages and events, however often a scheduled job stopped in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

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
from pravega_spark.scaling.commit_traffic import SegmentTraffic, traffic_by_segment
from pravega_spark.scaling.moving_averages import (
    FOREVER,
    Averages,
    ScaleUpEvent,
    SegmentRates,
    is_slow,
    rule_exceeded,
)


@dataclass(slots=True)
class StreamRates:
    """The statistics of all active segments, by number, as of one version of the log.

    By number, not id: a segment that a rolling transaction duplicates under a newer epoch keeps its
    statistics. ``token`` is that of the version's commit, ``time_ms`` its time.
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
    def begin(cls, view: StreamView, pace: ScalingPace, time_ms: int | None = None) -> StreamRates:
        """Begin at a version of a stream, by default at the version's time."""
        record = view.record
        time_ms = view.timestamp_ms if time_ms is None else time_ms
        made = cls(
            pace, view.version, view.snapshot.token, time_ms, record.life, record.active_epoch,
            record.configuration.scaling,
        )  # fmt: skip
        if record.state is not StreamState.DELETED:
            made._follow_layout(view.active)
        return made

    @property
    def may_shrink(self) -> bool:
        """Whether the policy allows merges, and the stream has more than its minimum."""
        is_fixed = self.policy.type is ScalingType.FIXED
        return not is_fixed and len(self.segments) > self.policy.minimum

    def apply(self, commit: Commit, latest_ms: float = math.inf) -> None:
        """Apply the commit of the next version.

        The time does not advance for a commit of a host whose clock was after ``latest_ms``, or
        before the commits before it: the commit's events count, its time does not.
        """
        assert commit.version == self.version + 1, (commit.version, self.version)
        self.version, self.token = commit.version, commit.token
        if self.time_ms < commit.clock_ms <= latest_ms:
            self.time_ms = commit.clock_ms
        text = commit.domains.get(STREAM_DOMAIN)
        if text is not None:
            self._follow_record(commit, decode_stream(text))
        for number, traffic in traffic_by_segment(commit).items():
            segment = self.segments.get(number)
            if segment is not None:
                self._add_traffic(segment, traffic)

    def _follow_record(self, commit: Commit, record: StreamRecord) -> None:
        """Follow a change of the stream's record: its policy, life and layout."""
        for segment in self.segments.values():
            self._mark_if_idle(segment)
        policy = record.configuration.scaling
        if (policy.type, policy.target) != (self.policy.type, self.policy.target):
            for segment in self.segments.values():
                segment.forget_events(self.time_ms - self.pace.mute_ms)
        self.policy = policy
        if record.state is StreamState.DELETED:
            self.segments = {}
        elif record.active_epoch != self.epoch:
            text = commit.domains[f"{EPOCH_PREFIX}{record.active_epoch}"]
            assert text is not None, f"version {commit.version} switches to an epoch it removes"
            self._follow_layout(decode_epoch(record.active_epoch, text))
        self.life, self.epoch = record.life, record.active_epoch

    def _follow_layout(self, epoch: Epoch) -> None:
        """Keep segments of the epoch that are known, begin new ones, forget all others."""
        known = self.segments
        self.segments = {
            s.number: known.get(s.number) or SegmentRates.begin(self.time_ms)
            for s in epoch.segments
        }

    def is_idle(self, segment: SegmentRates, time_ms: float) -> bool:
        """Return whether the segment is cold at a time because it had no write for long.

        Never while the stream is at its minimum: a cold mark from then could pair up much later.
        """
        return self.may_shrink and time_ms - segment.written_ms > self.pace.idle_ms

    def is_cold(self, segment: SegmentRates, time_ms: float) -> bool:
        """Return whether the segment has a cold mark at a time, or is idle."""
        return segment.cold_until_ms > time_ms or self.is_idle(segment, time_ms)

    def cold_since(self, segment: SegmentRates, time_ms: float) -> int:
        """Return since when a segment has been cold that is cold at a time."""
        if segment.cold_until_ms > time_ms:
            return segment.cold_since_ms
        return segment.written_ms + math.ceil(self.pace.idle_ms)

    def _mark_if_idle(self, segment: SegmentRates) -> None:
        if self.is_idle(segment, self.time_ms):
            segment.mark_cold(segment.written_ms + math.ceil(self.pace.idle_ms), FOREVER)

    def _add_traffic(self, segment: SegmentRates, traffic: SegmentTraffic) -> None:
        now_ms = self.time_ms
        self._mark_if_idle(segment)
        if now_ms - segment.written_ms > self.pace.idle_ms:
            segment.restart(now_ms)
        segment.written_ms = now_ms
        short = [
            transaction.traffic
            for transaction in traffic.transactions
            if now_ms - transaction.created_ms < self.pace.tick_ms
        ]
        segment.pending = sum(short, segment.pending + traffic.appends)
        if len(short) < len(traffic.transactions):
            segment.tick(now_ms, self.pace)
            segment.credit(traffic.transactions, self.pace)
        elif now_ms - segment.ticked_ms > self.pace.tick_ms:
            segment.tick(now_ms, self.pace)
        if now_ms - segment.reported_ms > self.pace.report_ms:
            segment.reported_ms = now_ms
            self._judge(segment)

    def _judge(self, segment: SegmentRates) -> None:
        """Record a scale event, if any, as Pravega's segment store does when it reports."""
        now_ms, pace, policy = self.time_ms, self.pace, self.policy
        age_ms = now_ms - segment.since_ms
        if policy.type is ScalingType.FIXED or age_ms <= pace.cooldown_ms:
            return
        averages = segment.averages(policy.type, pace)
        rule = rule_exceeded(averages, policy.target, age_ms, pace)
        if rule is not None:
            if now_ms - segment.up_ms > pace.mute_ms:
                splits = max(2, int(max(averages[:3]) / policy.target))
                segment.up = ScaleUpEvent(now_ms, splits, rule, averages[rule], policy.target)
                segment.up_ms = segment.down_ms = now_ms
        elif is_slow(averages, policy.target) and age_ms > pace.windows_ms[3]:
            if now_ms - segment.down_ms <= pace.mute_ms:
                return
            segment.down_ms = now_ms
            if self.may_shrink:
                segment.mark_cold(now_ms, now_ms + math.ceil(pace.cold_ms))

    def current(self, number: int, time_ms: int) -> SegmentRates:
        """Return a segment's statistics advanced to a time, as an empty write would leave them."""
        copy = replace(self.segments[number])
        copy.tick(time_ms, self.pace)
        return copy

    def averages(self, segment: SegmentRates) -> Averages:
        """Return a segment's averages in the unit of the policy."""
        return segment.averages(self.policy.type, self.pace)
