"""Decides on one version of a stream, and explains the decision by amounts and claims."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pravega_spark.config.policies import RetentionPolicy
from pravega_spark.engine.kinds import KEEPERS
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.stream.records import SizedCut, StreamState, SubscriberRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import passed_subscribers
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.retention.decision import (
    RetentionEntry,
    RetentionRule,
    TruncationDecision,
    TruncationInputs,
    decide_truncation,
    lower_bound_of,
    upper_bound_of,
)
from pravega_spark.retention.explanation import (
    DataAmount,
    PassedSubscriber,
    RetentionClaim,
    RetentionExplanation,
)
from pravega_spark.retention.retention_set import LogRetentionSet
from pravega_spark.values.segments import SegmentRange, StreamCut


class StreamAmounts:
    """Amounts at one version of a stream; remembers sizes, so that few chunks are read."""

    @classmethod
    def read(cls, stream: StreamLog, view: StreamView, ages: VersionAges) -> StreamAmounts:
        """Return the amounts of a version, at the time of ``ages``; reads nothing yet."""
        return cls(stream, view, LogRetentionSet(stream, view, ages), ages.now_ms)

    def __init__(
        self, stream: StreamLog, view: StreamView, entries: LogRetentionSet, now_ms: int
    ) -> None:
        """Take the sizes that the version's records name; reads nothing."""
        self._stream = stream
        self._view = view
        self.entries = entries
        self._now_ms = now_ms
        self._ages = dict[tuple[StreamCut, StreamCut], float]()
        self._sizes = dict[tuple[int, int], int]()
        for record in view.subscribers:
            if record.bound is not None:
                for segment_id, size in record.bound.sizes.items():
                    self._sizes[segment_id, record.bound.positions[segment_id]] = size

    def bytes_at(self, segment_id: int, offset: int) -> int:
        """Return the bytes of a segment before an offset, from records where they name them."""
        found = self._sizes.get((segment_id, offset))
        if found is None:
            found = self.entries.sizes.get((segment_id, offset))
        if found is None:
            found = self._stream.bytes_at(segment_id, offset, self._view)
            self._sizes[segment_id, offset] = found
        return found

    def offset_after(self, segment_id: int, start: int, end: int, size_bytes: int) -> int:
        """Return the first offset of a range with at least these bytes of the segment before it."""
        rng = SegmentRange(
            self._stream.name, life=self._view.life, segment_id=segment_id, start=start, end=end
        )
        offset, size = self._stream.offset_after(rng, size_bytes)
        self._sizes[segment_id, offset] = size
        return offset

    def amount(self, start: LocatedCut, end: LocatedCut | None = None) -> DataAmount:
        """Return the amount of data between two cuts; without ``end``, up to the tail."""
        events = start.events_to(end or self._view.located_tail)
        if not events:
            return DataAmount()
        size_bytes = start.bytes_to(end or self._view.located_tail, self.bytes_at)
        return DataAmount(events, size_bytes, self.age_seconds(start, end))

    def age_seconds(self, start: LocatedCut, end: LocatedCut | None = None) -> float:
        """Return the age of the oldest event between two cuts; without ``end``, up to the tail.

        Where a scale made an entry and no event lies between, the entry passes: cuts are compared
        in the one form that a position has, in which successors replace finished segments.
        """
        key = start.cut, self._view.tail if end is None else end.cut
        first = start.canonical()

        def is_passed(entry: RetentionEntry) -> bool:
            reached = locate(self._view, entry.cut)
            return first.is_at_or_after(reached if end is None else lower_bound_of((reached, end)))

        if key not in self._ages:
            _, after = self.entries.partition(is_passed)
            since_ms = self._now_ms if after is None else self.entries.written_ms(after)
            self._ages[key] = (self._now_ms - since_ms) / 1_000
        return self._ages[key]


def idle_subscribers(
    view: StreamView, ages: VersionAges, amounts: StreamAmounts, expire_ms: int
) -> tuple[SubscriberRecord, ...]:
    """Return the subscribers that published nothing for longer than ``expire_ms``.

    A caught-up subscriber has nothing to publish, so silence alone does not make it idle: an event
    must have waited for it as long. The fold of a table never expires: the table would lose what
    is not folded yet.
    """
    return tuple(
        record
        for record in view.subscribers
        if record.name not in KEEPERS
        and ages.now_ms - _last_seen_ms(record, ages, expire_ms) > expire_ms
        and (
            record.bound is None
            or 1_000 * amounts.age_seconds(held_from(view, record.bound)) > expire_ms
        )
    )


def held_from(view: StreamView, bound: SizedCut) -> LocatedCut:
    """Return the cut from which a subscriber holds data, never below the head."""
    return locate(view, bound.cut(view.stream, view.life)).raised_to_head()


def _last_seen_ms(record: SubscriberRecord, ages: VersionAges, expire_ms: int) -> int:
    """Return a time at or after the subscriber's last commit.

    The record's own times come from the clocks of hosts. One of the recent past suffices to keep
    the subscriber; otherwise the age of its last version decides, which costs a storage call.
    """
    recorded_ms = max(record.since_ms, record.published_ms or 0)
    if 0 <= ages.now_ms - recorded_ms <= expire_ms:
        return recorded_ms
    written_ms = ages.written_ms(max(record.since_version, record.published_version or 0))
    if record.published_ms is None or record.published_version is not None:
        return written_ms
    return max(written_ms, record.published_ms if recorded_ms <= ages.now_ms else 0)


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """A decision on one version of a stream, and what its commit needs."""

    view: StreamView
    ages: VersionAges
    amounts: StreamAmounts
    idle: tuple[SubscriberRecord, ...]
    """The subscribers that expire."""
    explanation: RetentionExplanation

    @property
    def policy(self) -> RetentionPolicy:
        """The policy that decided; there is one unless the plan changes nothing."""
        assert self.explanation.policy is not None
        return self.explanation.policy

    @property
    def changes_nothing(self) -> bool:
        """Whether the stream has no policy, or waits for the end of its sealing."""
        return self.explanation.rule in (RetentionRule.NO_POLICY, RetentionRule.SEALING)


def plan_retention(
    stream: StreamLog,
    view: StreamView,
    ages: VersionAges,
    expire_ms: int | None,
    policy: RetentionPolicy | None = None,
) -> RetentionPlan:
    """Decide on a version of a stream; ``expire_ms`` None lets no subscriber expire.

    ``policy`` is the one to decide by, by default the stream's.
    """
    policy = policy or view.record.configuration.retention
    amounts = StreamAmounts.read(stream, view, ages)
    if policy is None or view.record.state is StreamState.SEALING:
        rule = RetentionRule.NO_POLICY if policy is None else RetentionRule.SEALING
        unchanged = _explain_unchanged(view, policy, rule, amounts)
        return RetentionPlan(view, ages, amounts, (), unchanged)
    idle = () if expire_ms is None else idle_subscribers(view, ages, amounts, expire_ms)
    held = {
        record.name: held_from(view, record.bound)
        for record in view.subscribers
        if record.bound is not None and record not in idle
    }
    inputs = TruncationInputs(
        layout=view,
        policy=policy,
        entries=amounts.entries,
        lower_bound=lower_bound_of(held.values())
        if held and policy.waits_for_subscribers
        else None,
        now_ms=ages.now_ms,
        bytes_at=amounts.bytes_at,
        offset_after=amounts.offset_after,
        shared_state=None if view.kept_place is None else locate(view, view.kept_place),
    )
    explanation = _explain(
        view, policy, decision=decide_truncation(inputs), amounts=amounts, held=held, idle=idle
    )
    return RetentionPlan(view, ages, amounts, idle, explanation)


def _explain_unchanged(
    view: StreamView, policy: RetentionPolicy | None, rule: RetentionRule, amounts: StreamAmounts
) -> RetentionExplanation:
    stays = amounts.amount(view.located_head)
    claims = (RetentionClaim(rule.value, view.head, stays),) if stays.events else ()
    return RetentionExplanation(
        stream=view.stream,
        version=view.version,
        policy=policy,
        rule=rule,
        head=view.head,
        cut=None,
        goes=DataAmount(),
        stays=stays,
        claims=claims,
    )


def _explain(
    view: StreamView,
    policy: RetentionPolicy,
    decision: TruncationDecision,
    amounts: StreamAmounts,
    held: Mapping[str, LocatedCut],
    idle: tuple[SubscriberRecord, ...],
) -> RetentionExplanation:
    head, goes = view.located_head, DataAmount()
    if decision.cut is not None:
        goes = amounts.amount(head, decision.cut)
    moves = bool(goes.events)  # after a scale, another cut may name the head's position
    if moves and decision.cut is not None:
        head = decision.cut
    idle_names = tuple(record.name for record in idle)
    return RetentionExplanation(
        stream=view.stream,
        version=view.version,
        policy=policy,
        rule=decision.rule,
        head=view.head,
        cut=head.cut if moves else None,
        goes=goes,
        stays=amounts.amount(head),
        claims=_claims(view, policy, decision=decision, amounts=amounts, held=held, head=head),
        passed=explain_passed(view, head, amounts, idle_names) if moves else (),
        idle=idle_names,
    )


def explain_passed(
    view: StreamView, head: LocatedCut, amounts: StreamAmounts, expired: Collection[str]
) -> tuple[PassedSubscriber, ...]:
    """Return the subscribers that a new head passes, with what each loses, by name."""
    found = []
    for record in passed_subscribers(view, head):
        if record.bound is not None and record.name not in expired:
            start = held_from(view, record.bound)
            loses = amounts.amount(start, upper_bound_of(start, head))
            found.append(PassedSubscriber(record.name, start.cut, loses))
    return tuple(found)


def _claims(
    view: StreamView,
    policy: RetentionPolicy,
    decision: TruncationDecision,
    amounts: StreamAmounts,
    held: Mapping[str, LocatedCut],
    head: LocatedCut,
) -> tuple[RetentionClaim, ...]:
    """Return the holders of data after the new head, the largest first."""
    waits = policy.waits_for_subscribers
    holders = {f"subscriber {name}": cut for name, cut in held.items()} if waits else {}
    if view.kept_place is not None:
        holders["shared state"] = locate(view, view.kept_place)
    if policy.minimum:
        holders["minimum"] = decision.minimum or head
    if waits and not held:
        holders[RetentionRule.NO_SUBSCRIBER.value] = head
    claims = []
    for holder, cut in holders.items():
        start = cut if cut.is_at_or_after(head) else head
        holds = amounts.amount(start)
        if holds.events:
            claims.append(RetentionClaim(holder, start.cut, holds))
    claims.sort(key=lambda claim: (-claim.holds.events, claim.holder))
    return tuple(claims)
