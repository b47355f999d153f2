"""A retention run on one stream: decide, truncate and sample in one commit, and sweep.

A run reads nothing but the stream's log and may be killed at any time; two runs may work on one
stream at once.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from pravega_spark.engine.failpoints import failpoint
from pravega_spark.engine.log.table_sweep import SweepResult
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.stream import stream_sweep
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.stream_settings import log_flags
from pravega_spark.engine.stream.truncation import TruncationResult
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import TooBusy
from pravega_spark.limits import RETENTION_ATTEMPTS
from pravega_spark.policies import RetentionPolicy
from pravega_spark.retention.explanation import RetentionExplanation, policy_text
from pravega_spark.retention.retention_commit import commit_plan
from pravega_spark.retention.retention_options import DEFAULTS, RetentionOptions
from pravega_spark.retention.retention_plan import RetentionPlan, plan_retention
from pravega_spark.root_settings import EffectiveSettings
from pravega_spark.transactions import sweeper

logger = own_logger(__name__)

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
        ("pending_files", pa.int64()),
        ("pending_bytes", pa.int64()),
        ("pending", pa.string()),
        ("unmoved", pa.string()),
        ("settings", pa.string()),
    ]
)
"""A row for each stream. ``version`` is that of the commit that truncated, null without one.
``pending`` says which removed files the sweep could not delete yet, why, and from when it can;
``unmoved`` why it moved neither the horizon nor a mark.

``settings`` are those that are not the defaults, each with its origin."""


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
        """Return the result as a row of ROW_SCHEMA."""
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
