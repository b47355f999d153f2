"""Decides on one version of a stream, and explains the decision by amounts and claims."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.stream.records import StreamState, SubscriberRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import passed_subscribers
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.policies import RetentionPolicy
from pravega_spark.retention.cut_bounds import lower_bound_of, upper_bound_of
from pravega_spark.retention.explanation import (
    DataAmount,
    PassedSubscriber,
    RetentionClaim,
    RetentionExplanation,
)
from pravega_spark.retention.idle_subscribers import held_from, idle_subscribers
from pravega_spark.retention.stream_amounts import StreamAmounts
from pravega_spark.retention.truncation_decision import (
    RetentionRule,
    TruncationDecision,
    decide_truncation,
)
from pravega_spark.retention.truncation_inputs import TruncationInputs


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
        view,
        policy,
        amounts.entries,
        lower_bound_of(held.values()) if held and policy.waits_for_subscribers else None,
        ages.now_ms,
        amounts.bytes_at,
        amounts.offset_after,
        None if view.shared_state is None else locate(view, view.shared_state),
    )
    explanation = _explain(view, policy, decide_truncation(inputs), amounts, held, idle)
    return RetentionPlan(view, ages, amounts, idle, explanation)


def _explain_unchanged(
    view: StreamView, policy: RetentionPolicy | None, rule: RetentionRule, amounts: StreamAmounts
) -> RetentionExplanation:
    stays = amounts.amount(view.located_head)
    claims = (RetentionClaim(rule.value, view.head, stays),) if stays.events else ()
    return RetentionExplanation(
        view.stream, view.version, policy, rule, view.head, None, DataAmount(), stays, claims
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
        view.stream,
        view.version,
        policy,
        decision.rule,
        view.head,
        head.cut if moves else None,
        goes,
        amounts.amount(head),
        _claims(view, policy, decision, amounts, held, head),
        explain_passed(view, head, amounts, idle_names) if moves else (),
        idle_names,
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
    if view.shared_state is not None:
        holders["shared state"] = locate(view, view.shared_state)
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
