"""A reader group as users call it: readers, checkpoints, positions, lag and resets."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pravega_spark.config.policies import UNCHANGED, Unchanged
from pravega_spark.errors import IllegalState, InvalidInput, InvalidName
from pravega_spark.reader_groups import transitions
from pravega_spark.reader_groups.changes import GroupUpdate, cuts_of, reset_group, update_group
from pravega_spark.reader_groups.checkpoint_future import CheckpointFuture, GroupCheckpoint
from pravega_spark.reader_groups.configuration import (
    NOTIFICATION_INTERVAL,
    GroupAcknowledgement,
    GroupRetention,
    ReaderGroupConfiguration,
)
from pravega_spark.reader_groups.description import GroupLag, Notification, lag_of, watch
from pravega_spark.reader_groups.going_back import leave_at
from pravega_spark.reader_groups.leases import (
    expire_readers,
    parse_max_poll_interval_ms,
    parse_reader_lease_ms,
    record_heartbeat,
)
from pravega_spark.reader_groups.lifecycle import GroupLifecycle
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.query_member import QUERY
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.reader_groups.selector import views_of
from pravega_spark.reader_groups.state import Checkpoint, GroupState, SegmentKey
from pravega_spark.reader_groups.transaction import check_may_move
from pravega_spark.values.checks import check_flag, check_list, check_timeout
from pravega_spark.values.events import Deserializer
from pravega_spark.values.handles import NotPicklable
from pravega_spark.values.limits import (
    MAX_POLL_INTERVAL,
    POLL_LOCAL_SECONDS,
    POLL_REMOTE_SECONDS,
    READER_LEASE,
)
from pravega_spark.values.names import check_checkpoint, check_name
from pravega_spark.values.segments import StreamCut
from pravega_spark.values.units import parse_duration_ms


class ReaderGroup(NotPicklable):
    """A reader group of a ``StreamManager``. Methods raise NoSuchReaderGroup once it is deleted."""

    _NOT_PICKLABLE = (
        "a ReaderGroup cannot be pickled; pass its name, and open it by StreamManager.reader_group."
    )

    def __init__(
        self,
        lifecycle: GroupLifecycle,
        on_open: Callable[[object, Callable[[Any], bool]], None] = lambda reader, is_closed: None,
    ) -> None:
        """Wrap a group; reads nothing yet.

        ``on_open`` takes each reader that is made, and the way to ask if it is closed.
        """
        self._on_open = on_open
        self._opened, self._pid = lifecycle, os.getpid()
        self._streams, self._leases = lifecycle.streams, lifecycle.leases
        self._runtime = lifecycle.runtime

    @property
    def _lifecycle(self) -> GroupLifecycle:
        """The group as this process has it: a forked child opens it again."""
        if self._pid != os.getpid():
            old = self._opened
            self._opened = GroupLifecycle(old.store, old.name, old.streams, old.runtime)
            self._pid = os.getpid()
        return self._opened

    @property
    def name(self) -> str:
        """The group's full name, ``scope/group``."""
        return self._lifecycle.name

    @property
    def configuration(self) -> ReaderGroupConfiguration:
        """The configuration of the present generation."""
        return self._state().configuration

    @property
    def generation(self) -> int:
        """The number of creations and resets of the group before the present one."""
        return self._state().generation

    def _state(self) -> GroupState:
        return self._lifecycle.state()

    def reset(
        self,
        to: GroupCheckpoint
        | Mapping[str, StreamCut | str]
        | ReaderGroupConfiguration
        | None = None,
    ) -> int:
        """Begin a new generation and return its number; readers get ReinitializationRequired.

        To change the configuration without going back, call ``update``.

        ``to`` is a checkpoint, cuts by stream (other streams stay at the last reported positions),
        or another configuration with its start cuts. By default it is the last completed
        checkpoint, or the configured start if the group has none. Pending checkpoints fail. A
        stream that was created again begins in its present life if a cut of that life, 'earliest',
        'latest' or a configuration names it; otherwise the call raises InvalidStreamCut.

        Raises NoSuchReaderGroup, InvalidStreamCut; TruncatedData for a cut whose segments have no
        record any more, and for any given cut below the head if the group holds data.
        """
        return reset_group(self._lifecycle, to)

    def update(
        self,
        *,
        add: Iterable[str] | Mapping[str, Any] = (),
        remove: Iterable[str] = (),
        retention: GroupRetention | str | Unchanged = UNCHANGED,
        refresh: str | float | Unchanged = UNCHANGED,
        checkpoint_interval: str | float | Unchanged | None = UNCHANGED,
        max_outstanding_checkpoints: int | Unchanged = UNCHANGED,
        acknowledge: GroupAcknowledgement | str | Unchanged = UNCHANGED,
    ) -> int:
        """Change streams or fields of the configuration; return the number of the generation.

        Fields that are not given stay, also if others change them at the same time. Streams that
        the group keeps continue at their positions, and in its last checkpoint. ``add`` takes
        streams as ``create_reader_group`` does. A stream in both ``remove`` and ``add`` begins
        again, in its present life. Begins a new generation if anything changes: readers get
        ReinitializationRequired, and pending checkpoints fail. So does a given ``retention`` of a
        group that expired, since it was idle for too long: its streams keep data for it again.

        Raises InvalidConfiguration for an invalid value, an added stream that the group reads, a
        removed one that it does not read, and a group without a stream; NoSuchReaderGroup,
        NoSuchStream, InvalidStreamCut; IllegalState for an added stream that is being sealed;
        TruncatedData for the start cut of an added stream, as ``reset`` does.
        """
        update = GroupUpdate.of(
            add,
            remove,
            retention=retention,
            refresh=refresh,
            checkpoint_interval=checkpoint_interval,
            max_outstanding_checkpoints=max_outstanding_checkpoints,
            acknowledge=acknowledge,
        )
        return update_group(self._lifecycle, update)

    # ------------------------------------------------------------------------------------ readers

    def create_reader(
        self,
        reader_id: str,
        *,
        lease: str | float | None = READER_LEASE,
        max_poll_interval: str | float | None = MAX_POLL_INTERVAL,
        deserializer: Deserializer | None = None,
        automatic_markers: bool = False,
    ) -> EventStreamReader:
        """Add a reader to the group. Raises IllegalState if it has a live reader of that id.

        A reader whose process ends expires after its ``lease``. With ``lease=None`` it never does,
        as in Pravega: if its process crashes, call ``reader_offline``.

        A reader may process an event or a batch for ``max_poll_interval`` (Kafka's term), by
        default five minutes or the lease, if that is longer: a thread of the process extends its
        lease between two calls. One that makes no call for longer hangs, and expires. With None its
        calls alone extend the lease.

        With ``automatic_markers`` the reader sees the markers of automatic checkpoints, too: for an
        application that keeps events or results and stores them at markers. The group does not
        record that. Where checkpoints acknowledge events, every reader sees them.

        Raises InvalidConfiguration for a ``lease`` or ``max_poll_interval`` out of its limits, and
        InvalidName, also for the reader name of streaming queries.
        """
        if reader_id == QUERY:
            raise InvalidName(
                f"reader name {reader_id!r} is that of streaming queries; use another."
            )
        lease_ms = parse_reader_lease_ms(lease)
        max_poll_interval_ms = parse_max_poll_interval_ms(max_poll_interval, lease_ms)
        self._state()
        reader = EventStreamReader(
            self._lifecycle.sync,
            self._streams,
            reader_id,
            lease_ms=lease_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            subscriptions=self._lifecycle.subscriptions,
            deserializer=deserializer,
            automatic_markers=check_flag("automatic_markers", automatic_markers),
        )
        self._on_open(reader, lambda opened: opened.is_closed)
        return reader

    def reader_offline(self, reader_id: str, position: Position | str | None = None) -> bool:
        """Remove a reader from the group; return False if there is nothing to change.

        Other readers continue at its last recorded offsets, or at ``position``, which came with one
        of its events: everything after it that the reader was handed is read again, also of
        segments that it has acquired, released or finished since. A reader that has expired need
        not be in the group for that.

        Raises PositionOvertaken where other readers have had these segments since, with the ranges,
        and TruncatedData where the head has passed the position; InvalidInput for a position of
        another stream or segment, or beyond the end of one; and IllegalState for any in a group in
        which only transactions acknowledge events. None of them changes anything.
        """
        check_name("reader", reader_id)
        state = self._state()
        given = None if position is None else Position.of(position)
        if given is not None:
            check_may_move(state)
        heartbeat = self._leases.heartbeat(reader_id)

        def generator(newest: GroupState) -> tuple[GroupState | None, bool]:
            after = record_heartbeat(newest, reader_id, heartbeat)
            if given is None:
                after = transitions.remove_reader(after, reader_id, is_lost=True)
            else:
                after = leave_at(after, reader_id, given, views_of(self._streams, newest.lives))
            return (None, False) if after == newest else (after, True)

        has_changed = self._lifecycle.update("READER OFFLINE", generator, {"reader": reader_id})
        if has_changed:
            self._publish_left()
        if given is not None:
            self._lifecycle.subscriptions.warn_if_behind(self._state(), given.offsets)
        return has_changed

    def _publish_left(self) -> None:
        """Publish what no reader is left to publish, if the group's retention is automatic."""
        self._lifecycle.subscriptions.publish_left(self._lifecycle.sync.local.state)

    def expire_readers(self) -> list[str]:
        """Remove the readers whose leases have expired, and return their ids.

        Readers also do this themselves, and so does retention for groups with 'automatic'. A
        process that finds an old lease records that, so that one which comes a lease later expires
        the reader although it has not watched the storage itself.
        """
        expired = expire_readers(self._lifecycle.sync, self._leases, records=True)
        if expired:
            self._publish_left()
        return expired

    def online_readers(self) -> list[str]:
        """Return the ids of the group's readers, sorted."""
        return sorted(self._state().readers)

    def distribution(self) -> dict[str | None, int]:
        """Return the number of segments by reader; the key None counts the waiting segments."""
        state = self._state()
        found: Counter[str | None] = Counter(dict.fromkeys(state.readers, 0))
        found.update(owned.reader for owned in state.assigned.values())
        found[None] = len(state.unassigned)
        return dict(found)

    # ----------------------------------------------------------------------------------- progress

    def stream_cuts(self) -> dict[str, StreamCut]:
        """Return the last recorded cut of each stream; cheap, but may be old."""
        return self._state().cuts()

    def last_checkpoint(self) -> GroupCheckpoint | None:
        """Return the last completed checkpoint of this generation, or None."""
        state = self._state()
        last = state.last_checkpoint
        return None if last is None else GroupCheckpoint(last.name, state.cuts_of(last.positions))

    def cuts_at(self, positions: Iterable[Position | str]) -> dict[str, StreamCut]:
        """Return the cuts that the positions of all readers form together.

        For applications that store positions themselves. Raises InvalidInput unless the positions
        name every assigned segment.
        """
        state = self._state()
        offsets: dict[SegmentKey, int] = {}
        for position in check_list("positions", positions):
            offsets.update(Position.of(position).offsets)
        missing = sorted(state.assigned.keys() - offsets.keys())
        if missing:
            raise InvalidInput(
                f"the positions do not name {', '.join(map(str, missing))}, which readers of "
                f"reader group {self.name} have; pass one position of each reader."
            )
        given = {key: offsets[key] for key in state.assigned}
        return state.cuts_of(dict(state.positions()) | given)

    def is_at_end(self) -> bool:
        """Return whether the group has read everything that it will ever read."""
        return self._state().is_at_end

    def publish(self, cuts: Mapping[str, StreamCut | str]) -> None:
        """Allow streams to truncate before these cuts; for a group with retention 'manual'.

        Other streams stay as they are; one of which the group has published no cut yet keeps
        everything, and a warning is logged. Raises IllegalState for a group of another retention,
        InvalidStreamCut for a cut behind the last published one.
        """
        state = self._state()
        if state.configuration.retention is not GroupRetention.MANUAL:
            raise IllegalState(
                f"reader group {self.name} has retention "
                f"{state.configuration.retention.value!r}; only a group with 'manual' publishes "
                "cuts by this call. Update it to that retention."
            )
        given = cuts_of(state, cuts)
        self._lifecycle.subscriptions.publish(state, given)
        self._lifecycle.subscriptions.warn_of_uncut(state, given.keys())

    def lag(self) -> GroupLag:
        """Return the unread events, bytes and seconds from the readers' last reported offsets.

        Readers report by heartbeats, at most a third of their lease ago.
        """
        state = self._leases.with_heartbeats(self._state(), self._runtime)
        return lag_of(state, {stream: self._streams(stream) for stream in state.lives})

    def notifications(
        self, *, interval: str | float = NOTIFICATION_INTERVAL, timeout: float | None = None
    ) -> Iterator[Notification]:
        """Yield the numbers of segments and readers, first as they are and then as they change.

        Polls every ``interval``. Yields EndOfDataNotification last, after everything was read.
        Ends also when nothing has changed for ``timeout`` seconds. Raises NoSuchReaderGroup.
        """
        interval_ms = parse_duration_ms("the interval", interval)
        check_timeout("notifications", timeout)
        return watch(self._state, self._runtime, interval_ms / 1_000, timeout)

    # -------------------------------------------------------------------------------- checkpoints

    def initiate_checkpoint(self, name: str | None = None) -> CheckpointFuture:
        """Ask all readers for a checkpoint; each gets a marker and answers by its next call.

        Returns the pending checkpoint of that name if there is one. Raises InvalidName,
        TooManyCheckpoints, NoSuchReaderGroup.
        """
        return self._initiate(None if name is None else check_checkpoint(name), silent=False)

    def generate_stream_cuts(self) -> CheckpointFuture:
        """Ask all readers for their positions without markers; changes nothing else."""
        return self._initiate(None, silent=True)

    def _initiate(self, name: str | None, *, silent: bool) -> CheckpointFuture:
        def generator(state: GroupState) -> tuple[GroupState, tuple[int, Checkpoint]]:
            given = name or f"{'cuts' if silent else 'checkpoint'}-{state.next_number}"
            after, begun = transitions.initiate(state, given, silent=silent)
            return after, (after.generation, begun)

        generation, begun = self._lifecycle.update("CHECKPOINT", generator)
        if begun.is_complete and not silent:
            self._publish_left()
        is_local = self._lifecycle.store.is_local
        longest = (POLL_LOCAL_SECONDS if is_local else POLL_REMOTE_SECONDS)[1]
        return CheckpointFuture(
            state=self._state,
            expire_readers=self.expire_readers,
            runtime=self._runtime,
            pause_seconds=longest,
            generation=generation,
            checkpoint=begun,
            publish=self._lifecycle.subscriptions.try_to_publish,
        )

    def cancel_outstanding_checkpoints(self) -> None:
        """Cancel the pending checkpoints; their futures raise CheckpointFailed."""

        def generator(state: GroupState) -> tuple[GroupState, bool]:
            return transitions.cancel(state), True

        self._lifecycle.update("CANCEL CHECKPOINTS", generator)
