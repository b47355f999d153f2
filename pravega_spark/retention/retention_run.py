"""Retention of one stream: decide what may go, and let it go; for jobs and for people.

Nothing but the stream's log is asked. A sample for the retention set, subscribers that expire, and
the truncation are one commit, which holds only while head and policy are as they were when it was
decided and no subscriber needs more. So a run may be killed at any time, and two may run at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.log.sweep import SweepResult
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.stream import stream_sweep
from pravega_spark.engine.stream.records import (
    SAMPLE_PREFIX,
    SUBSCRIBER_PREFIX,
    SampleRecord,
    SizedCut,
    StreamState,
    SubscriberRecord,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import IDLE
from pravega_spark.engine.stream.truncation import (
    ExtraDomains,
    TruncationResult,
    move_head,
    passed_subscribers,
)
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import TooBusy
from pravega_spark.limits import KEEP_COMPLETED, MAX_SAMPLES, RETENTION_ATTEMPTS, SAMPLE_FREQUENCY
from pravega_spark.model import SegmentRange, StreamCut
from pravega_spark.policies import RetentionPolicy, RetentionType
from pravega_spark.retention import truncation_decision
from pravega_spark.retention.explanation import DataAmount, RetentionClaim, RetentionExplanation
from pravega_spark.retention.lower_bound import lowest
from pravega_spark.retention.retention_set import RetentionHistory
from pravega_spark.retention.truncation_decision import RetentionRule, Situation, TruncationDecision
from pravega_spark.transactions import sweeper
from pravega_spark.units import parse_duration_ms

ROW_SCHEMA: Final = pa.schema(
    [
        ("policy", pa.string()),
        ("decision", pa.string()),
        ("cut", pa.string()),
        ("goes_events", pa.int64()),
        ("goes_bytes", pa.int64()),
        ("stays_events", pa.int64()),
        ("stays_bytes", pa.int64()),
        ("stays_seconds", pa.float64()),
        ("held_by", pa.string()),
        ("passed", pa.string()),
        ("expired", pa.string()),
        ("version", pa.int64()),
        ("sampled", pa.bool_()),
        ("swept_files", pa.int64()),
        ("swept_bytes", pa.int64()),
    ]
)
"""A row for each stream. ``version`` is that of the commit that truncated, null if none did."""

BY = "retention"
"""Who moved the head, for readers and for the stream's history."""


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """How a run goes: times in ms."""

    sample_every_ms: int = parse_duration_ms("the frequency", SAMPLE_FREQUENCY)
    expire_ms: int | None = None
    """A subscriber that has published nothing for so long is removed; None: never."""
    sweep: bool = True
    grace_ms: int = parse_duration_ms("grace", "1 day")
    retain_ms: int = parse_duration_ms("retain", "30 days")
    completed_ms: int = parse_duration_ms("keep_completed", KEEP_COMPLETED)


DEFAULTS: Final = RetentionOptions()


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """What a run did with a stream."""

    explanation: RetentionExplanation
    truncated: TruncationResult | None = None
    sampled: bool = False
    swept: SweepResult | None = None

    def row(self) -> dict[str, Any]:
        """Return it as a row of ROW_SCHEMA."""
        swept = self.swept
        return {
            **self.explanation.row(),
            "version": None if self.truncated is None else self.truncated.version,
            "sampled": self.sampled,
            "swept_files": 0 if swept is None else swept.files,
            "swept_bytes": 0 if swept is None else swept.size_bytes,
        }


def decide(
    stream: StreamLog,
    options: RetentionOptions = DEFAULTS,
    *,
    now_ms: int | None = None,
    life: int | None = None,
) -> RetentionExplanation:
    """Decide on a stream and change nothing.

    ``now_ms`` is the time to decide for, by default never later than it is (ADR 14); ``life`` the
    one that the call was made for, by default the present one. Raises NoSuchStream, StaleIdentity,
    and CorruptLog for a log that cannot be read.
    """
    return _Plan(stream, stream.view(life=life), options, now_ms, keep=False).explain()


def act(
    stream: StreamLog,
    options: RetentionOptions = DEFAULTS,
    *,
    now_ms: int | None = None,
    life: int | None = None,
) -> RetentionResult:
    """Decide on a stream, truncate it and sample its tail in one commit, and sweep it.

    A run after a run has nothing left to do. ``life`` is the one that the call was made for, by
    default the present one. Raises what :func:`decide` does, what a commit
    raises, and TooBusy if subscribers or the head move all the time.
    """
    for _ in range(RETENTION_ATTEMPTS):
        view = stream.view(life=life)
        life = view.life
        plan = _Plan(stream, view, options, now_ms, keep=True)
        explanation = plan.explain()
        failpoint("retention.decided")
        done = plan.carry_out(explanation)
        if done is not None:
            break
    else:
        raise TooBusy(
            f"stream {stream.name}: the head or its subscribers moved {RETENTION_ATTEMPTS} times "
            "while its retention was decided; nothing was truncated; try again."
        )
    if not options.sweep:
        return done
    failpoint("retention.truncated")
    sweeper.sweep_transactions(stream, life=life)
    swept = stream_sweep.sweep_stream(
        stream,
        grace_ms=options.grace_ms,
        retain_ms=options.retain_ms,
        completed_ms=options.completed_ms,
        life=life,
    )
    return replace(done, swept=swept)


class _Plan:
    """A decision on one view of a stream, and what is needed to tell about it and to do it."""

    def __init__(
        self,
        stream: StreamLog,
        view: StreamView,
        options: RetentionOptions,
        now_ms: int | None,
        *,
        keep: bool,
    ) -> None:
        self._stream = stream
        self._view = view
        self._options = options
        self._times = VersionAges.read(stream.log, now_ms=now_ms, keep=keep)
        self._now_ms = self._times.now_ms
        self._policy = view.record.configuration.retention
        self._past = RetentionHistory(stream, view, self._times)
        self._ages = dict[StreamCut, float]()
        self._idle = [s for s in view.subscribers if self._is_idle(s)]
        self._bounds = {
            record.group: self._bound_of(record.bound)
            for record in view.subscribers
            if record.bound is not None and record not in self._idle
        }
        self._sizes = {(s, view.record.head[s]): b for s, b in view.record.head_sizes.items()}
        for record in view.subscribers:
            if record.bound is not None:
                for segment_id, size in record.bound.sizes.items():
                    self._sizes[segment_id, record.bound.positions[segment_id]] = size

    @property
    def _waits(self) -> bool:
        return self._view.record.state is StreamState.SEALING

    def _is_idle(self, record: SubscriberRecord) -> bool:
        if self._options.expire_ms is None or self._waits or self._policy is None:
            return False
        if self._now_ms - self._seen_ms(record) <= self._options.expire_ms:
            return False
        if record.bound is None:
            return True
        # Who has read everything has nothing to publish, and may be as alive as anybody.
        return 1_000 * self._age(self._bound_of(record.bound)) > self._options.expire_ms

    def _seen_ms(self, record: SubscriberRecord) -> int:
        """Return a time at or after which the subscriber was last heard of."""
        said_ms = max(record.since_ms, record.published_ms or 0)
        if 0 <= self._now_ms - said_ms <= (self._options.expire_ms or 0):
            return said_ms  # it spares the question
        seen_ms = self._times.written_ms(max(record.since_version, record.published_version or 0))
        if record.published_ms is None or record.published_version is not None:
            return seen_ms
        return max(seen_ms, record.published_ms if said_ms <= self._now_ms else 0)

    def _bound_of(self, bound: SizedCut) -> LocatedCut:
        """Return the cut from which a subscriber holds data, never below the head."""
        view = self._view
        return locate(view, bound.cut(view.stream, view.life)).raised_to_head()

    def bytes_at(self, segment_id: int, offset: int) -> int:
        """Return the bytes of a segment before an offset: from the log's state if it tells."""
        found = self._sizes.get((segment_id, offset))
        if found is None:
            found = self._past.sizes.get((segment_id, offset))
        if found is None:
            found = self._stream.bytes_at(segment_id, offset, self._view)
            self._sizes[segment_id, offset] = found
        return found

    def explain(self) -> RetentionExplanation:
        """Decide, and tell."""
        view, policy, idle = self._view, self._policy, tuple(s.group for s in self._idle)
        if policy is None or self._waits:
            rule = RetentionRule.NO_POLICY if policy is None else RetentionRule.SEALING
            stays = self._amount(view.located_head)
            claims = (RetentionClaim(rule.value, view.head, stays),) if stays.events else ()
            told = view.head, None, DataAmount(), stays, claims
            return RetentionExplanation(view.stream, view.version, policy, rule, *told)
        found = self._decide(policy)
        goes = DataAmount() if found.cut is None else self._amount(view.located_head, found.cut)
        moves = bool(goes.events)  # the same place may be said in other words after a scale
        head = found.cut if moves and found.cut is not None else view.located_head
        passed = passed_subscribers(view, head) if moves else ()
        return RetentionExplanation(
            view.stream,
            view.version,
            policy,
            found.rule,
            view.head,
            head.cut if moves else None,
            goes,
            self._amount(head),
            self._claims(found, head),
            tuple(s.group for s in passed if s.group not in idle),
            idle,
        )

    def _decide(self, policy: RetentionPolicy) -> TruncationDecision:
        bound = lowest(self._bounds.values()) if self._bounds else None
        return truncation_decision.decide(
            Situation(
                self._view,
                policy,
                self._past,
                bound,
                self._now_ms,
                self.bytes_at,
                self._offset_after,
            )
        )

    def _offset_after(self, segment_id: int, start: int, end: int, size_bytes: int) -> int:
        """Return the first offset of a range with so many bytes of the segment before it."""
        rng = SegmentRange(self._stream.name, self._view.life, segment_id, start, end)
        offset, size = self._stream.offset_after(rng, size_bytes)
        self._sizes[segment_id, offset] = size
        return offset

    def _amount(self, start: LocatedCut, end: LocatedCut | None = None) -> DataAmount:
        end = end or locate(self._view, self._view.tail)
        events = start.events_to(end)
        if not events:
            return DataAmount()
        return DataAmount(events, start.bytes_to(end, self.bytes_at), self._age(start))

    def _age(self, start: LocatedCut) -> float:
        """Return the age in seconds of the oldest event after a cut."""

        def is_passed(entry: truncation_decision.RetentionEntry) -> bool:
            return start.is_at_or_after(locate(self._view, entry.cut))

        if start.cut not in self._ages:
            _, following = self._past.around(is_passed)
            since_ms = self._now_ms if following is None else self._past.written_ms(following)
            self._ages[start.cut] = (self._now_ms - since_ms) / 1_000
        return self._ages[start.cut]

    def _claims(self, found: TruncationDecision, head: LocatedCut) -> tuple[RetentionClaim, ...]:
        """Return who holds something of what stays, the largest first."""
        view, policy = self._view, self._policy
        assert policy is not None
        holders = {f"subscriber {name}": cut for name, cut in self._bounds.items()}
        if policy.minimum:
            holders["minimum"] = found.minimum or view.located_head
        if policy.type is RetentionType.CONSUMPTION and not self._bounds:
            holders[RetentionRule.NO_SUBSCRIBER.value] = head
        claims = []
        for holder, cut in holders.items():
            start = cut if cut.is_at_or_after(head) else head
            holds = self._amount(start)
            if holds.events:
                claims.append(RetentionClaim(holder, start.cut, holds))
        claims.sort(key=lambda claim: (-claim.holds.events, claim.holder))
        return tuple(claims)

    def carry_out(self, explanation: RetentionExplanation) -> RetentionResult | None:
        """Commit what was decided; None if that holds no more."""
        if explanation.rule in (RetentionRule.NO_POLICY, RetentionRule.SEALING):
            return RetentionResult(explanation)

        def extra_domains(view: StreamView) -> Mapping[str, str | None] | None:
            if not self._holds(view):
                return None
            return {**self._sample(view, explanation.cut or view.head), **self._removals()}

        if explanation.cut is None:
            domains = self._commit(extra_domains)
            return (
                None
                if domains is None
                else RetentionResult(explanation, None, _has_sample(domains))
            )
        done = move_head(
            self._stream,
            self._view,
            explanation.cut,
            by=BY,
            allowed=explanation.passed,
            expired=explanation.idle,
            bytes_at=self.bytes_at,
            extra_domains=extra_domains,
            reason=explanation.rule.value,
        )
        if done is None:
            return None
        truncated, domains = done
        return RetentionResult(explanation, truncated, _has_sample(domains))

    def _holds(self, view: StreamView) -> bool:
        """Tell whether the decision is right for a later view as well.

        Events that come only add to what stays, and who consumes more holds less.
        """
        before = {record.group: record for record in self._view.subscribers}
        return (
            _basis(view) == _basis(self._view)
            and all(_goes_on(before.get(now.group), now) for now in view.subscribers)
            and all(view.subscriber(record.group) == record for record in self._idle)
        )

    def _commit(self, extra_domains: ExtraDomains) -> Mapping[str, str | None] | None:
        """Commit a sample or removals, if there are any; None if the decision holds no more."""

        def decide(view: StreamView) -> Proposal[Mapping[str, str | None] | None]:
            domains = extra_domains(view)
            if not domains:
                return None, domains
            told = {"expired": [s.group for s in self._idle]} if self._idle else {}
            return Body("SAMPLE", told, domains=domains), domains

        return self._stream.commit(decide, life=self._view.life).value

    def _removals(self) -> dict[str, str | None]:
        return {
            f"{SUBSCRIBER_PREFIX}{record.group}": replace(
                record, hold=None, published=None, removed=IDLE
            ).encode()
            for record in self._idle
        }

    def _sample(self, view: StreamView, head: StreamCut) -> dict[str, str | None]:
        """Return a sample of the tail, if one is due, and without those too many.

        It is the tail that the decision looked at, before it asked for the time: what is newer may
        have come after a stall, and would be dated too early.
        """
        samples, seen = view.samples, self._view
        newest = samples[-1] if samples else None
        if newest is not None:
            is_due = not 0 <= self._now_ms - newest.time_ms < self._options.sample_every_ms
            if not is_due or newest.version > seen.version:
                return {}
            if newest.tail.positions == seen.tail.positions:
                return {}
        if locate(seen, head).canonical().is_at_or_after(locate(seen, seen.tail)):
            return {}
        sizes = {s: seen.segment(s).size_bytes for s in seen.active.segment_ids}
        tail = seen.sized(seen.tail, lambda segment_id, _: sizes[segment_id])
        time_ms = self._times.latest_ms
        if not self._stream.store.has_clock:
            time_ms = max(time_ms, seen.timestamp_ms)
        record = SampleRecord(seen.version + 1, time_ms, seen.total_bytes, tail)
        domains: dict[str, str | None] = {}
        if len(samples) >= MAX_SAMPLES:
            thinned = samples[1 : len(samples) // 2 : 2]
            domains = {f"{SAMPLE_PREFIX}{old.version}": None for old in thinned}
        return {**domains, f"{SAMPLE_PREFIX}{record.version}": record.encode()}


def _has_sample(domains: Mapping[str, str | None]) -> bool:
    return any(name.startswith(SAMPLE_PREFIX) for name in domains)


def _basis(view: StreamView) -> tuple[object, ...]:
    record = view.record
    return record.life, record.state, record.configuration.retention, dict(record.head)


def _goes_on(before: SubscriberRecord | None, now: SubscriberRecord) -> bool:
    """Tell whether a subscriber is as it was, or has published more, which never goes back."""
    if before is None or before.bound is None:
        return now == before
    return now.generation == before.generation
