"""Read-only descriptions of a reader group: its lag, its notifications, and its readers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.root_marker import way_on
from pravega_spark.engine.stream.backlog import Backlog, SegmentBacklog, backlog, oldest_seconds
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import NoSuchReaderGroup, NoSuchStream, StaleIdentity
from pravega_spark.reader_groups.leases import ReaderLeases
from pravega_spark.reader_groups.state import GroupState, Phase, SegmentKey
from pravega_spark.reader_groups.table import group_path, of_each, open_group_state
from pravega_spark.values.segments import segment_text


@dataclass(frozen=True, slots=True)
class SegmentLag:
    """The unread part of one segment; ``seconds`` is the age of its oldest unread event.

    It is negative if all unread events of the segment have times in the future.
    ``reader`` is None while the segment has no reader.
    """

    stream: str
    segment: str
    reader: str | None
    events: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The unread part of all streams; ``seconds`` is the age of the oldest unread event, or 0.

    It is negative if only events with times in the future are unread.
    """

    events: int
    size_bytes: int
    seconds: float
    segments: tuple[SegmentLag, ...]


def lag_of(state: GroupState, streams: dict[str, StreamLog]) -> GroupLag:
    """Return the lag from the recorded positions to the tails or the end cuts.

    A deleted stream has no lag.
    """

    def measure(stream: StreamLog) -> list[SegmentLag]:
        cut, end = state.cut(stream.name), state.ends.get(stream.name)
        with contextlib.suppress(NoSuchStream, StaleIdentity):
            return [_lag(state, segment) for segment in backlog(stream, cut, end).segments]
        return []

    measured = of_each(streams.__getitem__, streams, measure)
    found = [segment for segments in measured.values() for segment in segments]
    return GroupLag(
        events=sum(segment.events for segment in found),
        size_bytes=sum(segment.size_bytes for segment in found),
        seconds=oldest_seconds(segment.seconds for segment in found),
        segments=tuple(found),
    )


def _lag(state: GroupState, found: SegmentBacklog) -> SegmentLag:
    rng = found.unread
    owned = state.assigned.get(SegmentKey(rng.stream, rng.segment_id))
    return SegmentLag(
        stream=rng.stream,
        segment=segment_text(rng.segment_id),
        reader=None if owned is None else owned.reader,
        events=len(rng),
        size_bytes=found.size_bytes,
        seconds=found.seconds,
    )


@dataclass(frozen=True, slots=True)
class SegmentNotification:
    """The number of segments to read now, assigned or waiting, and the number of readers.

    With more segments than readers another reader gets a share; with fewer, some readers are idle.
    """

    segments: int
    readers: int


@dataclass(frozen=True, slots=True)
class EndOfDataNotification:
    """The group has read everything that it will ever read."""


Notification = SegmentNotification | EndOfDataNotification


def watch(
    state: Callable[[], GroupState],
    runtime: Runtime,
    interval_seconds: float,
    timeout: float | None,
) -> Iterator[Notification]:
    """Yield the first numbers, then every change that a poll finds; the end of data comes last.

    Ends also when nothing has changed for ``timeout`` seconds.
    """
    yielded, since = None, runtime.monotonic()
    while True:
        newest = state()
        segments = len(newest.assigned) + len(newest.unassigned)
        found = SegmentNotification(segments, len(newest.readers))
        if found != yielded:
            yielded, since = found, runtime.monotonic()
            yield found
        if newest.is_at_end:
            yield EndOfDataNotification()
            return
        left = math.inf if timeout is None else since + timeout - runtime.monotonic()
        if left <= 0:
            return
        runtime.sleep(min(interval_seconds, left))


@dataclass(frozen=True, slots=True)
class GroupVersion:
    """A group's state at a version of its table; ``updated_ms`` is the time of that commit."""

    state: GroupState
    version: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """A segment of a group: its reader, the recorded offset, and what is unread.

    ``state`` is assigned, unassigned, future or completed. ``offset`` is None if the group has not
    reached the segment. An unknown value is None, as for a deleted stream. ``events``,
    ``size_bytes`` and ``seconds`` are as in :class:`SegmentLag`.
    """

    stream: str
    segment_id: int
    state: str
    reader: str | None
    offset: int | None
    head: int | None = None
    tail: int | None = None
    events: int | None = None
    size_bytes: int | None = None
    seconds: float | None = None

    def to_record(self) -> dict[str, str | int | float | None]:
        """Return the columns that tables and JSON have for a segment."""
        return {
            "segment": segment_text(self.segment_id),
            "state": self.state,
            "reader": self.reader,
            "current_offset": self.offset,
            "head_offset": self.head,
            "next_offset": self.tail,
            "lag": self.events,
            "lag_bytes": self.size_bytes,
            "lag_seconds": self.seconds,
        }


def find_group(store: Store, group: str) -> GroupVersion | None:
    """Return an existing group, or None; repairs no half-made change."""
    sync = open_group_state(store, group)
    known, snapshot = sync.fetch(), sync.table.log.snapshot
    if known is None or snapshot is None:
        return None
    if known.state.phase in (Phase.DELETING, Phase.DELETED):
        return None
    return GroupVersion(known.state, known.version, snapshot.timestamp_ms)


def get_group(store: Store, group: str) -> GroupVersion:
    """Return an existing group; raise NoSuchReaderGroup. Repairs no half-made change."""
    found = find_group(store, group)
    if found is None:
        ending = way_on(store, f" under {store.url}; create it first.")
        raise NoSuchReaderGroup(f"reader group {group} does not exist{ending}", group=group)
    return found


def with_heartbeats(store: Store, state: GroupState) -> GroupState:
    """Return the state with the offsets of the readers' heartbeats, newer than recorded ones."""
    return ReaderLeases(store, group_path(state.group)).with_heartbeats(state)


def positions_with(state: GroupState, stream: str, found: Backlog | None) -> list[SegmentPosition]:
    """Return the group's segments of a stream, and unread ones ahead of them, by segment id.

    ``found`` is the group's backlog in the stream, or None of a stream that is deleted.
    """
    known = {
        key.segment_id: _recorded(state, key, offset) for key, offset in _offsets(state, stream)
    }
    if found is None:
        return [known[segment_id] for segment_id in sorted(known)]
    unread = {segment.unread.segment_id: segment for segment in found.segments}
    for segment_id in unread.keys() - known.keys():
        known[segment_id] = SegmentPosition(stream, segment_id, "future", None, None)
    view = found.view
    heads = {s: view.head_offset(s) for s in known if view.has_segment(s)}
    return [
        # A segment without a record was truncated after the group recorded its offset.
        _measured(known[s], view, heads[s], unread.get(s)) if s in heads else known[s]
        for s in sorted(known)
    ]


def segment_positions(
    state: GroupState, stream: str, opened: Callable[[str], StreamLog]
) -> list[SegmentPosition]:
    """Return the :func:`positions_with` the newest backlog, for which chunks are read."""
    found = None
    with contextlib.suppress(NoSuchStream, StaleIdentity):
        found = backlog(opened(stream), state.cut(stream), state.ends.get(stream))
    return positions_with(state, stream, found)


def _offsets(state: GroupState, stream: str) -> Iterator[tuple[SegmentKey, int]]:
    return ((key, offset) for key, offset in state.positions() if key.stream == stream)


def _recorded(state: GroupState, key: SegmentKey, offset: int) -> SegmentPosition:
    owned = state.assigned.get(key)
    maps = {
        "assigned": state.assigned,
        "unassigned": state.unassigned,
        "future": state.future,
        "completed": state.completed,
    }
    name = next(name for name, keys in maps.items() if key in keys)
    reader = None if owned is None else owned.reader
    recorded = offset if offset >= 0 else None
    return SegmentPosition(key.stream, key.segment_id, name, reader, recorded)


def _measured(
    known: SegmentPosition, view: StreamView, head: int, unread: SegmentBacklog | None
) -> SegmentPosition:
    tail = view.segment(known.segment_id).next_offset
    is_read = known.state == "completed" and known.offset is None
    return replace(
        known,
        offset=tail if is_read else known.offset,
        head=head,
        tail=tail,
        events=0 if unread is None else len(unread.unread),
        size_bytes=0 if unread is None else unread.size_bytes,
        seconds=0.0 if unread is None else unread.seconds,
    )
