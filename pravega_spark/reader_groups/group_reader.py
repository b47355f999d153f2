"""A reader of a group: events of the segments that it has, and its turns in the group's state."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from pravega_spark.engine import processes
from pravega_spark.engine.layout.located_cut import ranges_text
from pravega_spark.engine.runtime import ProcessGuard
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.tables.synchronizer import Synchronizer
from pravega_spark.errors import (
    CommitUnknown,
    IllegalState,
    InvalidInput,
    NoSuchStream,
    ObjectClosed,
    ReinitializationRequired,
    StoreError,
    TruncatedData,
)
from pravega_spark.limits import POLL_IDLE_SHARE, POLL_LOCAL_SECONDS, POLL_REMOTE_SECONDS
from pravega_spark.model import Event
from pravega_spark.names import check_name
from pravega_spark.reader_groups import assignment
from pravega_spark.reader_groups.group_state import Checkpoint, GroupState, Key, Member
from pravega_spark.reader_groups.position import EventRead, EventsRead, Position
from pravega_spark.reader_groups.reader_leases import Heartbeat, ReaderLeases, expire_readers
from pravega_spark.reader_groups.reader_step import ReaderView, StepResult, reader_step
from pravega_spark.reader_groups.segment_buffer import BUFFER_ROWS, SCHEMA, SegmentBuffer
from pravega_spark.reader_groups.segment_selector import SegmentSelector, view_of
from pravega_spark.reader_groups.subscriptions import Subscriptions

Deserializer = Callable[[bytes], Any]
Streams = Callable[[str], StreamLog]

_SIGNS_OF_LEASE = 3
"""So many times in a lease a reader gives a sign of life."""
_LONGEST_SILENCE = 60.0
"""A longer lease, or none, is no reason to say less often how far a reader is."""
_PUBLISH_SECONDS = 5.0
"""A reader publishes checkpoints at most so often: each is a commit to the streams."""
_GLANCE_SECONDS = POLL_LOCAL_SECONDS[1]
"""So often a reader asks a local disk whether somebody has changed the group."""
_RETRY_SECONDS = 1.0
"""A reader that cannot reach its group's state tries again after so long, while its lease lasts."""
_NOTHING = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in SCHEMA], schema=SCHEMA)
"""Not ``from_pylist``, which imports pandas: for everybody, since this is done at import."""


class EventStreamReader:
    """One reader of a group; one thread at a time. Made by ``ReaderGroup.create_reader``.

    An event counts as processed when the application asks for more, or closes the reader. Call
    often enough: a reader that does not read for longer than its lease is taken for dead, and
    others go on from its last recorded position.
    """

    def __init__(
        self,
        sync: Synchronizer[GroupState],
        streams: Streams,
        reader_id: str,
        *,
        lease_ms: int | None,
        holds: Subscriptions,
        deserializer: Deserializer | None = None,
    ) -> None:
        """Join the group. Raises IllegalState if a living reader of that id is in it."""
        log = sync.table.log
        self.reader_id = check_name("reader", reader_id)
        self._sync, self._streams, self._deserializer = sync, streams, deserializer
        self._runtime, self._is_local = log.runtime, log.store.is_local
        self._leases, self._holds = ReaderLeases(log.store, log.path), holds
        self._lease_seconds = math.inf if lease_ms is None else lease_ms / 1_000
        self._sign_seconds = min(self._lease_seconds, _LONGEST_SILENCE) / _SIGNS_OF_LEASE
        self._guard = ProcessGuard(f"reader {reader_id}")
        self._process = processes.identity()
        self._closed = False
        self._feed = SegmentSelector(streams, lambda: sync.local.state)
        self._shown: Checkpoint | None = None
        self._join(lease_ms)

    def __reduce__(self) -> Any:
        """Refuse pickling: a reader belongs to the process that made it."""
        raise TypeError("a reader of a group cannot be pickled; create it where it is used.")

    def _join(self, lease_ms: int | None) -> None:
        def generator(state: GroupState) -> tuple[GroupState, int]:
            after = assignment.join(state, self.reader_id, lease_ms)
            return after, after.readers[self.reader_id].number

        asked = {"reader": self.reader_id}
        began = self._runtime.monotonic()
        try:
            self._number = self._sync.update("JOIN", generator, asked)
        except IllegalState:
            if self.reader_id not in expire_readers(self._sync, self._leases, ask_processes=True):
                raise
            began = self._runtime.monotonic()
            self._number = self._sync.update("JOIN", generator, asked)
        self._signed_at = self._sign_due = began
        self._alive_until = began + self._lease_seconds
        with contextlib.suppress(StoreError):  # the first look tries again, or others do it for us
            self._leases.extend(self.reader_id, Heartbeat(self._number, {}, self._process))
            self._sign_due += self._sign_seconds
        self._turn_due = self._glance_due = self._bury_due = began
        self._known: Mapping[str, Member] = {}
        self._checkpoint_since = self._publish_due = began
        self._checkpoint_seen = self._newest_checkpoint(self._sync.local.state)

    # ---------------------------------------------------------------------------- what users call

    @property
    def position(self) -> Position:
        """The position after the last event that was handed out."""
        return Position(self._feed.held)

    def read_next_event(self, timeout: float | None = None) -> EventRead:
        """Return the next event, waiting up to ``timeout`` seconds (None: for ever) for one.

        Or the marker of a checkpoint, which the next call answers: by then the application must
        have kept what it needs. Or, with no event, that time is up or all was read. Raises
        TruncatedData once where events of the group were truncated, and goes on at the head by
        the next call; NoSuchStream once where one of its streams was deleted, and goes on with the
        others; ReinitializationRequired if the group was reset or deleted, or the reader taken for
        dead.
        """
        marker, is_completed, event = self._event(timeout)
        return EventRead(event, Position(self._feed.held), marker, is_completed)

    def _event(self, timeout: float | None) -> tuple[str | None, bool, Event | None]:
        marker, is_completed, event = self._next(timeout, SegmentBuffer.next)
        if event is not None:
            self._feed.advance(event.offset + 1)
            if self._deserializer is not None:
                event.data = self._deserializer(event.data)
        return marker, is_completed, event

    def read_events(
        self, max_events: int = BUFFER_ROWS, timeout: float | None = None
    ) -> EventsRead:
        """Return up to ``max_events`` events of one segment as Arrow; else as read_next_event."""
        if max_events < 1:
            raise InvalidInput(f"max_events must be at least 1, got {max_events}.")
        marker, is_completed, batch = self._next(timeout, lambda buffer: buffer.take(max_events))
        if batch is None:
            return EventsRead(_NOTHING, self.position, marker, is_completed)
        self._feed.advance(batch.column("offset")[-1].as_py() + 1)
        return EventsRead(batch, self.position)

    def __iter__(self) -> Iterator[Event]:
        """Yield events for ever, or until everything that the group is to read was read."""
        while True:
            _, is_completed, event = self._event(None)
            if event is not None:
                yield event
            elif is_completed:
                return

    def close(self) -> None:
        """Leave the group; others go on after the last event that was handed out."""
        self._leave(self._feed.held)

    def close_at(self, position: Position | str) -> None:
        """Leave the group; others go on at ``position``, which an event came with.

        Segments that it names and the reader has finished or released since stay as they are.
        Raises InvalidInput for what is no position, or is ahead of what was handed out.
        """
        offsets, held = Position.of(position).offsets, self._feed.held
        for key, offset in offsets.items():
            if offset > held.get(key, offset):
                raise InvalidInput(
                    f"reader {self.reader_id} has handed out {key} up to {held[key]}; it cannot be "
                    f"closed at {offset}."
                )
        self._leave(offsets)

    def __enter__(self) -> EventStreamReader:
        """Use the reader until the end of the block."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close the reader; after an error the last event does not count as processed."""
        offsets = self._feed.held
        if kind is not None and self._feed.before_last is not None:
            key, offset = self._feed.before_last
            offsets = offsets.set(key, offset) if key in offsets else offsets
        self._leave(offsets)

    # ------------------------------------------------------------------------------- how it reads

    def _next(
        self, timeout: float | None, take: Callable[[SegmentBuffer], Any]
    ) -> tuple[str | None, bool, Any]:
        """Return a marker's name, whether all was read, and what ``take`` found."""
        self._guard.check()
        if self._closed:
            raise ObjectClosed(f"reader {self.reader_id} was closed.")
        began = now = self._runtime.monotonic()
        self._feed.before_last = None
        while True:
            is_due = self._shown is not None or self._feed.below
            if is_due or (now >= self._glance_due and self._is_time(now)):
                marker = self._look(now)
                if marker is not None:
                    return marker, False, None
                self._feed.fill()
            found = self._feed.take(take)
            if found is not None:
                return None, False, found
            if self._feed.below:
                continue
            if self._feed.fill():
                continue
            if self._feed.ended():
                marker = self._look(now)
                if marker is not None:
                    return marker, False, None
                if not self._feed.ended():
                    continue
            if self._sync.local.state.is_at_end:
                return None, True, None
            if self._wait(began, timeout):
                return None, False, None
            now = self._runtime.monotonic()

    def _wait(self, began: float, timeout: float | None) -> bool:
        """Pause before the next look for events; True if there is no time left."""
        now = self._runtime.monotonic()
        if timeout is not None and now - began >= timeout:
            return True
        shortest, longest = POLL_LOCAL_SECONDS if self._is_local else POLL_REMOTE_SECONDS
        pause = min(longest, max(shortest, (now - began) * POLL_IDLE_SHARE))
        if timeout is not None:
            pause = min(pause, began + timeout - now)
        self._runtime.sleep(pause)
        return False

    # -------------------------------------------------------------------- how it meets the others

    def _is_time(self, now: float) -> bool:
        """Tell whether to look at the group: at times, and at once when somebody has changed it.

        Whether that is so, is asked where asking costs microseconds.
        """
        if now >= self._turn_due:
            return True
        self._glance_due = min(self._turn_due, now + _GLANCE_SECONDS)
        try:
            return self._sync.has_newer_version()
        except StoreError:
            return False

    def _look(self, now: float) -> str | None:
        """Take a turn in the group's state; return the name of a checkpoint to be shown.

        While the state cannot be reached the reader goes on with what it has, until its own lease
        is over by its own clock: before that nobody takes it for dead.
        """
        try:
            self._give_sign(now)
            self._look_for_the_dead(now)
            result = self._take_turn(now)
        except (StoreError, CommitUnknown):
            if self._runtime.monotonic() >= self._alive_until or self._feed.below:
                raise
            self._turn_due = self._glance_due = self._runtime.monotonic() + _RETRY_SECONDS
            return None
        except ReinitializationRequired:
            self._closed = True
            raise
        self._turn_due = now + self._sync.local.state.configuration.refresh_ms / 1_000
        self._turn_due = min(self._turn_due, self._sign_due, self._bury_due)
        self._glance_due = self._turn_due
        if self._is_local:
            self._glance_due = min(self._turn_due, now + _GLANCE_SECONDS)
        self._publish(result.state, now)
        self._adopt(result)
        owed = result.state.owed_by(self.reader_id)
        if owed is None:
            return None
        self._shown = owed
        return owed.name

    def _give_sign(self, now: float) -> None:
        """Extend the lease when it is time."""
        if now < self._sign_due:
            return
        self._leases.extend(
            self.reader_id, Heartbeat(self._number, self._seat().held, self._process)
        )
        self._signed_at = now
        self._sign_due = now + self._sign_seconds

    def _look_for_the_dead(self, now: float) -> None:
        """Take over whose lease ran out; look again when the next one may have.

        Also when the readers are others than then: one may have come with a shorter lease.
        """
        if now < self._bury_due and self._sync.local.state.readers == self._known:
            return
        expire_readers(self._sync, self._leases)
        self._known = self._sync.local.state.readers
        self._bury_due = now + max(self._leases.next_end_ms / 1_000, _GLANCE_SECONDS)

    def _seat(self) -> ReaderView:
        feed = self._feed
        held = {key: (feed.numbers[key], offset) for key, offset in feed.held.items()}
        below = frozenset(feed.below)
        return ReaderView(self.reader_id, self._number, held, feed.ended(), below, feed.unread())

    def _take_turn(self, now: float) -> StepResult:
        self._sync.fetch()
        seat, answering = self._seat(), None if self._shown is None else self._shown.number
        automatic = self._automatic(now)

        def generator(state: GroupState) -> tuple[GroupState, StepResult]:
            result = reader_step(
                state,
                seat,
                lambda stream: view_of(self._streams(stream), state.lives[stream]),
                answering=answering,
                automatic=automatic,
            )
            return result.state, result

        result = self._sync.update("READ", generator, {"reader": self.reader_id})
        # A sign that came too late counts for nothing: only the state tells that it did not.
        self._alive_until = self._signed_at + self._lease_seconds
        self._shown = None
        newest = self._newest_checkpoint(result.state)
        if newest != self._checkpoint_seen:
            self._checkpoint_seen, self._checkpoint_since = newest, now
        return result

    def _publish(self, state: GroupState, now: float) -> None:
        """Let the streams go what the last checkpoint covers, if the group asks for that."""
        if now < self._publish_due or not self._holds.is_due(state):
            return
        self._publish_due = now + _PUBLISH_SECONDS
        with contextlib.suppress(StoreError, CommitUnknown):  # the next one says it, too
            self._holds.publish_last(state)

    def _automatic(self, now: float) -> str | None:
        """Return the name of the automatic checkpoint to begin now, if it is time for one."""
        state = self._sync.local.state
        interval_ms = state.configuration.checkpoint_ms
        if interval_ms is None or now - self._checkpoint_since < interval_ms / 1_000:
            return None
        self._checkpoint_since = now
        if state.last is not None:
            places = dict(state.positions()) | dict(self._feed.held.items())
            if places == dict(state.last.positions):
                return None  # nothing has moved since the last one
        return f"automatic-{state.next_number}"

    @staticmethod
    def _newest_checkpoint(state: GroupState) -> int:
        return max((c.number for c in state.checkpoints if not c.silent), default=0)

    def _adopt(self, result: StepResult) -> None:
        """Take over what the state says of this reader.

        Raises TruncatedData if events are gone, and NoSuchStream if a stream is.
        """
        ended = self._feed.ended()
        below, met = self._feed.below, self._feed.met
        gone = (result.vanished - ended) | self._feed.adopt(result.state.owned_by(self.reader_id))
        lives = result.state.lives
        concerned = below | {key.stream for key in result.vanished | gone}
        concerned |= {lost.stream for lost in result.lost}
        views = {s: view_of(self._streams(s), lives[s]) for s in sorted(concerned)}
        deleted = [stream for stream, view in views.items() if view is None]
        if deleted:
            raise NoSuchStream(
                f"reader group {result.state.group}: {', '.join(deleted)} was deleted; the next "
                "call goes on with the other streams. Reset the group to a configuration without "
                "it, or to one with what was created, or restored from a copy, in its place.",
                stream=deleted[0],
            ) from met
        if result.lost or gone or met is not None:
            named = ranges_text(result.lost) or ", ".join(map(str, sorted(gone)))
            who = ", ".join(f"{s}{view.truncated_by}" for s, view in views.items() if view)
            heads = [view.head for view in views.values() if view]
            raise TruncatedData(
                f"reader group {result.state.group}: events were truncated before they were read, "
                f"in {who} ({named or met}); the next call goes on at the head.",
                head=heads[0] if len(heads) == 1 else None,
                lost=result.lost,
            ) from met

    def _leave(self, offsets: Mapping[Key, int]) -> None:
        """Leave the group at these offsets of what the reader has."""
        if self._closed:
            return
        self._guard.check()
        self._closed = True

        def generator(state: GroupState) -> tuple[GroupState | None, None]:
            member = state.readers.get(self.reader_id)
            if member is None or member.number != self._number:
                return None, None
            return assignment.offline(state, self.reader_id, offsets), None

        self._sync.update("LEAVE", generator, {"reader": self.reader_id})
        self._leases.drop(self.reader_id)
