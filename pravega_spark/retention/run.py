"""A retention run on one stream: decide, truncate and sample in one commit, and sweep.

A run reads nothing but the stream's log and may be killed at any time; two runs may work on one
stream at once.

Commits a retention plan: the truncation, expiries of subscribers, and a sample in one commit. The
commit is made only while the plan's decision holds: head, policy and state are unchanged, and,
under a policy by consumption, no subscriber needs more data.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from pravega_spark.config.policies import RetentionPolicy
from pravega_spark.config.root_settings import (
    EffectiveSettings,
    GivenSettings,
    SettingSources,
    parse_flags,
)
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.log.retained import VersionAges
from pravega_spark.engine.log.sweep import SweepResult
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.store.reserve import frees
from pravega_spark.engine.stream import stream_sweep
from pravega_spark.engine.stream.configuration import log_flags, read_sources
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
from pravega_spark.errors import TooBusy
from pravega_spark.retention.explanation import PassedSubscriber, RetentionExplanation, policy_text
from pravega_spark.retention.plan import (
    RetentionPlan,
    StreamAmounts,
    explain_passed,
    plan_retention,
)
from pravega_spark.txn import sweeper
from pravega_spark.values.checks import check_flag
from pravega_spark.values.limits import MAX_SAMPLES, RETENTION_ATTEMPTS


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """The options of a run. A setting that no flag gives is the stream's or the root's."""

    flags: GivenSettings = field(default_factory=dict)
    sweep: bool = True
    root: GivenSettings | None = None
    """The settings of the root, if the caller has read them for many streams."""

    def settings(self, stream: StreamLog, view: StreamView) -> EffectiveSettings:
        """Return the settings that hold for a run on a view."""
        if self.root is None:
            sources = read_sources(stream, self.flags)
        else:
            sources = SettingSources(self.root, self.flags)
        return sources.of_stream(view.record.configuration.settings)


DEFAULTS: Final = RetentionOptions()


def parse_options(*, sweep: bool = True, **flags: str | float | None) -> RetentionOptions:
    """Return the options of a run from its flags, by the names of the settings.

    A flag is a duration such as ``"30 min"``, or seconds; None leaves the setting as it is.
    """
    return RetentionOptions(parse_flags(flags), check_flag("sweep", sweep))


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
    held = view.kept_place
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
    record = SampleRecord(
        version=planned.version + 1, time_ms=time_ms, size_bytes=planned.total_bytes, tail=tail
    )
    domains: dict[str, str | None] = {}
    if len(samples) >= MAX_SAMPLES:
        thinned = samples[1 : len(samples) // 2 : 2]
        domains = {f"{SAMPLE_PREFIX}{old.version}": None for old in thinned}
    return {**domains, f"{SAMPLE_PREFIX}{record.version}": record.encode()}


def _has_sample(domains: Domains) -> bool:
    return any(name.startswith(SAMPLE_PREFIX) for name in domains)


logger = own_logger(__name__)


@dataclass(frozen=True, slots=True)
class RetentionResult:
    """What a run did with a stream."""

    explanation: RetentionExplanation
    truncated: TruncationResult | None = None
    sampled: bool = False
    swept: SweepResult | None = None
    settings: EffectiveSettings = field(default_factory=EffectiveSettings)
    """The settings that held for the run."""

    def row(self) -> dict[str, Any]:
        """Return the result as a record.

        ``version`` is that of the commit that truncated, None without one. ``pending`` says which
        removed files the sweep could not delete yet, why, and from when it can; ``unmoved`` why it
        moved neither the horizon nor a mark. ``settings`` are those that are not the defaults, each
        with its origin.
        """
        swept = self.swept
        pending = () if swept is None else swept.pending
        return {
            **self.explanation.row(),
            "version": None if self.truncated is None else self.truncated.version,
            "sampled": self.sampled,
            "swept_files": 0 if swept is None else swept.files,
            "swept_bytes": 0 if swept is None else swept.size_bytes,
            "pending_files": sum(part.files for part in pending),
            "pending_bytes": sum(part.size_bytes for part in pending),
            "pending": "; ".join(map(str, pending)),
            "unmoved": "" if swept is None else swept.unmoved,
            "settings": self.settings.summary(),
        }


def explain_retention(
    stream: StreamLog,
    options: RetentionOptions = DEFAULTS,
    *,
    policy: RetentionPolicy | None = None,
    now_ms: int | None = None,
    life: int | None = None,
) -> RetentionExplanation:
    """Decide on a stream, change nothing, and explain it: see :func:`dry_run_retention`."""
    alone = replace(options, sweep=False)
    found = dry_run_retention(stream, alone, policy=policy, now_ms=now_ms, life=life)
    return found.explanation


def dry_run_retention(
    stream: StreamLog,
    options: RetentionOptions = DEFAULTS,
    *,
    policy: RetentionPolicy | None = None,
    now_ms: int | None = None,
    life: int | None = None,
) -> RetentionResult:
    """Decide on a stream, look ahead at its sweep, and change nothing.

    The sweep is shown for the files that were removed so far, not for those of the decision.
    ``policy`` is the one to decide by, by default the stream's. ``now_ms`` is the time to decide
    for, by default one that is never later than the true time (ADR 14). ``life`` is the life that
    the call is meant for, by default the present one. Raises NoSuchStream, StaleIdentity, and
    CorruptLog for a log that cannot be read.
    """

    def decide(view: StreamView) -> RetentionResult:
        settings = options.settings(stream, view)
        ages = VersionAges.read(stream.log, now_ms=now_ms, keep=False)
        plan = plan_retention(stream, view, ages, settings.expire_ms, policy)
        return RetentionResult(plan.explanation, settings=settings)

    found = stream.on_newest(decide, life=life)
    if not options.sweep:
        return found
    ages = found.settings.grace_ms, found.settings.retain_ms
    return replace(found, swept=stream_sweep.preview_stream_sweep(stream, *ages, life=life))


def run_retention(
    stream: StreamLog,
    options: RetentionOptions = DEFAULTS,
    *,
    now_ms: int | None = None,
    life: int | None = None,
) -> RetentionResult:
    """Decide on a stream, truncate it and sample its tail in one commit, and sweep it.

    An immediate second run does nothing. The settings of the root and of the stream are read once;
    a flag of the options decides before them. Raises what :func:`explain_retention` and a commit
    raise, and TooBusy if the head, the policy, or subscribers that it waits for change at every
    attempt.
    """
    view = stream.view(life=life)
    life, settings = view.life, options.settings(stream, view)
    log_flags("retention", stream, settings)

    def decide(view: StreamView) -> RetentionPlan:
        ages = VersionAges.read(stream.log, now_ms=now_ms)
        return plan_retention(stream, view, ages, settings.expire_ms)

    for _ in range(RETENTION_ATTEMPTS):
        plan = stream.on_newest(decide, life=life)
        failpoint("retention.decided")
        done = commit_plan(stream, plan, settings.sample_every_ms)
        if done is not None:
            break
    else:
        raise TooBusy(
            f"stream {stream.name}: its head, policy or subscribers changed in each of "
            f"{RETENTION_ATTEMPTS} attempts to decide on its retention; nothing was truncated. "
            "Try again."
        )
    explanation = replace(plan.explanation, passed=done.passed)
    result = RetentionResult(explanation, done.truncated, done.sampled, settings=settings)
    _log_passed(explanation)
    if not options.sweep:
        return result
    failpoint("retention.truncated")
    sweeper.sweep_transactions(stream, prepared_limit_ms=settings.prepared_limit_ms, life=life)
    swept = stream_sweep.sweep_stream(
        stream,
        grace_ms=settings.grace_ms,
        retain_ms=settings.retain_ms,
        completed_ms=settings.keep_completed_ms,
        records_ms=settings.records_ms(),
        life=life,
    )
    return replace(result, swept=swept)


def _log_passed(explanation: RetentionExplanation) -> None:
    """Log which subscribers lost data: a warning if the policy is to wait for them."""
    policy, passed = explanation.policy, explanation.passed
    if policy is None or not passed:
        return
    logger.log(
        logging.WARNING if policy.waits_for_subscribers else logging.INFO,
        "retention of %s %s deleted unread data of %s (%s)",
        explanation.stream,
        policy_text(policy),
        "; ".join(map(str, passed)),
        explanation.rule.value,
        extra=log_fields("retention", explanation.stream),
    )
