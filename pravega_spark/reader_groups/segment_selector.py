"""The events of the segments that a reader has, segment after segment in turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import immutables

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import (
    NoSuchStream,
    PravegaSparkError,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.model import SegmentRange
from pravega_spark.reader_groups.group_state import GroupState, Key, Owned
from pravega_spark.reader_groups.segment_buffer import SegmentBuffer
from pravega_spark.reader_groups.segment_transitions import Stops


def view_of(stream: StreamLog, life: int) -> StreamView | None:
    """Return the newest view of a stream in this life; None if it was deleted."""
    try:
        view = stream.view()
        view.check_life(life)
    except (NoSuchStream, StaleIdentity):
        return None
    return view


@dataclass(frozen=True, slots=True)
class _Look:
    """A stream as it was in a look for events, and where the group stops in it."""

    view: StreamView
    stops: Stops


class SegmentSelector:
    """What a reader holds: offsets, the numbers of its ownerships, and events read ahead.

    ``held`` has the offset of the next event of each segment. ``below`` are streams in which the
    head has passed what is held, or which are gone; ``met`` is what reading said of it, if it did.
    """

    def __init__(
        self, streams: Callable[[str], StreamLog], state: Callable[[], GroupState]
    ) -> None:
        """Begin with nothing; ``state`` is the group's, as the reader knows it."""
        self._streams, self._state = streams, state
        self.held: immutables.Map[Key, int] = immutables.Map()
        self.numbers: dict[Key, int] = {}
        self.below: set[str] = set()
        self.met: PravegaSparkError | None = None
        self.before_last: tuple[Key, int] | None = None
        """Where the last event that was taken began: a segment and its offset."""
        self._looks: dict[str, _Look | None] = {}
        self._idle: tuple[object, ...] | None = None
        """What was held, and of which views, when a look found nothing to do."""
        self._ended: tuple[object, object, frozenset[Key]] | None = None
        """What was held, the looks, and which segments had ended by them."""
        self._buffers: OrderedDict[Key, SegmentBuffer] = OrderedDict()
        """In the order of their turns."""

    def take(self, take: Callable[[SegmentBuffer], Any]) -> Any:
        """Return what the segment has whose turn it is, or the next one that has any; or None.

        Who takes something says by :meth:`advance` how far that goes.
        """
        while self._buffers:
            key, buffer = next(iter(self._buffers.items()))
            try:
                found = take(buffer)
            except (TruncatedData, NoSuchStream, StaleIdentity) as error:
                self.below.add(key.stream)
                self.met = error
                del self._buffers[key]
                return None
            if found is None:
                del self._buffers[key]
            else:
                self.before_last = key, self.held[key]
                if buffer.is_between:
                    self._buffers.move_to_end(key)
                return found
        return None

    def advance(self, offset: int) -> None:
        """Note the offset after what was taken just now."""
        assert self.before_last is not None
        self.held = self.held.set(self.before_last[0], offset)

    def fill(self) -> bool:
        """Look what the segments have by now; tell whether there is something to do with it."""
        wanted = sorted({key.stream for key in self.held if key not in self._buffers})
        looks = {stream: self._look(stream) for stream in wanted}
        seen = self.held, *(look and look.view for look in looks.values())
        if seen == self._idle and not self._buffers:
            return False  # as before: what is idle costs nothing for each of its segments
        self._looks, self._idle = looks, None
        for key, offset in sorted(self.held.items()):
            if key in self._buffers:
                continue
            look = looks[key.stream]
            if look is None or look.view.is_truncated(key.segment_id, offset):
                self.below.add(key.stream)
                return True
            end = look.view.segment(key.segment_id).next_offset
            stop = look.stops.of(key.segment_id)
            end = end if stop is None else min(end, stop)
            if end > offset:
                rng = SegmentRange(key.stream, look.view.life, key.segment_id, offset, end)
                self._buffers[key] = SegmentBuffer(self._streams(key.stream), rng)
        if not self._buffers:
            self._idle = seen
        return bool(self._buffers)

    def _look(self, stream: str) -> _Look | None:
        """Return the stream as it is now; None if it was deleted."""
        state = self._state()
        view = view_of(self._streams(stream), state.lives[stream])
        return None if view is None else _Look(view, Stops(state, view))

    def unread(self) -> dict[Key, int]:
        """Return how many events are left in segments, as far as the last look at each tells."""
        return {key: buffer.end - self.held[key] for key, buffer in self._buffers.items()}

    def ended(self) -> frozenset[Key]:
        """Return the segments that were read to their ends, as far as the last look tells."""
        known = self._ended
        if known is None or known[0] is not self.held or known[1] is not self._looks:
            held = self.held.items()
            found = frozenset(key for key, offset in held if self._has_ended(key, offset))
            known = self._ended = self.held, self._looks, found
        return known[2]

    def _has_ended(self, key: Key, offset: int) -> bool:
        look = self._looks.get(key.stream)
        if look is None or not look.view.has_segment(key.segment_id):
            return False
        stop = look.stops.of(key.segment_id)
        if stop is not None:
            return offset >= stop
        record = look.view.segment(key.segment_id)
        return record.is_sealed and offset >= record.next_offset

    def adopt(self, owned: Mapping[Key, Owned]) -> frozenset[Key]:
        """Hold what the group's state says; return the segments that it has moved on.

        That is what truncation does. Events read ahead stay where nothing changed.
        """
        held, numbers, moved = {}, {}, set()
        for key, mine in owned.items():
            known = self.held.get(key) if self.numbers.get(key) == mine.number else None
            if known is not None and known < mine.offset:
                moved.add(key)
            held[key] = mine.offset if known is None else max(known, mine.offset)
            numbers[key] = mine.number
        for key in list(self._buffers):
            if held.get(key) != self.held.get(key) or numbers.get(key) != self.numbers.get(key):
                del self._buffers[key]
        self.held, self.numbers = immutables.Map(held), numbers
        self.below, self.met = set(), None
        return frozenset(moved)
