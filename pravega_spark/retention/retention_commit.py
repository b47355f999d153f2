"""Commits a retention plan: the truncation, expiries of subscribers, and a sample in one commit.

The commit is made only while the plan's decision holds: head, policy and state are unchanged, and,
under a policy by consumption, no subscriber needs more data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit_log import Proposal
from pravega_spark.engine.store.reserve import frees
from pravega_spark.engine.stream.records import (
    SAMPLE_PREFIX,
    SUBSCRIBER_PREFIX,
    SampleRecord,
    SubscriberRecord,
)
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import IDLE
from pravega_spark.engine.stream.truncation import (
    BY_RETENTION,
    ExtraDomains,
    TruncationResult,
    move_head,
)
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.limits import MAX_SAMPLES
from pravega_spark.retention.explanation import PassedSubscriber
from pravega_spark.retention.retention_plan import RetentionPlan, explain_passed
from pravega_spark.retention.stream_amounts import StreamAmounts

Domains = Mapping[str, "str | None"]


class RetentionCommit(NamedTuple):
    """What the commit of a plan did."""

    truncated: TruncationResult | None
    sampled: bool
    passed: tuple[PassedSubscriber, ...] = ()
    """The subscribers that the truncation passed, in the version before it."""


@frees
def commit_plan(
    stream: StreamLog, plan: RetentionPlan, sample_every_ms: int
) -> RetentionCommit | None:
    """Commit a plan if it changes anything; return None if its decision no longer holds."""
    if plan.changes_nothing:
        return RetentionCommit(None, False)
    explanation = plan.explanation
    decided_on = plan.view

    def extra_domains(view: StreamView) -> Domains | None:
        nonlocal decided_on
        if not _still_holds(plan, view):
            return None
        decided_on = view
        return {**_sample(stream, plan, view, sample_every_ms), **_expiries(plan)}

    if explanation.cut is None:
        domains = _commit_domains(stream, plan, extra_domains)
        return None if domains is None else RetentionCommit(None, _has_sample(domains))
    done = move_head(
        stream,
        plan.view,
        explanation.cut,
        by=BY_RETENTION,
        allowed=_may_be_passed(plan),
        expired=explanation.idle,
        bytes_at=plan.amounts.bytes_at,
        extra_domains=extra_domains,
        reason=explanation.rule.value,
    )
    if done is None:
        return None
    truncated, domains = done
    passed = _passed(stream, plan, decided_on, truncated)
    return RetentionCommit(truncated, _has_sample(domains), passed)


def _may_be_passed(plan: RetentionPlan) -> tuple[str, ...] | None:
    """Return the subscribers that the truncation may pass, or None for all."""
    if not plan.policy.waits_for_subscribers:
        return None
    return tuple(found.subscriber for found in plan.explanation.passed)


def _passed(
    stream: StreamLog, plan: RetentionPlan, view: StreamView, truncated: TruncationResult
) -> tuple[PassedSubscriber, ...]:
    """Return whom the truncation of a version passed: others than planned, if they have moved."""
    if view.subscribers == plan.view.subscribers:
        return plan.explanation.passed
    amounts = StreamAmounts.read(stream, view, plan.ages)
    found = explain_passed(view, locate(view, truncated.head), amounts, plan.explanation.idle)
    return tuple(passed for passed in found if passed.subscriber in truncated.passed)


def _commit_domains(
    stream: StreamLog, plan: RetentionPlan, extra_domains: ExtraDomains
) -> Domains | None:
    """Commit a sample and expiries, if any; return None if the decision no longer holds."""

    def decide(view: StreamView) -> Proposal[Domains | None]:
        domains = extra_domains(view)
        if not domains:
            return None, domains
        parameters = {"expired": [record.name for record in plan.idle]} if plan.idle else {}
        return Body("SAMPLE", parameters, domains=domains), domains

    return stream.commit(decide, life=plan.view.life).value


def _still_holds(plan: RetentionPlan, view: StreamView) -> bool:
    """Return whether the decision is right for a later version, too.

    New events only add to the data that stays, and a subscriber that consumes more holds less. A
    policy by time or size depends on no subscriber.
    """
    before = {record.name: record for record in plan.view.subscribers}
    needing = view.subscribers if plan.policy.waits_for_subscribers else ()
    return (
        _decided_on(view) == _decided_on(plan.view)
        and all(_holds_no_more(before.get(now.name), now) for now in needing)
        and all(view.subscriber(record.name) == record for record in plan.idle)
    )


def _decided_on(view: StreamView) -> tuple[object, ...]:
    """Return what a decision depends on, except for events and subscribers."""
    record = view.record
    held = view.shared_state
    return record.life, record.state, record.configuration.retention, dict(record.head), held


def _holds_no_more(before: SubscriberRecord | None, now: SubscriberRecord) -> bool:
    """Return whether a subscriber is unchanged or has published since; cuts never go back."""
    if before is None or before.bound is None:
        return now == before
    return now.generation == before.generation


def _expiries(plan: RetentionPlan) -> dict[str, str | None]:
    return {
        f"{SUBSCRIBER_PREFIX}{record.name}": replace(
            record, hold=None, published=None, removed=IDLE
        ).encode()
        for record in plan.idle
    }


def _sample(
    stream: StreamLog, plan: RetentionPlan, view: StreamView, sample_every_ms: int
) -> dict[str, str | None]:
    """Return a sample of the tail if one is due, and without old samples if there are too many.

    The sample is of the version that the plan was made on, which was read before the time was: a
    later tail may be much newer than that time, and the sample would date it too early.
    """
    samples, planned = view.samples, plan.view
    newest = samples[-1] if samples else None
    if newest is not None:
        is_due = not 0 <= plan.ages.now_ms - newest.time_ms < sample_every_ms
        if not is_due or newest.version > planned.version:
            return {}
        if newest.tail.positions == planned.tail.positions:
            return {}
    head = planned.located_head
    if plan.explanation.cut is not None:
        head = locate(planned, plan.explanation.cut)
    if head.canonical().is_at_or_after(planned.located_tail):
        return {}
    sizes = {s: planned.segment(s).size_bytes for s in planned.active.segment_ids}
    tail = planned.sized(planned.tail, lambda segment_id, _: sizes[segment_id])
    time_ms = plan.ages.latest_ms
    if not stream.store.has_clock:
        time_ms = max(time_ms, planned.timestamp_ms)
    record = SampleRecord(planned.version + 1, time_ms, planned.total_bytes, tail)
    domains: dict[str, str | None] = {}
    if len(samples) >= MAX_SAMPLES:
        thinned = samples[1 : len(samples) // 2 : 2]
        domains = {f"{SAMPLE_PREFIX}{old.version}": None for old in thinned}
    return {**domains, f"{SAMPLE_PREFIX}{record.version}": record.encode()}


def _has_sample(domains: Domains) -> bool:
    return any(name.startswith(SAMPLE_PREFIX) for name in domains)
