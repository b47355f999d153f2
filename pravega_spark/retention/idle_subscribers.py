"""Which subscribers expire: they published nothing for a long time, although they have data."""

from __future__ import annotations

from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.log.version_ages import VersionAges
from pravega_spark.engine.stream.records import SizedCut, SubscriberRecord
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.names import FOLD_SUBSCRIBER
from pravega_spark.retention.stream_amounts import StreamAmounts


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
        if record.name != FOLD_SUBSCRIBER
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
