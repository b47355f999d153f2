"""The events of the segments that a reader has, segment after segment in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import immutables

from pravega_spark.engine.epochs import Lineage
from pravega_spark.engine.places import Place, locate
from pravega_spark.engine.stream import Stream, StreamView
from pravega_spark.errors import (
    NoSuchStream,
    PravegaSparkError,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.model import END, SegmentRange
from pravega_spark.readers import progress
from pravega_spark.readers.buffer import Buffer
from pravega_spark.readers.state import GroupState, Key, Owned


def view_of(stream: Stream, life: int) -> StreamView | None:
    """Return the newest view of a stream in this life; None if it was deleted."""
    try:
        view = stream.view()
        view.check_life(life)
    except (NoSuchStream, StaleIdentity):
        return None
    return view


class Feed:
    """What a reader holds: offsets, the numbers of its ownerships, and events read ahead.

    ``held`` has the offset of the next event of each segment. ``below`` are streams in which the
    head has passed what is held, or which are gone; ``met`` is what reading said of it, if it did.
    """

    def __init__(self, streams: Callable[[str], Stream], state: Callable[[], GroupState]) -> None:
        """Begin with nothing; ``state`` is the group's, as the reader knows it."""
        self._streams, self._state = streams, state
        self.held: immutables.Map[Key, int] = immutables.Map()
        self.numbers: dict[Key, int] = {}
        self.below: set[str] = set()
        self.met: PravegaSparkError | None = None
        self.before_last: tuple[Key, int] | None = None
        """Where the last event that was taken began: a segment and its offset."""
        self._views: dict[str, StreamView | None] = {}
        self._heads: dict[str, tuple[object, Place]] = {}
        self._buffers: dict[Key, Buffer] = {}
        self._queue: deque[Key] = deque()

    def take(self, take: Callable[[Buffer], Any]) -> Any:
        """Return what the segment has whose turn it is, or the next one that has any; or None.

        Who takes something says by :meth:`advance` how far that goes.
        """
        while self._queue:
            key = self._queue[0]
            buffer = self._buffers[key]
            try:
                found = take(buffer)
            except (TruncatedData, NoSuchStream, StaleIdentity) as error:
                self.below.add(key.stream)
                self.met = error
                self._drop(key)
                return None
            if found is None:
                self._drop(key)
            else:
                self.before_last = key, self.held[key]
                if buffer.is_between:
                    self._queue.rotate(-1)
                return found
        return None

    def advance(self, offset: int) -> None:
        """Note the offset after what was taken just now."""
        assert self.before_last is not None
        self.held = self.held.set(self.before_last[0], offset)

    def _drop(self, key: Key) -> None:
        self._buffers.pop(key, None)
        if key in self._queue:
            self._queue.remove(key)

    def fill(self) -> bool:
        """Look what the segments have by now; tell whether there is something to do with it."""
        self._views = {}
        for key, offset in sorted(self.held.items()):
            if key in self._buffers:
                continue
            view = self._view(key.stream)
            if view is None or self._is_below(view, key, offset):
                self.below.add(key.stream)
                return True
            end = view.segment(key.segment_id).next_offset
            stop = progress.stop_of(self._state(), view, key)
            end = end if stop is None else min(end, stop)
            if end > offset:
                rng = SegmentRange(key.stream, view.life, key.segment_id, offset, end)
                self._buffers[key] = Buffer(self._streams(key.stream), rng)
                self._queue.append(key)
        return bool(self._queue)

    def _view(self, stream: str) -> StreamView | None:
        """Return the stream as it is in this look for events; None if it was deleted."""
        if stream not in self._views:
            life = self._state().lives[stream]
            self._views[stream] = view_of(self._streams(stream), life)
        return self._views[stream]

    def _is_below(self, view: StreamView, key: Key, offset: int) -> bool:
        """Tell whether the head has passed the offset; a chunk may still hold what it passed."""
        if not view.has_segment(key.segment_id):
            return True
        known = self._heads.get(key.stream)
        if known is None or known[0] is not view.record.head:
            known = (view.record.head, locate(Lineage(view), view.head))
            self._heads[key.stream] = known
        mark = known[1].of(Lineage(view).find(key.segment_id))
        return mark == END or offset < mark

    def unread(self) -> dict[Key, int]:
        """Return how many events are left in segments, as far as the last look at each tells."""
        return {key: buffer.end - self.held[key] for key, buffer in self._buffers.items()}

    def ended(self) -> frozenset[Key]:
        """Return the segments that were read to their ends, as far as the last look tells."""
        return frozenset(key for key, offset in self.held.items() if self._has_ended(key, offset))

    def _has_ended(self, key: Key, offset: int) -> bool:
        view = self._views.get(key.stream)
        if view is None or not view.has_segment(key.segment_id):
            return False
        stop = progress.stop_of(self._state(), view, key)
        if stop is not None:
            return offset >= stop
        record = view.segment(key.segment_id)
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
                self._drop(key)
        self.held, self.numbers = immutables.Map(held), numbers
        self.below, self.met = set(), None
        return frozenset(moved)
