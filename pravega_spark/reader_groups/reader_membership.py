"""A reader's membership in its group: joining, heartbeats, refreshes and leaving."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping

from pravega_spark.engine import processes
from pravega_spark.engine.tables.synchronizer import Synchronizer
from pravega_spark.errors import CommitUnknown, IllegalState, StoreError
from pravega_spark.limits import POLL_LOCAL_SECONDS
from pravega_spark.reader_groups import assignment
from pravega_spark.reader_groups.group_state import GroupState, ReaderEntry, SegmentKey
from pravega_spark.reader_groups.group_table import Streams
from pravega_spark.reader_groups.reader_leases import Heartbeat, ReaderLeases, expire_readers
from pravega_spark.reader_groups.reader_step import Marker, ReaderView, StepResult, reader_step
from pravega_spark.reader_groups.segment_selector import SegmentSelector, view_in_life
from pravega_spark.reader_groups.subscriptions import Subscriptions

_HEARTBEATS_PER_LEASE = 3
_MAX_HEARTBEAT_LEASE_SECONDS = 60.0
"""A longer lease, or none, gives heartbeats as often as this one, since they report offsets."""
_PUBLISH_SECONDS = 5.0
"""Shortest interval between published checkpoints: each is a commit to every stream."""
_POLL_SECONDS = POLL_LOCAL_SECONDS[1]
"""How often a reader asks a local disk whether the group's state has changed."""
_RETRY_SECONDS = 1.0
"""Pause of a reader that cannot reach its group's state, while its lease lasts."""


class ReaderMembership:
    """One joining of a reader: what it does in the group's state, and when it is due."""

    def __init__(
        self,
        sync: Synchronizer[GroupState],
        streams: Streams,
        reader_id: str,
        lease_ms: int | None,
        subscriptions: Subscriptions,
    ) -> None:
        """Join the group. Raises IllegalState if it has a live reader of that id."""
        log = sync.table.log
        self._sync, self._streams, self._reader_id = sync, streams, reader_id
        self._runtime, self._is_local = log.runtime, log.store.is_local
        self._leases = ReaderLeases(log.store, log.path)
        self._subscriptions = subscriptions
        self._lease_seconds = math.inf if lease_ms is None else lease_ms / 1_000
        heartbeat_lease_seconds = min(self._lease_seconds, _MAX_HEARTBEAT_LEASE_SECONDS)
        self._heartbeat_seconds = heartbeat_lease_seconds / _HEARTBEATS_PER_LEASE
        self._process = processes.identity()
        self._join(lease_ms)

    def _join(self, lease_ms: int | None) -> None:
        def generator(state: GroupState) -> tuple[GroupState, int]:
            after = assignment.join(state, self._reader_id, lease_ms)
            return after, after.readers[self._reader_id].number

        parameters = {"reader": self._reader_id}
        began = self._runtime.monotonic()
        try:
            self._number = self._sync.update("JOIN", generator, parameters)
        except IllegalState:
            expired = expire_readers(self._sync, self._leases, ask_processes=True)
            if self._reader_id not in expired:
                raise
            began = self._runtime.monotonic()
            self._number = self._sync.update("JOIN", generator, parameters)
        self._heartbeat_at = self._heartbeat_due = began
        self._alive_until = began + self._lease_seconds
        with contextlib.suppress(StoreError):  # the first refresh tries again, or another reader
            self._leases.extend(self._reader_id, Heartbeat(self._number, {}, self._process))
            self._heartbeat_due += self._heartbeat_seconds
        self._refresh_due = self.poll_due = self._expire_due = began
        self._known_readers: Mapping[str, ReaderEntry] = {}
        self._checkpoint_since = self._publish_due = began
        self._checkpoint_number = _newest_checkpoint(self._sync.local.state)

    @property
    def state(self) -> GroupState:
        """The group's state as of the last refresh."""
        return self._sync.local.state

    def is_refresh_due(self, now: float) -> bool:
        """Return whether the interval is over or, on a local disk, the state has changed.

        Asks for changes only on local stores, where a poll costs microseconds.
        """
        if now >= self._refresh_due:
            return True
        self.poll_due = min(self._refresh_due, now + _POLL_SECONDS)
        try:
            return self._sync.has_newer_version()
        except StoreError:
            return False

    def refresh(
        self, now: float, selector: SegmentSelector, answering: Marker | None
    ) -> StepResult | None:
        """Do the reader's step in the group's state; return None if it cannot be reached.

        In that case the reader continues with its segments until its own lease ends by its own
        clock: until then no other reader expires it. Raises ReinitializationRequired.
        """
        try:
            self._extend_lease(now, selector)
            self._expire_readers(now)
            result = self._step(now, selector, answering)
        except (StoreError, CommitUnknown):
            if self._runtime.monotonic() >= self._alive_until or selector.behind_head:
                raise
            self._refresh_due = self.poll_due = self._runtime.monotonic() + _RETRY_SECONDS
            return None
        refresh_due = now + self.state.configuration.refresh_ms / 1_000
        self._refresh_due = min(refresh_due, self._heartbeat_due, self._expire_due)
        self.poll_due = self._refresh_due
        if self._is_local:
            self.poll_due = min(self._refresh_due, now + _POLL_SECONDS)
        self._publish(result.state, now)
        return result

    def _extend_lease(self, now: float, selector: SegmentSelector) -> None:
        if now < self._heartbeat_due:
            return
        at_checkpoints = self.state.configuration.acknowledges_at_checkpoints
        held = {} if at_checkpoints else selector.held()
        self._leases.extend(self._reader_id, Heartbeat(self._number, held, self._process))
        self._heartbeat_at = now
        self._heartbeat_due = now + self._heartbeat_seconds

    def _expire_readers(self, now: float) -> None:
        """Expire other readers when the next lease may have ended.

        Also when the readers have changed: a new one may have a shorter lease.
        """
        if now < self._expire_due and self.state.readers == self._known_readers:
            return
        expire_readers(self._sync, self._leases)
        self._known_readers = self.state.readers
        self._expire_due = now + max(self._leases.next_expiry_ms / 1_000, _POLL_SECONDS)

    def _view(self, selector: SegmentSelector) -> ReaderView:
        return ReaderView(
            self._reader_id,
            self._number,
            selector.held(),
            selector.ended(),
            frozenset(selector.behind_head),
            selector.unread(),
        )

    def _step(self, now: float, selector: SegmentSelector, answering: Marker | None) -> StepResult:
        self._sync.fetch()
        view = self._view(selector)
        automatic = self._is_checkpoint_due(now, selector)

        def generator(state: GroupState) -> tuple[GroupState, StepResult]:
            result = reader_step(
                state,
                view,
                lambda stream: view_in_life(self._streams(stream), state.lives[stream]),
                answering=answering,
                automatic=automatic,
            )
            return result.state, result

        result = self._sync.update("READ", generator, {"reader": self._reader_id})
        # Only the state proves that the last heartbeat came in time.
        self._alive_until = self._heartbeat_at + self._lease_seconds
        newest = _newest_checkpoint(result.state)
        if newest != self._checkpoint_number:
            self._checkpoint_number, self._checkpoint_since = newest, now
        return result

    def _is_checkpoint_due(self, now: float, selector: SegmentSelector) -> bool:
        """Return whether the interval of automatic checkpoints is over and offsets have moved."""
        state = self.state
        interval_ms = state.configuration.checkpoint_ms
        if interval_ms is None or now - self._checkpoint_since < interval_ms / 1_000:
            return False
        self._checkpoint_since = now
        last = state.last_checkpoint
        positions = dict(state.positions()) | dict(selector.next_offsets.items())
        return last is None or positions != dict(last.positions)

    def _publish(self, state: GroupState, now: float) -> None:
        """Publish the last checkpoint to the streams, if the group's retention is automatic."""
        if now < self._publish_due or not self._subscriptions.is_publication_due(state):
            return
        self._publish_due = now + _PUBLISH_SECONDS
        with contextlib.suppress(StoreError, CommitUnknown):  # the next publication covers it
            self._subscriptions.publish_last_checkpoint(state)

    def leave(self, offsets: Mapping[SegmentKey, int]) -> None:
        """Leave the group; other readers continue at these offsets."""

        def generator(state: GroupState) -> tuple[GroupState | None, None]:
            entry = state.readers.get(self._reader_id)
            if entry is None or entry.number != self._number:
                return None, None
            return assignment.remove_reader(state, self._reader_id, offsets), None

        self._sync.update("LEAVE", generator, {"reader": self._reader_id})
        self._leases.remove(self._reader_id)


def _newest_checkpoint(state: GroupState) -> int:
    return max((c.number for c in state.checkpoints if not c.silent), default=0)
