"""A reader's membership in its group: joining, heartbeats, refreshes and leaving.

A refresh reads the group's state in the background, so that it does not delay reading. The reader
adopts what was read between two events. Only a change that it then commits makes it wait.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, replace
from functools import partial

from pravega_spark.engine.layout.located_cut import ranges_text
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.state.synchronizer import Synchronizer
from pravega_spark.errors import (
    CommitUnknown,
    IllegalState,
    NoSuchStream,
    PravegaSparkError,
    ReinitializationRequired,
    StoreError,
    TruncatedData,
)
from pravega_spark.reader_groups import transitions
from pravega_spark.reader_groups.going_back import leave_at
from pravega_spark.reader_groups.leases import OwnLease, ReaderLeases, expire_readers, leases_of
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.selector import SegmentSelector, view_in_life, views_of
from pravega_spark.reader_groups.settlement import update_settled
from pravega_spark.reader_groups.state import Find, GroupState, SegmentKey
from pravega_spark.reader_groups.step import Marker, ReaderView, reader_step
from pravega_spark.reader_groups.subscriptions import Subscriptions
from pravega_spark.reader_groups.table import Streams
from pravega_spark.reader_groups.transitions import HeldSegments, finds_of
from pravega_spark.values.limits import POLL_LOCAL_SECONDS
from pravega_spark.values.segments import SegmentRange

_POLL_SECONDS = POLL_LOCAL_SECONDS[1]
"""How often a reader asks a local disk whether the group's state has changed."""
_RETRY_SECONDS = 1.0
"""Pause of a reader that cannot reach its group's state, while its lease lasts."""
_NOW = 0.0


@dataclass(frozen=True, slots=True)
class RefreshInput:
    """What a refresh needs of its reader.

    ``held`` is what its heartbeat reports; None if none is due. ``streams`` are those whose newest
    versions it also reads, so that the reader need not wait for them.
    """

    held: HeldSegments | None
    streams: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RefreshResult:
    """What a refresh has read: the state after the heartbeat of a time, and these streams."""

    sent_at: float = -math.inf
    streams: frozenset[str] = frozenset()


class StateRefresh:
    """The refreshes of one reader: one at a time. Only the reading thread calls it.

    A refresh extends the lease if a heartbeat is due, expires other readers if a lease may have
    ended, and reads the state.
    """

    def __init__(
        self,
        sync: Synchronizer[GroupState],
        streams: Streams,
        leases: ReaderLeases,
        lease: OwnLease,
    ) -> None:
        log = sync.table.log
        self._sync, self._streams, self._leases, self._lease = sync, streams, leases, lease
        self._runtime, self._is_local = log.runtime, log.store.is_local
        self._running: futures.Future[RefreshResult] | None = None
        self._due = self.poll_due = _NOW
        self.is_unreachable = False
        """Whether the last refresh failed; the next one begins at ``poll_due``."""

    @property
    def running(self) -> futures.Future[RefreshResult] | None:
        """The refresh that has begun and whose result was not taken."""
        return self._running

    @property
    def is_running(self) -> bool:
        """Whether a refresh has begun whose result was not taken."""
        return self._running is not None

    def has_news(self, now: float, adopted: GroupState) -> bool:
        """Return whether a sibling in this process has read a newer state than the adopted one.

        Then a refresh need not ask the storage, unless it is due anyway.
        """
        return now < self._due and self._sync.local.state is not adopted

    def is_due(self, now: float, adopted: GroupState) -> bool:
        """Return whether the interval is over or the state differs from the adopted one.

        Asks the storage for changes only if it is local, where a poll costs microseconds.
        """
        if now >= self._next_due or self._sync.local.state is not adopted:
            return True
        self._schedule_poll(now)
        try:
            return self._is_local and self._sync.has_newer_version()
        except StoreError:
            return False

    def begin(self, now: float, given: RefreshInput) -> None:
        """Begin a refresh in the background."""
        assert self._running is None
        self.poll_due = self._lease.ends_at
        running = self._running = self._runtime.start(partial(self.run, now, given))
        running.add_done_callback(self._hurry_after)

    def go_on(self) -> None:
        """Let calls ask nothing until the refresh that has begun ends, or the lease does.

        The lease may have been extended since the refresh began: its earlier end is no time to ask.
        """
        assert self._running is not None
        self.poll_due = self._lease.ends_at
        if self._running.done():
            self.hurry()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the refresh that has begun has ended; return whether it has in this time."""
        assert self._running is not None
        return self._running.done() or bool(futures.wait([self._running], seconds).done)

    def take(self) -> RefreshResult:
        """Wait for the refresh that has begun, and return its result or raise its error."""
        assert self._running is not None
        self.wait()
        ended, self._running = self._running, None
        return ended.result()

    def run(self, now: float, given: RefreshInput) -> RefreshResult:
        """Do a refresh in this thread."""
        with self._leases.observed():
            if given.held is not None:
                self._lease.extend(given.held)
            sent_at = self._lease.sent_at
            if not self._leases.expire_due(self._sync, now):
                self._sync.fetch()
        streams = sorted(given.streams)
        read = self._runtime.each(self._has_read, streams)
        return RefreshResult(
            sent_at, frozenset(s for s, ok in zip(streams, read, strict=True) if ok)
        )

    def _has_read(self, stream: str) -> bool:
        try:
            self._streams(stream).view()
        except NoSuchStream:
            return True
        except PravegaSparkError:
            return False  # the reader reads the stream again, and learns why
        return True

    def schedule(self, now: float, interval_seconds: float) -> None:
        """Set when the next refresh is due, after one whose state was adopted."""
        self.is_unreachable = False
        self._due = min(now + interval_seconds, self._lease.due, self._leases.expiry_due)
        self._schedule_poll(now)
        if self._lease.is_lost:  # found in another thread
            self.poll_due = _NOW

    def _schedule_poll(self, now: float) -> None:
        due = self._next_due
        self.poll_due = min(due, now + _POLL_SECONDS) if self._is_local else due

    @property
    def _next_due(self) -> float:
        return min(self._due, self._leases.look_due)

    def schedule_retry(self) -> None:
        """Set when the next refresh is due, after one that failed while the lease lasts."""
        self.is_unreachable = True
        retry = self._runtime.monotonic() + _RETRY_SECONDS
        self._due = self.poll_due = min(retry, self._lease.ends_at)

    def _hurry_after(self, ended: futures.Future[RefreshResult]) -> None:
        if self._running is ended:
            self.hurry()

    def hurry(self) -> None:
        """Make the next refresh due now; any thread may call this."""
        self.poll_due = _NOW


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
        *,
        shows_automatic: bool = False,
    ) -> None:
        """Join the group. Raises IllegalState if it has a live reader of that id."""
        log = sync.table.log
        self.sync, self._streams, self.reader_id = sync, streams, reader_id
        self.runtime = log.runtime
        self._leases = leases = leases_of(sync)
        self._subscriptions, self._shows_automatic = subscriptions, shows_automatic
        self.number, began = self._join(lease_ms)
        self.lease = OwnLease(
            leases=leases,
            runtime=self.runtime,
            reader_id=reader_id,
            number=self.number,
            lease_ms=lease_ms,
            joined_at=began,
        )
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
            after = transitions.join(state, self.reader_id, lease_ms)
            return after, after.readers[self.reader_id].number

        parameters = {"reader": self.reader_id}
        began = self.runtime.monotonic()
        try:
            return self.sync.update("JOIN", generator, parameters), began
        except IllegalState:
            expired = expire_readers(self.sync, self._leases, ask_processes=True)
            if self.reader_id not in expired:
                raise
            began = self.runtime.monotonic()
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
            read = self._read(now, selector, is_needed, answering)
            if read is None:
                return False, None
            result = self._step(now, selector, answering, read.sent_at)
        except ReinitializationRequired:
            self.lease.lose()
            raise
        except (StoreError, CommitUnknown) as error:
            if self.lease.has_ended(self.runtime.monotonic()) or selector.behind_head:
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
            self.called_at = self.runtime.monotonic()
        self.refreshes.schedule(now, self.state.configuration.refresh_ms / 1_000)
        selector.polled_in_background = read.streams
        self._publish(now)
        return True, result

    def _read(
        self, now: float, selector: SegmentSelector, is_needed: bool, answering: Marker | None
    ) -> RefreshResult | None:
        """Return what a refresh has read; None if none is due, or if it has not ended."""
        refreshes, has_ended = self.refreshes, self.lease.has_ended(now)
        must_wait = is_needed or has_ended or not selector.next_offsets
        if refreshes.is_running:
            if not (must_wait or refreshes.wait(0)):
                refreshes.go_on()
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
            # Of a reader that expires before it has answered, the checkpoint has what it reported.
            mine = selector.held() if answering is None else answering.held
            held = mine if reports else {}
        if must_wait:
            return refreshes.run(now, RefreshInput(held))
        refreshes.begin(now, RefreshInput(held, selector.streams_behind()))
        return refreshes.take() if refreshes.wait(0) else None

    # ------------------------------------------------------------------------------------ the step

    def _view(self, selector: SegmentSelector) -> ReaderView:
        return ReaderView(
            reader=self.reader_id,
            number=self.number,
            held=selector.held(),
            ended=selector.ended(),
            behind_head=frozenset(selector.behind_head),
            unread=selector.unread(),
            told=self.told,
            shows_automatic=self._shows_automatic,
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
                views_of(self._streams, state.lives),
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
        publish = partial(self._subscriptions.try_to_publish, self.state)
        self._publishing = self.runtime.start(publish)

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
        self.confirm(sent_at)

    def confirm(self, sent_at: float) -> None:
        """Take a heartbeat of that time for proved, since the state, read after it, has the reader.

        Raises ReinitializationRequired if it has not.
        """
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
        return 0.0 if self._is_in_storage else self.runtime.monotonic() - self.called_at

    def at_position(
        self, state: GroupState, position: Position, selector: SegmentSelector
    ) -> GroupState:
        """Return the state after the reader has left at a position. Raises as ``leave_at``."""
        held = selector.held()
        state = transitions.record_offsets(state, self.reader_id, self.number, held)
        handed_out = transitions.owned_offsets(state, self.reader_id, held)
        views = views_of(self._streams, state.lives)
        return leave_at(state, self.reader_id, position, views, handed_out)

    def check_position(self, position: Position, selector: SegmentSelector) -> None:
        """Read the state, and raise what leaving at a position would; changes nothing."""
        self.sync.fetch()
        with contextlib.suppress(ReinitializationRequired):  # leaving raises it
            self.at_position(self.sync.local.state, position, selector)

    def warn_if_behind(self, position: Position) -> None:
        """Warn of streams that may truncate what is to be read again."""
        self._subscriptions.warn_if_behind(self.sync.local.state, position.offsets)

    def leave(
        self,
        offsets: Mapping[SegmentKey, int],
        untold: Mapping[int, Find],
        at: Callable[[GroupState], GroupState] | None = None,
        *,
        answering: Marker | None = None,
    ) -> None:
        """Leave the group; other readers continue at these offsets, and tell what is untold.

        ``at`` leaves at a position instead. A checkpoint that the reader could not answer
        (``answering``) has where its marker was, and not these offsets. Waits for what runs in the
        background. Raises ReinitializationRequired if the reader is no longer in the group, and so
        has not acknowledged events before these offsets.
        """

        def generator(state: GroupState) -> tuple[GroupState | None, bool]:
            entry = state.readers.get(self.reader_id)
            if entry is None or entry.number != self.number:
                return None, False
            if answering is not None:
                marked = transitions.owned_offsets(state, self.reader_id, answering.held)
                state = transitions.answer(state, self.reader_id, answering.number, marked)
            state = transitions.clip(
                transitions.clear(state, self.told), self.reader_id, offsets, untold
            )
            if at is not None:
                return at(state), True
            return transitions.remove_reader(state, self.reader_id, offsets), True

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
        if has_left:
            self._subscriptions.publish_left(self.sync.local.state)
        owned = self.state.owned_by(self.reader_id)
        is_behind = any(k in owned and offsets[k] > owned[k].offset for k in offsets)
        if at is not None:  # what was recorded last counts, and not an earlier position
            is_behind = any(offsets.get(k) != mine.offset for k, mine in owned.items())
        if is_behind and not has_left:
            self.sync.local.state.reader_entry(self.reader_id, self.number)


def _newest_checkpoint(state: GroupState) -> int:
    return max((c.number for c in state.checkpoints if not c.silent), default=0)


class UntoldFinds:
    """Keeps the finds of a reader until it has raised each of them once."""

    def __init__(
        self, streams: Streams, membership: ReaderMembership, selector: SegmentSelector
    ) -> None:
        self._streams, self._membership, self._selector = streams, membership, selector
        self.untold = dict[int, Find]()

    def keep(self, state: GroupState) -> None:
        """Keep the new finds of a state, before the reader holds what the state assigns to it.

        Losses of events that the reader has handed out count as told.
        """
        membership = self._membership
        for number, found in finds_of(state, membership.reader_id, membership.number).items():
            if number not in membership.told and number not in self.untold:
                unread = self._unread(found)
                if unread is None:
                    self._has_told({number})
                else:
                    self.untold[number] = unread

    def _unread(self, found: Find) -> Find | None:
        """Return what is lost after the events that were handed out; None if nothing is."""
        lost = found.lost
        reports = self._membership.state.configuration.acknowledges_on_reading
        if lost is None or not len(lost) or not reports:
            return found
        key = SegmentKey(lost.stream, lost.segment_id)
        start = max(lost.start, self._selector.next_offsets.get(key, lost.start))
        return replace(found, lost=replace(lost, start=start)) if start < lost.end else None

    def _has_told(self, numbers: Collection[int]) -> None:
        self._membership.told |= set(numbers)
        self.untold = {n: f for n, f in self.untold.items() if n not in numbers}

    def tell(self) -> None:
        """Raise NoSuchStream for a deleted stream, or TruncatedData for a stream's lost ranges.

        Each call tells the finds of one stream, so that the error has its head.
        """
        if not self.untold:
            return
        first = min(self.untold.values(), key=_order)
        mine = {n: f for n, f in self.untold.items() if _order(f) == _order(first)}
        lost = [found.lost for found in mine.values() if found.lost is not None]
        error = self._truncated(lost) if lost else self._deleted(first.stream)
        self._has_told(mine)
        raise error

    def _deleted(self, stream: str) -> NoSuchStream:
        return NoSuchStream(
            f"reader group {self._membership.state.group}: {stream} was deleted; the next call "
            "continues with the other streams. Update the group: remove it, and add it to read "
            "the stream that was created, or restored from a copy, under its name.",
            stream=stream,
        )

    def _truncated(self, lost: Sequence[SegmentRange]) -> TruncatedData:
        stream, life = lost[0].stream, lost[0].life
        # The newest view: a reader that took a loss over may know of no version that has it.
        view = view_in_life(self._streams(stream), life)
        truncated = stream if view is None else f"{stream}{view.truncated_by}"
        return TruncatedData(
            f"reader group {self._membership.state.group}: events were truncated before they were "
            f"read, in {truncated} ({ranges_text(lost)}); the next call continues at the head.",
            head=None if view is None else view.head,
            lost=tuple(lost),
        )


def _order(found: Find) -> tuple[bool, str, int]:
    """Return whether a find is a loss, and its stream and life: deletions are told first."""
    return found.lost is not None, found.stream, 0 if found.lost is None else found.lost.life
