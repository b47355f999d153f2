"""A reader of a group: reads the events of its segments, shows checkpoints, and leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import immutables

from pravega_spark.config.descriptions import TimeWindow
from pravega_spark.engine.layout.located_cut import locate
from pravega_spark.engine.log.tail import wait_for_commits
from pravega_spark.engine.runtime.system import ProcessGuard
from pravega_spark.engine.state.synchronizer import Synchronizer
from pravega_spark.engine.stream.watermarks import latest_window, window_at
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    InvalidStreamCut,
    NoSuchStream,
    ObjectClosed,
    ReinitializationRequired,
)
from pravega_spark.reader_groups import lease_extender
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.membership import ReaderMembership, UntoldFinds
from pravega_spark.reader_groups.position import EventRead, EventsRead, Position
from pravega_spark.reader_groups.selector import (
    SegmentBuffer,
    SegmentSelector,
    no_events,
    view_in_life,
)
from pravega_spark.reader_groups.state import GroupState, SegmentKey
from pravega_spark.reader_groups.step import Marker
from pravega_spark.reader_groups.subscriptions import Subscriptions
from pravega_spark.reader_groups.table import Streams
from pravega_spark.reader_groups.transaction import ReaderTransaction, check_may_move
from pravega_spark.txn.open_look import look_at
from pravega_spark.values.checks import check_function, check_timeout, check_whole
from pravega_spark.values.events import Deserializer, Event
from pravega_spark.values.handles import NotPicklable
from pravega_spark.values.limits import GROUP_BUFFER_EVENTS
from pravega_spark.values.names import check_name
from pravega_spark.values.segments import StreamCut


class GroupWindows:
    """The time windows that a reader has returned for the streams of its group."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._returned: dict[str, TimeWindow] = {}

    def of_stream(
        self, state: GroupState, stream: str, held: Mapping[SegmentKey, int]
    ) -> TimeWindow:
        """Return the window of a stream: of the recorded positions, and of this reader's own.

        Asks the storage only if another reader is ahead of what this process knows of the stream.
        Raises InvalidInput for a stream that the group does not read, and NoSuchStream.
        """
        if stream not in state.lives:
            raise InvalidInput(
                f"reader group {state.group} does not read stream {stream}, so it has no time "
                f"window there; its streams are {', '.join(sorted(state.lives))}."
            )
        cut = _earliest_cut(state, stream, held)
        try:
            found = self._at(cut, refresh=False)
        except InvalidStreamCut:
            found = self._at(cut, refresh=True)
        self._returned[stream] = latest_window(self._returned.get(stream), found)
        return self._returned[stream]

    def _at(self, cut: StreamCut, *, refresh: bool) -> TimeWindow:
        view = view_in_life(self._streams(cut.stream), cut.life, refresh=refresh)
        if view is None:
            raise NoSuchStream(
                f"stream {cut.stream} was deleted, or created again, since the group began to read "
                "it; it has no time window.",
                stream=cut.stream,
            )
        return window_at(view, locate(view, cut))


def _earliest_cut(state: GroupState, stream: str, held: Mapping[SegmentKey, int]) -> StreamCut:
    """Return the recorded cut of a group, with a reader's segments where the reader is by now."""
    recorded = state.cut(stream)
    cells = dict(recorded.positions)
    for key, offset in held.items():
        if key.stream == stream and cells.get(key.segment_id, -1) >= 0:
            cells[key.segment_id] = max(cells[key.segment_id], offset)
    return StreamCut(stream, recorded.life, cells)


_Events = TypeVar("_Events")

_REFRESH_GRACE_SECONDS = 0.25
"""The time that a call which has found nothing waits longer for a refresh that it has begun."""


class EventStreamReader(NotPicklable):
    """One reader of a group, for one thread at a time; see ``ReaderGroup.create_reader``.

    An event counts as processed when the application asks for the next one, or closes the reader.
    In a group with ``acknowledge="checkpoint"`` it does so when the reader answers a checkpoint, or
    is closed: store your results at each marker, and before closing. With "transaction" it does so
    when a transaction that was begun with the reader commits, and never otherwise. A reader that
    makes no call for longer than its ``max_poll_interval`` and its lease expires, and other readers
    continue from its last recorded position.
    """

    _NOT_PICKLABLE = "a reader of a group cannot be pickled; create it where it is used."

    def __init__(
        self,
        sync: Synchronizer[GroupState],
        streams: Streams,
        reader_id: str,
        *,
        lease_ms: int | None,
        max_poll_interval_ms: int | None = None,
        subscriptions: Subscriptions,
        deserializer: Deserializer | None = None,
        automatic_markers: bool = False,
    ) -> None:
        """Join the group. Raises IllegalState if it has a live reader of that id."""
        self.reader_id = check_name("reader", reader_id)
        self._streams = streams
        self._deserializer = check_function("a deserializer", deserializer)
        log = sync.table.log
        self._runtime = log.runtime
        self._guard = ProcessGuard(f"reader {reader_id}")
        self.is_closed = False
        """Whether it was closed."""
        self._is_leaving = False
        """Whether a close has begun, and has not said to the group that the reader is gone."""
        self._shown: Marker | None = None
        self._answering: Marker | None = None
        """The marker, if the application has asked for more since, and the group does not know."""
        membership = ReaderMembership(
            sync, streams, reader_id, lease_ms, subscriptions, shows_automatic=automatic_markers
        )
        self._membership = membership
        for name in membership.state.lives:
            look_at(streams(name), self, lambda reader: reader.is_closed)
        self._selector = SegmentSelector(streams, lambda: membership.state, reader_id)
        self._finds = UntoldFinds(streams, membership, self._selector)
        self.participant = ReaderTransaction(membership, self._selector, self._check_usable)
        self._windows = GroupWindows(streams)
        if max_poll_interval_ms is not None:
            lease_extender.EXTENDER.add(membership, max_poll_interval_ms / 1_000)

    # ----------------------------------------------------------------------------- public methods

    @property
    def position(self) -> Position:
        """The position after the last event that was handed out."""
        return Position(self._selector.next_offsets, self._membership.state.next_number)

    def read_next_event(self, timeout: float | None = None) -> EventRead:
        """Return the next event, waiting up to ``timeout`` seconds (None: without limit).

        Returns the marker of a checkpoint instead if somebody has initiated one. The next call
        answers it: until then the application must have stored its results. So a loop over events
        goes on after a marker. Automatic checkpoints have markers where checkpoints acknowledge
        events, and for a reader that was created with them. Returns neither if the time is up or
        the group has read everything.

        Raises TruncatedData once if events of the group were truncated before they were read; the
        next call continues at the head. Raises NoSuchStream once if a stream of the group was
        deleted; the next call continues with the other streams. Raises ReinitializationRequired if
        the group was reset, updated or deleted, or the reader's lease expired.
        """
        marker, is_completed, event = self._next_event(timeout)
        return EventRead(event, self.position, marker, is_completed)

    def _next_event(self, timeout: float | None) -> tuple[str | None, bool, Event | None]:
        marker, is_completed, event = self._next(timeout, SegmentBuffer.next_event)
        if event is not None:
            self._selector.advance(event.offset + 1)
            if self._deserializer is not None:
                event.decode_with(self._deserializer)
        return marker, is_completed, event

    def read_events(
        self, max_events: int = GROUP_BUFFER_EVENTS, timeout: float | None = None
    ) -> EventsRead:
        """Return up to ``max_events`` events of one segment; otherwise as ``read_next_event``."""
        check_whole("max_events", max_events, 1)
        marker, is_completed, batch = self._next(
            timeout, lambda buffer: buffer.next_batch(max_events)
        )
        if batch is None:
            return EventsRead(
                no_events(self._selector.event_format), self.position, marker, is_completed
            )
        self._selector.advance(batch.column("offset")[-1].as_py() + 1)
        return EventsRead(batch, self.position)

    def __iter__(self) -> Iterator[Event]:
        """Yield events until the group has read everything that it will ever read.

        Raises IllegalState in a group whose ``acknowledge`` is not "next": an iteration shows no
        markers of checkpoints, and no time to commit.
        """
        if not self._configuration.acknowledges_on_reading:
            raise IllegalState(
                f"reader {self.reader_id}: in this group checkpoints or commits acknowledge "
                "events, and an iteration shows neither; call `read_next_event`, and store your "
                "results at a checkpoint's marker, or commit your transaction."
            )
        while True:
            _, is_completed, event = self._next_event(None)
            if event is not None:
                yield event
            elif is_completed:
                return

    def current_time_window(self, stream: str) -> TimeWindow:
        """Return the times between which the group is in a stream, by the writers' notes.

        It is the window of the readers' earliest positions, as this reader knows them, and never
        goes back: nothing that the group has still to read is of a time before its lower bound.
        Raises InvalidInput for a stream that the group does not read.
        """
        self._guard.check()
        state = self._membership.state
        return self._windows.of_stream(state, stream, self._selector.next_offsets)

    def rewind(self) -> None:
        """Hand out again the events that no transaction has acknowledged, as after an abort.

        For a group with ``acknowledge="transaction"``; others raise IllegalState, and so does a
        reader whose transaction nobody has ended. Raises ReinitializationRequired.
        """
        self._check_usable()
        self.participant.rewind()

    def keep_alive(self) -> None:
        """Extend the lease although the application asks for no event yet; moves no position.

        For a batch that takes longer than ``max_poll_interval``: call it once in each. The event
        in hand stays unprocessed. Costs two storage calls: one overwrites the heartbeat, and one
        reads the group's state. Any thread may call it, at any time.

        Raises ReinitializationRequired if the reader is no longer in the group, ObjectClosed if it
        was closed, and StoreError if the lease may not be extended; then try again.
        """
        self._check_usable()
        self._membership.called_at = self._runtime.monotonic()
        self._membership.keep_alive()

    def close(self) -> None:
        """Leave the group; other readers continue after the last event that was handed out.

        This acknowledges all events that were handed out; store their results first. If the reader
        is no longer in the group, it acknowledges none, and others read them again. That raises
        ReinitializationRequired in a group with ``acknowledge="checkpoint"``, and else is logged.
        Where transactions acknowledge events, this acknowledges none. After a StoreError or
        CommitUnknown call it again: until the group knows, the reader's segments are not free
        before its lease has ended.
        """
        in_transactions = self._configuration.acknowledges_in_transactions
        self._close(immutables.Map() if in_transactions else self._selector.next_offsets)

    def close_at(self, position: Position | str) -> None:
        """Leave the group; other readers continue at ``position``, which came with an event.

        Everything after it that this reader was handed is read again, also of segments that it has
        acquired, released or finished since. Raises PositionOvertaken where other readers have had
        these segments since, with the ranges, and TruncatedData where the head has passed the
        position; then the reader is still open. Raises InvalidInput for an invalid position, or one
        ahead of the events handed out, and ReinitializationRequired if the reader is no longer in
        the group, which takes the position by ``reader_offline``; IllegalState where transactions
        acknowledge events.
        """
        membership, selector = self._membership, self._selector
        check_may_move(membership.state)
        given, handed_out = Position.of(position), selector.next_offsets
        for key, offset in given.offsets.items():
            if offset > handed_out.get(key, offset):
                raise InvalidInput(
                    f"reader {self.reader_id} has handed out {key} up to {handed_out[key]}; it "
                    f"cannot be closed at {offset}. Pass a position that it has returned since it "
                    "joined."
                )
        if self.is_closed and not self._is_leaving:
            return
        self._guard.check()
        membership.check_position(given, selector)
        self._leave(given.offsets, lambda state: membership.at_position(state, given, selector))
        membership.warn_if_behind(given)

    def __enter__(self) -> EventStreamReader:
        """Return the reader, which the end of the block closes."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close the reader; after an error the last event does not count as processed.

        Where reading does not acknowledge events, nothing unacknowledged does after an error.
        The error propagates, and a failure to leave is only logged. A forked child that leaves the
        block does nothing to the group: its parent is the reader.
        """
        if self._guard.is_forked:
            return
        if kind is None:
            self.close()
            return
        offsets, before_last = self._selector.next_offsets, self._selector.before_last
        if not self._configuration.acknowledges_on_reading:
            offsets = immutables.Map()
        elif before_last is not None:
            key, offset = before_last
            offsets = offsets.set(key, offset) if key in offsets else offsets
        try:
            self._leave(offsets)
        except Exception as error:
            self._membership.warn("failed to close %s after an error: %s", error)

    @property
    def _configuration(self) -> ReaderGroupConfiguration:
        return self._membership.state.configuration

    def _close(self, offsets: Mapping[SegmentKey, int]) -> None:
        try:
            self._leave(offsets)
        except ReinitializationRequired as error:
            if self._configuration.acknowledges_at_checkpoints:
                raise
            self._membership.warn("closed %s; its last events may be read again: %s", error)

    def _leave(
        self,
        offsets: Mapping[SegmentKey, int],
        at: Callable[[GroupState], GroupState] | None = None,
    ) -> None:
        if self.is_closed and not self._is_leaving:
            return
        self._guard.check()
        self._end()
        self._is_leaving = True
        try:
            self._membership.leave(offsets, self._finds.untold, at, answering=self._answering)
        except ReinitializationRequired:
            self._is_leaving = False
            raise
        self._is_leaving = False

    def _check_usable(self) -> None:
        self._guard.check()
        if self.is_closed:
            raise ObjectClosed(f"reader {self.reader_id} was closed; create another one.")

    def _end(self) -> None:
        self.is_closed = True
        self._selector.end()
        lease_extender.EXTENDER.look()

    # ------------------------------------------------------------------------------------ reading

    def _next(
        self, timeout: float | None, read_buffer: Callable[[SegmentBuffer], _Events | None]
    ) -> tuple[str | None, bool, _Events | None]:
        """Return a marker's name, whether everything was read, and what ``read_buffer`` returns."""
        check_timeout("a read", timeout)
        self._check_usable()
        selector, membership = self._selector, self._membership
        self._answering = self._shown
        refreshes, has_ended = membership.refreshes, membership.lease.has_ended
        monotonic = self._runtime.monotonic
        began = now = monotonic()
        is_over, is_first = False, self.participant.check_may_read()
        selector.before_last = None
        while True:
            membership.called_at = now
            is_needed = selector.behind_head or (self._shown and not refreshes.is_unreachable)
            if is_first or is_needed or has_ended(now) or now >= refreshes.poll_due:
                if self._refresh(now, is_needed=is_first):
                    if self._shown is not None:
                        return self._shown.name, False, None
                    if selector.has_buffers:
                        selector.poll()
                now = monotonic()
            self._finds.tell()
            is_first = False
            if not selector.has_events_at_hand:
                selector.load()
                now = monotonic()
            if has_ended(now):  # the storage answered late: others may have these events by now
                continue
            if selector.has_events_at_hand:
                return None, False, selector.read(read_buffer)
            has_found = selector.behind_head or selector.poll()
            now = monotonic()
            if has_found or has_ended(now):
                continue
            if selector.newly_ended() and not (refreshes.is_running or refreshes.is_unreachable):
                self._refresh(now, is_needed=True)
                if self._shown is not None:
                    return self._shown.name, False, None
                if not selector.newly_ended():
                    continue
            self._finds.tell()
            if membership.state.is_at_end:
                return None, True, None
            if self.participant.is_at_unacknowledged_end:
                return None, False, None
            grace = _REFRESH_GRACE_SECONDS if refreshes.is_running else 0.0
            if is_over or not self._wait(None if timeout is None else began + timeout + grace):
                return None, False, None
            now = monotonic()
            is_over = timeout is not None and now >= began + timeout + grace

    def _wait(self, deadline: float | None) -> bool:
        """Wait for a commit to a stream, the refresh that has begun, or the time of the next one.

        Returns False at the deadline; by then each stream was polled since the call.
        """
        refreshes = self._membership.refreshes
        return wait_for_commits(
            self._runtime,
            self._selector.known_versions(),
            deadline,
            interrupt=refreshes.running,
            interrupt_at=refreshes.poll_due,
        )

    def _refresh(self, now: float, *, is_needed: bool = False) -> bool:
        """Refresh the group's state if that is due; return whether a state was adopted."""
        is_needed = is_needed or self._shown is not None or bool(self._selector.behind_head)
        try:
            has_read, state = self._membership.refresh(
                now, self._selector, self._shown, is_needed=is_needed
            )
        except ReinitializationRequired:
            self._end()
            raise
        if state is None:
            return has_read
        self._shown = self._answering = None
        self._finds.keep(state)
        self._selector.assign(state.owned_by(self.reader_id))
        pending = state.pending_checkpoint(self.reader_id)
        if pending is not None:
            self._shown = Marker(pending.number, self._selector.held(), pending.name)
        return has_read
