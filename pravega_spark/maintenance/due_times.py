"""When a kind of work is due again for a stream whose log gets no newer version.

A time may be too early, which costs a look, and should not be too late. What depends on ages that
nobody computed is looked at again once the stream has been idle for twice as long.
"""

from __future__ import annotations

from typing import Final

from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.policies import LimitUnit, RetentionType, ScalingType
from pravega_spark.retention.explanation import RetentionExplanation
from pravega_spark.root_settings import EffectiveSettings

ALWAYS: Final = 0
"""Due in every round."""
SELDOM: Final = 1 << 62
"""Due when the log has a newer version; a hint ends earlier in any case."""


def after_idle_time(view: StreamView, now_ms: int) -> int:
    """Return the time at which the stream will have been idle for twice as long as now."""
    return now_ms + max(0, now_ms - view.timestamp_ms)


def transactions_due(view: StreamView) -> int:
    """Return ALWAYS while a transaction is open: leases and decisions are no commits."""
    return ALWAYS if view.transactions else SELDOM


def scaling_due(view: StreamView) -> int:
    """Return ALWAYS while segments may turn cold and merge."""
    policy = view.record.configuration.scaling
    is_fixed = policy.type is ScalingType.FIXED or view.record.state is not StreamState.ACTIVE
    return SELDOM if is_fixed or len(view.active.segments) <= policy.minimum else ALWAYS


def retention_due(
    view: StreamView, explained: RetentionExplanation, settings: EffectiveSettings, now_ms: int
) -> int:
    """Return when the oldest event reaches a limit, a sample is due, or a subscriber expires.

    Events that are older than the limit and stay are held, or their commits are no longer told
    apart: when the next one may go is not known, so idle time decides. Subscribers that publish
    make a version, and so do events.
    """
    policy, stays = explained.policy, explained.stays
    if policy is None or view.record.state is StreamState.SEALING or not stays.events:
        return SELDOM
    times = [SELDOM]
    if policy.unit is LimitUnit.TIME_MS:
        age_ms = int(1_000 * stays.seconds)
        limits = [policy.minimum]
        if policy.type is RetentionType.CONSUMPTION and policy.maximum is not None:
            limits.append(policy.maximum)  # a policy by time alone ignores it
        times += [
            now_ms + limit - age_ms if limit >= age_ms else after_idle_time(view, now_ms)
            for limit in limits
        ]
    newest = view.samples[-1] if view.samples else None
    if newest is None or newest.tail.positions != view.tail.positions:
        since_ms = now_ms if newest is None else newest.time_ms
        times.append(since_ms + settings.sample_every_ms)
    if settings.expire_ms is not None:
        for record in view.subscribers:
            seen_ms = max(record.since_ms, record.published_ms or 0)
            ends_ms = seen_ms + settings.expire_ms
            times.append(ends_ms if ends_ms > now_ms else after_idle_time(view, now_ms))
    return min(times)
