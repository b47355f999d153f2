"""What of a stream needs attention, from one view of it, at the cost of few storage calls or none.

A stream near the maximum of its retention is one whose subscribers have not read what a run of
retention will soon delete. For a maximum age the oldest unread event counts: where it may be that
old, it is read, once for each position. Transactions are judged by their leases, as the storage
dates them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import LimitUnit
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.stream.backlog import oldest_written_ms
from pravega_spark.engine.stream.overdue_maintenance import needed_kinds
from pravega_spark.engine.stream.records import SubscriberRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import marks_of
from pravega_spark.errors import Damaged, PravegaSparkError, StoreError
from pravega_spark.serve.answer_texts import said
from pravega_spark.serve.call_budget import BudgetSpent
from pravega_spark.txn.leases import extended_ms
from pravega_spark.values.segments import StreamCut

MAXIMUM_PART: Final = 0.8
"""Unread events are near the maximum of retention from here on."""
READ_SEGMENTS: Final = 16
"""Of so many segments the oldest unread event is read; those of more are as old at least."""
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
    """When the oldest unread event was written, or a later time, for a policy by time."""
    maximum: int
    is_exact: bool = True
    """Whether it is not more than that."""

    def at(self, now_ms: int) -> float:
        """Return the part of the maximum that is reached at a time."""
        if self.part is not None:
            return self.part
        assert self.oldest_ms is not None
        return max(0.0, (now_ms - self.oldest_ms) / self.maximum)


@dataclass(frozen=True, slots=True)
class OldestUnread:
    """When the oldest event after a position was written, in ms since 1970, as far as it was read.

    ``time_ms`` is None if none of the events could be read.
    """

    position: tuple[tuple[int, int], ...]
    time_ms: int | None
    is_exact: bool
    damage: str = ""
    """Why it cannot be read, if what is stored of it is damaged."""


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
    behind_ms: int = 0
    """How far behind the clock of a host was that committed of late."""
    leases: tuple[LeaseFact, ...] = ()
    transactions: int = 0
    maximum: MaximumFact | None = None
    oldest: Mapping[str, OldestUnread] = field(default_factory=dict)
    """By subscriber, of those whose unread events may be near the maximum."""
    needs: frozenset[MaintenanceKind] = frozenset()


def facts_of(
    stream: StreamLog,
    view: StreamView,
    looked_ms: int,
    before: StreamFacts | None = None,
    behind_ms: int = 0,
) -> StreamFacts:
    """Return what a view says; one storage call if it has open transactions.

    ``before`` is what the last look found. The oldest unread event of a subscriber that has read
    on and may be near the maximum is read, of READ_SEGMENTS segments, if the budget allows that.
    Raises Damaged, StoreError, and BudgetSpent.
    """
    pinged = extended_ms(stream, view) if view.transactions else {}
    needs = {*needed_kinds(view.record.configuration)}
    if view.transactions:
        needs.add(MaintenanceKind.TRANSACTIONS)
    if marks_of(view):
        needs.add(MaintenanceKind.WATERMARKS)
    maximum = _Maximum(stream, view, looked_ms, {} if before is None else before.oldest)
    return StreamFacts(
        name=view.stream,
        looked_ms=looked_ms,
        created_ms=view.record.created_ms,
        committed_ms=view.timestamp_ms,
        behind_ms=behind_ms,
        leases=_leases(view, pinged),
        transactions=len(view.transactions),
        maximum=maximum.nearest(),
        oldest=maximum.oldest,
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


class _Maximum:
    """How near the subscribers of a stream are to losing unread events to the maximum."""

    def __init__(
        self, stream: StreamLog, view: StreamView, now_ms: int, known: Mapping[str, OldestUnread]
    ) -> None:
        self._stream, self._view, self._now_ms, self._known = stream, view, now_ms, known
        self.oldest: dict[str, OldestUnread] = {}
        """What is known of the events that are worth it, to be given to the next look."""

    def nearest(self) -> MaximumFact | None:
        """Return the subscriber that is nearest to it."""
        policy = self._view.record.configuration.retention
        if policy is None or not policy.waits_for_subscribers or policy.maximum is None:
            return None
        found: MaximumFact | None = None
        for subscriber in self._view.subscribers:
            fact = None
            with contextlib.suppress(PravegaSparkError):  # such as a cut of before a restore
                fact = self._of(subscriber, policy.unit, policy.maximum)
            if fact is not None and (found is None or _is_nearer(fact, found)):
                found = fact
        return found

    def _of(
        self, subscriber: SubscriberRecord, unit: LimitUnit, maximum: int
    ) -> MaximumFact | None:
        view, bound = self._view, subscriber.bound
        if bound is None:
            return None
        cut = locate(view, bound.cut(view.stream, view.life)).above_head()
        if not cut.events_to(view.located_tail):
            return None
        if unit is not LimitUnit.SIZE_BYTES:
            return self._by_age(subscriber.name, cut, maximum)

        def bytes_at(segment_id: int, offset: int) -> int:
            if bound.positions.get(segment_id) == offset and segment_id in bound.sizes:
                return bound.sizes[segment_id]
            return view.record.head_sizes.get(segment_id, 0)

        size_bytes = cut.bytes_to(view.located_tail, bytes_at)
        return MaximumFact(subscriber.name, size_bytes / maximum, None, maximum)

    def _by_age(self, name: str, cut: LocatedCut, maximum: int) -> MaximumFact | None:
        after_ms, by_ms = _written_between_ms(self._view, cut)
        fact = None
        if by_ms is not None:
            fact = MaximumFact(name, None, by_ms, maximum, is_exact=False)
        if self._now_ms - after_ms < MAXIMUM_PART * maximum:
            return fact
        oldest = self._oldest(name, cut)
        if oldest is None or oldest.time_ms is None:
            return fact
        if oldest.is_exact or by_ms is None or oldest.time_ms <= by_ms:
            return MaximumFact(name, None, oldest.time_ms, maximum, oldest.is_exact)
        return fact

    def _oldest(self, name: str, cut: LocatedCut) -> OldestUnread | None:
        """Return what is known of the oldest event after a cut, which is read if it is new."""
        ranges = cut.ranges_to(self._view.located_tail)
        position = tuple(sorted((rng.segment_id, rng.start) for rng in ranges))
        found = self._known.get(name)
        if found is None or found.position != position:
            found = OldestUnread(position, None, False)
            try:
                time_ms = oldest_written_ms(self._stream, ranges[:READ_SEGMENTS])
                found = replace(found, time_ms=time_ms, is_exact=len(ranges) <= READ_SEGMENTS)
            except (BudgetSpent, StoreError):  # a later look reads them
                return None
            except Damaged as error:
                found = replace(found, damage=said(error, self._stream.store.url))
            except PravegaSparkError:  # such as truncated meanwhile
                pass
        self.oldest[name] = found
        return found


def _is_nearer(fact: MaximumFact, other: MaximumFact) -> bool:
    if fact.part is not None and other.part is not None:
        return fact.part > other.part
    return (fact.oldest_ms or 0) < (other.oldest_ms or 0)


def _written_between_ms(view: StreamView, cut: LocatedCut) -> tuple[int, int | None]:
    """Return times between which the first event after a cut was written, by the retention set."""
    after_ms = view.record.created_ms
    for sample in view.samples:
        with contextlib.suppress(PravegaSparkError):
            at = locate(view, StreamCut(view.stream, view.life, sample.tail.positions)).above_head()
            if at.is_at_or_after(cut) and cut.events_to(at):
                return after_ms, sample.time_ms
            if cut.is_at_or_after(at):
                after_ms = sample.time_ms
    return after_ms, None
