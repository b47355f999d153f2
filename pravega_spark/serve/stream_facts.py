"""What of a stream needs attention, from one view of it: no storage call but for open transactions.

A stream near the maximum of its retention is one whose subscribers have not read what a run of
retention will soon delete. Transactions are judged by their leases, as the storage dates them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import LimitUnit
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.stream.overdue_maintenance import needed_kinds
from pravega_spark.engine.stream.records import SubscriberRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import marks_of
from pravega_spark.errors import PravegaSparkError
from pravega_spark.txn.leases import extended_ms
from pravega_spark.values.segments import StreamCut

SHOWN_TRANSACTIONS: Final = 16
"""The most transactions of a stream that are kept: those whose leases end first."""


@dataclass(frozen=True, slots=True)
class LeaseFact:
    """An open transaction, and when it ends without its writer, in ms since 1970."""

    transaction: str
    writer: str | None
    ends_ms: int
    lease_ms: int
    is_limit: bool
    """Whether it ends then whatever the writer does: at its maximum execution time."""


@dataclass(frozen=True, slots=True)
class MaximumFact:
    """How near a subscriber's unread events are to the maximum: 1 is where they are deleted."""

    subscriber: str
    part: float | None
    """By size; None for a policy by time, which ages."""
    oldest_ms: int | None
    """A time by which the oldest unread events were written, for a policy by time."""
    maximum: int

    def at(self, now_ms: int) -> float:
        """Return the part of the maximum that is reached at a time."""
        if self.part is not None:
            return self.part
        assert self.oldest_ms is not None
        return max(0.0, (now_ms - self.oldest_ms) / self.maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFacts:
    """A stream as a look found it; with a ``problem``, its log could not be read."""

    name: str
    looked_ms: int
    problem: str = ""
    is_damaged: bool = False
    created_ms: int = 0
    committed_ms: int = 0
    """The time of the newest commit."""
    leases: tuple[LeaseFact, ...] = ()
    transactions: int = 0
    maximum: MaximumFact | None = None
    needs: frozenset[MaintenanceKind] = frozenset()


def facts_of(stream: StreamLog, view: StreamView, looked_ms: int) -> StreamFacts:
    """Return what a view says; one storage call if it has open transactions.

    Raises Damaged, StoreError, and BudgetSpent.
    """
    pinged = extended_ms(stream, view) if view.transactions else {}
    needs = {*needed_kinds(view.record.configuration)}
    if view.transactions:
        needs.add(MaintenanceKind.TRANSACTIONS)
    if marks_of(view):
        needs.add(MaintenanceKind.WATERMARKS)
    return StreamFacts(
        name=view.stream,
        looked_ms=looked_ms,
        created_ms=view.record.created_ms,
        committed_ms=view.timestamp_ms,
        leases=_leases(view, pinged),
        transactions=len(view.transactions),
        maximum=_maximum(view),
        needs=frozenset(needs),
    )


def _leases(view: StreamView, pinged: Mapping[str, int]) -> tuple[LeaseFact, ...]:
    found = []
    for name, opened in view.transactions.items():
        ends_ms = pinged.get(name, opened.created_ms) + opened.lease_ms
        is_limit = opened.limit_ms < ends_ms
        ends_ms = min(ends_ms, opened.limit_ms)
        found.append(LeaseFact(name, opened.writer_id, ends_ms, opened.lease_ms, is_limit))
    return tuple(sorted(found, key=lambda lease: lease.ends_ms)[:SHOWN_TRANSACTIONS])


def _maximum(view: StreamView) -> MaximumFact | None:
    """Return the subscriber that is nearest to losing unread events to the maximum."""
    policy = view.record.configuration.retention
    if policy is None or not policy.waits_for_subscribers or policy.maximum is None:
        return None
    found: MaximumFact | None = None
    for subscriber in view.subscribers:
        fact = None
        with contextlib.suppress(PravegaSparkError):  # such as a cut of before a restore
            fact = _nearness(view, subscriber, policy.unit, policy.maximum)
        if fact is not None and (found is None or _is_nearer(fact, found)):
            found = fact
    return found


def _is_nearer(fact: MaximumFact, other: MaximumFact) -> bool:
    if fact.part is not None and other.part is not None:
        return fact.part > other.part
    return (fact.oldest_ms or 0) < (other.oldest_ms or 0)


def _nearness(
    view: StreamView, subscriber: SubscriberRecord, unit: LimitUnit, maximum: int
) -> MaximumFact | None:
    bound = subscriber.bound
    if bound is None:
        return None
    cut = locate(view, bound.cut(view.stream, view.life)).above_head()
    if not cut.events_to(view.located_tail):
        return None
    if unit is LimitUnit.SIZE_BYTES:

        def bytes_at(segment_id: int, offset: int) -> int:
            if bound.positions.get(segment_id) == offset and segment_id in bound.sizes:
                return bound.sizes[segment_id]
            return view.record.head_sizes.get(segment_id, 0)

        size_bytes = cut.bytes_to(view.located_tail, bytes_at)
        return MaximumFact(subscriber.name, size_bytes / maximum, None, maximum)
    oldest_ms = _written_by_ms(view, cut)
    return None if oldest_ms is None else MaximumFact(subscriber.name, None, oldest_ms, maximum)


def _written_by_ms(view: StreamView, cut: LocatedCut) -> int | None:
    """Return the time of the first sample of the retention set that lies after a cut."""
    for sample in view.samples:
        with contextlib.suppress(PravegaSparkError):
            at = locate(view, StreamCut(view.stream, view.life, sample.tail.positions)).above_head()
            if at.is_at_or_after(cut) and cut.events_to(at):
                return sample.time_ms
    return None
