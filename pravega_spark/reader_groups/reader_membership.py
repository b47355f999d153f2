"""A reader's membership in its group: joining, heartbeats, refreshes and leaving.

A refresh reads the group's state in the background, so that it does not delay reading. The reader
adopts what was read between two events. Only a change that it then commits makes it wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent import futures
from functools import partial

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.tables.synchronizer import Synchronizer
from pravega_spark.errors import (
    CommitUnknown,
    IllegalState,
    ReinitializationRequired,
    StoreError,
)
from pravega_spark.reader_groups import assignment, finds
from pravega_spark.reader_groups.assignment import HeldSegments
from pravega_spark.reader_groups.group_state import Find, GroupState, SegmentKey
from pravega_spark.reader_groups.group_table import Streams
from pravega_spark.reader_groups.own_lease import OwnLease
from pravega_spark.reader_groups.position_settlement import update_settled
from pravega_spark.reader_groups.reader_leases import expire_readers, leases_of
from pravega_spark.reader_groups.reader_step import Marker, ReaderView, reader_step
from pravega_spark.reader_groups.segment_selector import SegmentSelector, view_in_life
from pravega_spark.reader_groups.state_refresh import (
    RefreshInput,
    RefreshResult,
    StateRefresh,
)
from pravega_spark.reader_groups.subscriptions import Subscriptions

logger = own_logger(__name__)

_PUBLISH_SECONDS = 5.0
"""Shortest interval between published checkpoints: each is a commit to every stream."""


class ReaderMembership:
    """One joining of a reader: what it does in the group's state, and when it is due.

    Only the reading thread calls it, except to keep it alive.
    """

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
        self.sync, self._streams, self.reader_id = sync, streams, reader_id
        self._runtime = log.runtime
        self._leases = leases = leases_of(sync)
        self._subscriptions = subscriptions
        self.number, began = self._join(lease_ms)
        self.lease = OwnLease(leases, self._runtime, reader_id, self.number, lease_ms, began)
        self.state = sync.local.state
        """The group's state as this reader last adopted it."""
        self._considered: GroupState | None = None
        """The state of the reader's last step."""
        self.told = frozenset[int]()
        """The numbers of the finds that this reader has told."""
        self.refreshes = StateRefresh(sync, streams, leases, self.lease)
        self._publishing: futures.Future[None] | None = None
        self._is_in_storage = False
        self._checkpoint_since = self._publish_due = self.called_at = began
        self._checkpoint_number = _newest_checkpoint(self.state)

    def __str__(self) -> str:
        """Return the reader's and the group's name, for logs."""
        return f"reader {self.reader_id} of reader group {self.state.group}"

    def _join(self, lease_ms: int | None) -> tuple[int, float]:
        """Join the group; return the number of the joining, and a time before it."""

        def generator(state: GroupState) -> tuple[GroupState, int]:
            after = assignment.join(state, self.reader_id, lease_ms)
            return after, after.readers[self.reader_id].number

        parameters = {"reader": self.reader_id}
        began = self._runtime.monotonic()
        try:
            return self.sync.update("JOIN", generator, parameters), began
        except IllegalState:
            expired = expire_readers(self.sync, self._leases, ask_processes=True)
            if self.reader_id not in expired:
                raise
            began = self._runtime.monotonic()
            return self.sync.update("JOIN", generator, parameters), began

    # ---------------------------------------------------------------------------------- refreshing

    def refresh(
        self,
        now: float,
        selector: SegmentSelector,
        answering: Marker | None,
        *,
        is_needed: bool = False,
    ) -> tuple[bool, GroupState | None]:
        """Return whether the state was read, and the one after the reader's step.

        The latter is None if nothing can have changed since the last step.

        Begins a refresh if one is due, and does the step when it has ended. Waits for it if it
        ``is_needed``, if the reader holds nothing, or if its lease has ended by its own clock.
        While the lease lasts no other reader expires this one, so if the state cannot be reached,
        the reader continues with its segments. Raises ReinitializationRequired.
        """
        self._is_in_storage = True
        try:
            read = self._read(now, selector, is_needed)
            if read is None:
                return False, None
            result = self._step(now, selector, answering, read.sent_at)
        except ReinitializationRequired:
            self.lease.lose()
            raise
        except (StoreError, CommitUnknown) as error:
            if self.lease.has_ended(self._runtime.monotonic()) or selector.behind_head:
                raise
            if not self.refreshes.is_unreachable:
                logger.warning(
                    "failed to refresh %s, which continues with its segments until its lease "
                    "ends: %s",
                    self,
                    error,
                    extra=log_fields("refresh", group=self.state.group),
                )
            self.refreshes.schedule_retry()
            return False, None
        finally:
            self._is_in_storage = False
            self.called_at = self._runtime.monotonic()
        self.refreshes.schedule(now, self.state.configuration.refresh_ms / 1_000)
        selector.polled_in_background = read.streams
        self._publish(now)
        return True, result

    def _read(self, now: float, selector: SegmentSelector, is_needed: bool) -> RefreshResult | None:
        """Return what a refresh has read; None if none is due, or if it has not ended."""
        refreshes, has_ended = self.refreshes, self.lease.has_ended(now)
        must_wait = is_needed or has_ended or not selector.next_offsets
        if refreshes.is_running:
            if not (must_wait or refreshes.wait(0)):
                return None
            read = refreshes.take()
            if not has_ended:
                return read
        if not (is_needed or has_ended or refreshes.is_due(now, self.state)):
            return None
        if not (is_needed or has_ended) and refreshes.has_news(now, self.state):
            return RefreshResult()
        held: HeldSegments | None = None
        if now >= self.lease.due:
            reports = self.state.configuration.acknowledges_on_reading
            held = selector.held() if reports else {}
        if must_wait:
            return refreshes.run(now, RefreshInput(held))
        refreshes.begin(now, RefreshInput(held, selector.streams_behind()))
        return refreshes.take() if refreshes.wait(0) else None

    # ------------------------------------------------------------------------------------ the step

    def _view(self, selector: SegmentSelector) -> ReaderView:
        return ReaderView(
            self.reader_id,
            self.number,
            selector.held(),
            selector.ended(),
            frozenset(selector.behind_head),
            selector.unread(),
            self.told,
        )

    def _step(
        self, now: float, selector: SegmentSelector, answering: Marker | None, sent_at: float
    ) -> GroupState | None:
        """Do the reader's step; None without one if neither the state nor the reader has changed.

        Makes no storage call if it changes nothing.
        """
        known = self.sync.local.state
        known.reader_entry(self.reader_id, self.number)
        self.lease.prove(sent_at)
        automatic = self._is_checkpoint_due(now, known, selector)
        is_same = known is self._considered and not (answering or automatic)
        has_told = not self.told.isdisjoint(known.finds)
        if is_same and not (has_told or selector.newly_ended() or selector.behind_head):
            return None  # the step is a function of what has not changed
        view = self._view(selector)

        def generator(state: GroupState) -> tuple[GroupState, GroupState]:
            after = reader_step(
                state,
                view,
                lambda stream: view_in_life(self._streams(stream), state.lives[stream]),
                answering=answering,
                automatic=automatic,
            )
            return after, after

        after = generator(known)[1]
        if after != known:
            after = self.sync.update("READ", generator, {"reader": self.reader_id})
            joined = self.sync.local.state  # with changes of other readers in the same commit
            known = joined if joined == after or generator(joined)[1] == joined else after
        self.state = self._considered = after = known
        newest = _newest_checkpoint(self.state)
        if newest != self._checkpoint_number:
            self._checkpoint_number, self._checkpoint_since = newest, now
        return after

    def _is_checkpoint_due(self, now: float, state: GroupState, selector: SegmentSelector) -> bool:
        """Return whether the interval of automatic checkpoints is over and offsets have moved."""
        interval_ms = state.configuration.checkpoint_ms
        if interval_ms is None or now - self._checkpoint_since < interval_ms / 1_000:
            return False
        self._checkpoint_since = now
        last = state.last_checkpoint
        positions = dict(state.positions())
        if not state.configuration.acknowledges_in_transactions:
            positions |= dict(selector.next_offsets.items())
        return last is None or positions != dict(last.positions)

    def _publish(self, now: float) -> None:
        """Publish the last checkpoint to the streams, if the group's retention is automatic."""
        if now < self._publish_due or not self._subscriptions.is_publication_due(self.state):
            return
        if self._publishing is not None and not self._publishing.done():
            return
        self._publish_due = now + _PUBLISH_SECONDS
        self._publishing = self._runtime.start(partial(self._publish_last_checkpoint, self.state))

    def _publish_last_checkpoint(self, state: GroupState) -> None:
        try:
            self._subscriptions.publish_last_checkpoint(state)
        except (StoreError, CommitUnknown):
            pass  # the next publication covers it
        except Exception as error:
            logger.warning(
                "failed to publish a checkpoint of reader group %s; its streams keep more than "
                "they need to: %s",
                state.group,
                error,
                exc_info=True,
                extra=log_fields("publish", group=state.group),
            )

    def warn(self, message: str, error: Exception) -> None:
        """Log a message with places for the reader and the error."""
        logger.warning(
            message, self, error, extra=log_fields("close reader", group=self.state.group)
        )

    def rewind(self, selector: SegmentSelector) -> None:
        """Let the reader hand out again what nothing has acknowledged; reads the group's state.

        Raises ReinitializationRequired.
        """
        self.sync.fetch()
        state = self.sync.local.state
        state.reader_entry(self.reader_id, self.number)
        selector.rewind(state.owned_by(self.reader_id))

    # ------------------------------------------------------------------------- staying and leaving

    def keep_alive(self) -> None:
        """Extend the lease with the offsets of the last heartbeat; any thread may call this.

        Raises ReinitializationRequired, StoreError, and ObjectClosed if the reader has left.
        """
        self.lease.extend()
        sent_at = self.lease.sent_at
        self.sync.fetch()
        try:
            self.sync.local.state.reader_entry(self.reader_id, self.number)
        except ReinitializationRequired:
            self.lease.lose()
            self.refreshes.hurry()  # so that the reading thread learns it at its next call
            raise
        self.lease.prove(sent_at)

    @property
    def idle_seconds(self) -> float:
        """The seconds since the application's last call; none while a call waits for the storage.

        An outage is not the application's time.
        """
        return 0.0 if self._is_in_storage else self._runtime.monotonic() - self.called_at

    def extend_if_due(self) -> None:
        """Extend the lease if no call has done so in time; for the lease extender's thread.

        The storage calls run in the background, so that a process does not exit amid them.
        """
        if self.lease.seconds_to_heartbeat() <= 0:
            self._runtime.start(self.keep_alive).result()

    def leave(self, offsets: Mapping[SegmentKey, int], untold: Mapping[int, Find]) -> None:
        """Leave the group; other readers continue at these offsets, and tell what is untold.

        Waits for what runs in the background. Raises ReinitializationRequired if the reader is no
        longer in the group, and so has not acknowledged events before these offsets.
        """

        def generator(state: GroupState) -> tuple[GroupState | None, bool]:
            entry = state.readers.get(self.reader_id)
            if entry is None or entry.number != self.number:
                return None, False
            state = finds.clip(finds.clear(state, self.told), self.reader_id, offsets, untold)
            return assignment.remove_reader(state, self.reader_id, offsets), True

        try:
            if self.refreshes.is_running:
                with contextlib.suppress(StoreError, CommitUnknown):  # leaving meets the same
                    self.refreshes.take()
        finally:
            self.lease.leave()
            has_left = update_settled(self.sync, "LEAVE", generator, {"reader": self.reader_id})
            if has_left:
                self._leases.remove(self.reader_id)
        if self._publishing is not None:
            futures.wait([self._publishing])
        owned = self.state.owned_by(self.reader_id)
        is_behind = any(k in owned and offsets[k] > owned[k].offset for k in offsets)
        if is_behind and not has_left:
            self.sync.local.state.reader_entry(self.reader_id, self.number)


def _newest_checkpoint(state: GroupState) -> int:
    return max((c.number for c in state.checkpoints if not c.silent), default=0)
