"""A reader group as it stands, for tables and people. Nothing is written by looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.backlog import SegmentBacklog, backlog
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.tables.synchronizer import Synchronizer
from pravega_spark.errors import NoSuchReaderGroup, NoSuchStream, StaleIdentity
from pravega_spark.model import segment_text
from pravega_spark.reader_groups.group_codec import GroupCodec
from pravega_spark.reader_groups.group_state import GroupState, Key, Phase
from pravega_spark.reader_groups.reader_group import group_path
from pravega_spark.reader_groups.reader_leases import ReaderLeases


@dataclass(frozen=True, slots=True)
class GroupVersion:
    """A group's state at a version of its table; ``updated_ms`` is the time of that commit."""

    state: GroupState
    version: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class SegmentPosition:
    """A segment of a group: who has it, how far it is read, and how much of it is unread.

    ``place`` is assigned, unassigned, future or completed. ``offset`` is that of the state, None
    where the group has not come yet. What cannot be told is None, as of a stream that was
    deleted; ``events``, ``size_bytes`` and ``seconds`` are as in ``lag.SegmentLag``.
    """

    stream: str
    segment_id: int
    place: str
    reader: str | None
    offset: int | None
    head: int | None = None
    tail: int | None = None
    events: int | None = None
    size_bytes: int | None = None
    seconds: float | None = None

    def named(self) -> dict[str, str | int | float | None]:
        """Return what is known of the segment by the names that tables and JSON have for it."""
        return {
            "segment": segment_text(self.segment_id),
            "state": self.place,
            "reader": self.reader,
            "current_offset": self.offset,
            "head_offset": self.head,
            "next_offset": self.tail,
            "lag": self.events,
            "lag_bytes": self.size_bytes,
            "lag_seconds": self.seconds,
        }


def find(store: Store, group: str) -> GroupVersion | None:
    """Return a group that exists, or None; a change that is half made stays so."""
    sync = Synchronizer(store, group_path(group), GroupCodec())
    known, snapshot = sync.fetch(), sync.table.log.snapshot
    if known is None or snapshot is None:
        return None
    if known.state.phase in (Phase.DELETING, Phase.DELETED):
        return None
    return GroupVersion(known.state, known.version, snapshot.timestamp_ms)


def look_up(store: Store, group: str) -> GroupVersion:
    """Do what :func:`find` does; raise NoSuchReaderGroup instead of None."""
    found = find(store, group)
    if found is None:
        raise NoSuchReaderGroup(
            f"reader group {group} does not exist under {store.url}.", group=group
        )
    return found


def said(store: Store, state: GroupState) -> GroupState:
    """Return the state with what its readers last said: newer than what they recorded."""
    return ReaderLeases(store, group_path(state.group)).fresh(state)


def segment_positions(
    state: GroupState, stream: str, opened: Callable[[str], StreamLog]
) -> list[SegmentPosition]:
    """Return the group's segments of a stream, and those ahead with unread events, by id."""
    known = {key.segment_id: _recorded(state, key, mark) for key, mark in _places(state, stream)}
    try:
        found = backlog(opened(stream), state.cut(stream), state.ends.get(stream))
    except (NoSuchStream, StaleIdentity):
        return [known[segment_id] for segment_id in sorted(known)]
    unread = {segment.unread.segment_id: segment for segment in found.segments}
    for segment_id in unread.keys() - known.keys():
        known[segment_id] = SegmentPosition(stream, segment_id, "future", None, None)
    view = found.view
    heads = {s: view.head_offset(s) for s in known if view.has_segment(s)}
    return [
        # A segment without a record was truncated since.
        _measured(known[s], view, heads[s], unread.get(s)) if s in heads else known[s]
        for s in sorted(known)
    ]


def _places(state: GroupState, stream: str) -> Iterator[tuple[Key, int]]:
    return ((key, mark) for key, mark in state.positions() if key.stream == stream)


def _recorded(state: GroupState, key: Key, mark: int) -> SegmentPosition:
    owned = state.assigned.get(key)
    places = {
        "assigned": state.assigned,
        "unassigned": state.unassigned,
        "future": state.future,
        "completed": state.completed,
    }
    place = next(name for name, keys in places.items() if key in keys)
    reader = None if owned is None else owned.reader
    return SegmentPosition(key.stream, key.segment_id, place, reader, mark if mark >= 0 else None)


def _measured(
    known: SegmentPosition, view: StreamView, head: int, unread: SegmentBacklog | None
) -> SegmentPosition:
    tail = view.segment(known.segment_id).next_offset
    is_read = known.place == "completed" and known.offset is None
    return replace(
        known,
        offset=tail if is_read else known.offset,
        head=head,
        tail=tail,
        events=0 if unread is None else len(unread.unread),
        size_bytes=0 if unread is None else unread.size_bytes,
        seconds=0.0 if unread is None else unread.seconds,
    )
