"""Hypothesis strategies: streams in memory with random histories, and simulated readers of them.

Brute force over all epochs, from the definitions, computes what the readers know. It shares no
code with the engine's functions that the tests compare with it.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import strategies as st

from pravega_spark.engine.layout import epoch_changes, epochs
from pravega_spark.engine.stream.records import SegmentRecord
from pravega_spark.errors import NoSuchSegment
from pravega_spark.values.segments import (
    END,
    NOT_REACHED,
    Epoch,
    KeyRange,
    Segment,
    SegmentRange,
    StreamCut,
    parse_segment,
)

GRID = 32
"""All ranges of random histories end on multiples of 1/32, so a check can try every key cell."""


@dataclass
class MemoryStream:
    """A stream without data: a Layout, with operations that change it.

    ``history`` and ``log`` keep everything; ``epoch`` and ``segment`` know only what truncation
    has not released.
    """

    stream: str = "nyc/flights"
    life: int = 1
    oldest_epoch: int = 0
    history: list[Epoch] = field(default_factory=list)
    records: dict[int, SegmentRecord] = field(default_factory=dict)
    log: list[tuple[int, int]] = field(default_factory=list)
    head: StreamCut = StreamCut.EARLIEST
    next_number: int = 0
    sealed: bool = False
    remembers: bool = False
    """Whether the history says what truncation has released."""
    _known: tuple[int, dict[Segment, tuple[list[Segment], list[Segment]]]] = field(default=(0, {}))

    @classmethod
    def of(cls, count: int) -> MemoryStream:
        stream = cls()
        stream._add(epoch_changes.first_epoch(count, 0, 0, 1_000))
        stream.head = StreamCut(
            stream.stream, stream.life, dict.fromkeys(stream.active.segment_ids, 0)
        )
        return stream

    @property
    def active(self) -> Epoch:
        return self.history[-1]

    def epoch(self, number: int, /) -> Epoch:
        assert self.oldest_epoch <= number <= self.active.number, f"epoch {number} is not kept"
        return self.history[number]

    def segment(self, segment_id: int, /) -> SegmentRecord:
        if not self.has_segment(segment_id):
            raise NoSuchSegment(str(segment_id))
        return self.records[segment_id]

    @property
    def truncated_by(self) -> str:
        return ""

    def since(self, number: int, /) -> MemoryStream | None:
        if not self.remembers:
            return None
        return replace(self, oldest_epoch=min(number, self.oldest_epoch))

    @property
    def lineage(self) -> epochs.Lineage:
        return epochs.Lineage(self)

    def has_segment(self, segment_id: int, /) -> bool:
        kept = self.history[self.oldest_epoch :]
        return any(epoch.segment(segment_id) for epoch in kept)

    def copy(self) -> MemoryStream:
        return copy.deepcopy(self)

    def _add(self, epoch: Epoch) -> None:
        self.history.append(epoch)
        for segment in epoch.segments:
            if segment.segment_id not in self.records:
                self.records[segment.segment_id] = SegmentRecord(segment.segment_id)
                self.next_number = max(self.next_number, segment.number + 1)

    def append(self, segment_id: int, count: int) -> None:
        record = self.records[segment_id]
        assert record.sealed_epoch is None
        end = record.next_offset + count
        self.log += [(segment_id, offset) for offset in range(record.next_offset, end)]
        size = record.size_bytes + sum(7 + o % 5 for o in range(record.next_offset, end))
        self.records[segment_id] = replace(record, next_offset=end, size_bytes=size)

    def scale(self, seal: Collection[int], ranges: Sequence[tuple[float, float]]) -> None:
        new = [KeyRange(*r) for r in ranges]
        self._add(epoch_changes.scale(self, seal, new, 0, self.next_number))
        for segment_id in seal:
            self._seal(segment_id)

    def seal(self) -> None:
        for segment_id in self.active.segment_ids:
            self._seal(segment_id)
        self.sealed = True

    def _seal(self, segment_id: int) -> None:
        record = self.records[segment_id]
        self.records[segment_id] = replace(record, sealed_epoch=self.active.number)

    def truncate(self, head: StreamCut) -> None:
        self.head = head
        self.oldest_epoch = max(self.oldest_epoch, min(s >> 32 for s, _ in head))

    def all_segments(self) -> list[Segment]:
        return list(self._neighbours())

    def before(self, segment: Segment) -> list[Segment]:
        """Return the predecessors, found in the complete history."""
        return self._neighbours()[segment][0]

    def after(self, segment: Segment) -> list[Segment]:
        """Return the successors, found in the complete history."""
        return self._neighbours()[segment][1]

    def _neighbours(self) -> dict[Segment, tuple[list[Segment], list[Segment]]]:
        if self._known[0] != len(self.history):
            segments = {s.segment_id: s for e in self.history for s in e.segments}
            found: dict[Segment, tuple[list[Segment], list[Segment]]]
            found = {segments[s]: ([], []) for s in sorted(segments)}
            for older, newer in itertools.pairwise(self.history):
                for a, b in itertools.product(older.segments, newer.segments):
                    if a != b and a.key_range.overlaps(b.key_range):
                        found[a][1].append(b)
                        found[b][0].append(a)
            self._known = (len(self.history), found)
        return self._known[1]

    def bytes_at(self, segment_id: int, offset: int) -> int:
        assert 0 <= offset <= self.records[segment_id].next_offset
        return sum(7 + o % 5 for o in range(offset))


@dataclass
class Reader:
    """Reads segments in random order, each after all its predecessors; its position is a cut."""

    offsets: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def copy(self) -> Reader:
        return copy.deepcopy(self)

    def readable(self, stream: MemoryStream) -> list[Segment]:
        return [
            s
            for s in stream.all_segments()
            if s.segment_id not in self.ended
            and all(b.segment_id in self.ended for b in stream.before(s))
        ]

    def is_finished(self, stream: MemoryStream, segment: Segment) -> bool:
        record = stream.records[segment.segment_id]
        read = self.offsets.get(segment.segment_id, 0)
        return record.sealed_epoch is not None and read == record.next_offset

    def move(self, stream: MemoryStream, choice: int, count: int) -> None:
        """Read up to ``count`` events of one segment; with 0, mark it as ended if it is."""
        readable = self.readable(stream)
        if not readable:
            return
        segment = readable[choice % len(readable)]
        read = self.offsets.get(segment.segment_id, 0)
        if count:
            end = stream.records[segment.segment_id].next_offset
            self.offsets[segment.segment_id] = min(end, read + count)
        elif self.is_finished(stream, segment):
            self.ended.add(segment.segment_id)

    def pass_ends(self, stream: MemoryStream) -> Reader:
        """Mark every segment as ended that has no unread event; repeat for its successors."""
        while ends := [s for s in self.readable(stream) if self.is_finished(stream, s)]:
            self.ended.update(s.segment_id for s in ends)
        return self

    def cut(self, stream: MemoryStream) -> StreamCut:
        readable = self.readable(stream)
        positions = {s.segment_id: self.offsets.get(s.segment_id, 0) for s in readable}
        for segment in stream.all_segments():
            if segment.segment_id in self.ended:
                after = stream.after(segment)
                future = {
                    s.segment_id: NOT_REACHED
                    for s in after
                    if s not in readable and s.segment_id not in self.ended
                }
                if future or not after:
                    positions |= {segment.segment_id: END, **future}
        return StreamCut(stream.stream, stream.life, positions)

    def short_cut(self, stream: MemoryStream) -> StreamCut:
        """Return the cut in Pravega's form: a waiting segment implies its finished predecessors."""
        full = self.cut(stream)
        waiting = [s for s in stream.all_segments() if full.positions.get(s.segment_id) == -2]
        seen = {b.segment_id for w in waiting for b in stream.before(w)}
        kept = {s: o for s, o in full if o != END or s not in seen}
        return StreamCut(stream.stream, stream.life, kept)

    def events(self) -> set[tuple[int, int]]:
        return {(s, o) for s, end in self.offsets.items() for o in range(end)}


def events_of(ranges: Collection[SegmentRange]) -> list[tuple[int, int]]:
    return [(r.segment_id, o) for r in ranges for o in range(r.start, r.end)]


def _dice(draw: st.DrawFn, most: int) -> tuple[Random, range]:
    """Draw one seed and a number of steps; many small draws rarely give long histories."""
    return Random(draw(st.integers(0, 2**32))), range(draw(st.integers(0, most)))


def grow(stream: MemoryStream, dice: Random) -> None:
    """Append to a stream, or scale it; one that is sealed stays as it is."""
    if stream.sealed:
        return
    if dice.random() < 0.7 or len(stream.active.segments) > 8:
        for _ in range(3):
            stream.append(dice.choice(stream.active.segment_ids), dice.randint(1, 6))
    else:
        scale_by_numbers(stream, dice.randrange(2**16), dice.randrange(2**16))


def scale_by_numbers(stream: MemoryStream, where: int, shape: int) -> None:
    """Replace some neighbouring segments: split, merge, replace alike, or move their borders."""
    segments = stream.active.segments
    first = where % len(segments)
    sealed = segments[first : first + 1 + where // 7 % 3]
    low, high = sealed[0].key_range.low, sealed[-1].key_range.high
    inner = range(int(low * GRID) + 1, int(high * GRID))
    picked = {inner[shape // (5**i) % len(inner)] / GRID for i in range(shape % 4) if inner}
    edges = [low, *sorted(picked), high]
    stream.scale([s.segment_id for s in sealed], list(itertools.pairwise(edges)))


def _grow(stream: MemoryStream, dice: Random) -> None:
    if dice.random() < 0.5:
        stream.append(dice.choice(stream.active.segment_ids), dice.randint(1, 9))
    elif len(stream.active.segments) <= 8:
        scale_by_numbers(stream, dice.randrange(2**16), dice.randrange(2**16))


def _wander(stream: MemoryStream, reader: Reader, dice: Random, moves: int) -> Reader:
    reader = reader.copy()
    for _ in range(moves):
        reader.move(stream, dice.randrange(32), dice.choice((0, 0, 1, 5, 9)))
    return reader.pass_ends(stream) if dice.random() < 0.3 else reader


@st.composite
def streams(draw: st.DrawFn) -> MemoryStream:
    """Draw a stream with a random history of appends and scales, perhaps sealed, not truncated."""
    stream = MemoryStream.of(draw(st.sampled_from((1, 2, 4))))
    dice, rolls = _dice(draw, 20)
    for _ in rolls:
        _grow(stream, dice)
    if draw(st.integers(0, 3)) == 3:
        stream.seal()
    return stream


@st.composite
def readers(draw: st.DrawFn, stream: MemoryStream) -> Reader:
    """Draw a reader at a random position of the stream."""
    dice, rolls = _dice(draw, 60)
    return _wander(stream, Reader(), dice, len(rolls))


@st.composite
def journeys(draw: st.DrawFn) -> tuple[MemoryStream, list[tuple[Reader, StreamCut]]]:
    """Draw a growing stream, and the positions of one reader that followed it, in order."""
    stream = MemoryStream.of(draw(st.sampled_from((1, 2, 4))))
    reader = Reader()
    positions = [(reader, reader.cut(stream))]
    dice, rolls = _dice(draw, 30)
    for roll in rolls:
        if roll == rolls[-1] and dice.random() < 0.3:
            stream.seal()
        elif dice.random() < 0.7:
            _grow(stream, dice)
            continue
        reader = _wander(stream, reader, dice, dice.randrange(20))
        positions.append((reader, reader.cut(stream)))
    return stream, positions


def is_valid(stream: MemoryStream, cut: StreamCut) -> bool:
    """Return whether a cut is a valid position, by the definition at every key of the grid.

    At each key the cut must name one point in the chain of segments, and no segment may be
    passed at one of its keys and not at another.
    """
    segments = stream.all_segments()
    known = {s.segment_id: s for s in segments}
    if not all(
        s in known
        and (o != END or stream.records[s].sealed_epoch is not None)
        and o <= stream.records[s].next_offset
        for s, o in cut
    ):
        return False
    passed: dict[Segment, set[object]] = {s: set() for s in segments}
    for i in range(GRID):
        key = (i + 0.5) / GRID
        chain = [s for s in segments if s.key_range.low <= key < s.key_range.high]
        marks = [cut.positions.get(s.segment_id) for s in chain]
        reached = [k for k, m in enumerate(marks) if m is not None and m >= END]
        future = [k for k, m in enumerate(marks) if m == NOT_REACHED]
        if not reached and not future:
            return False
        if reached and future and max(reached) > min(future):
            return False
        if any(marks[k] != END for k in reached[:-1]):
            return False
        count = reached[-1] + (marks[reached[-1]] == END) if reached else future[0]
        for k, segment in enumerate(chain):
            inside = k == count and bool(reached) and marks[reached[-1]] != END
            passed[segment].add("in" if inside else k < count)
    if any(len(answers) > 1 for answers in passed.values()):
        return False
    return all(
        any(passed[b] != {True} for b in stream.before(known[s]))
        for s, mark in cut
        if mark == NOT_REACHED
    ) and any(mark != NOT_REACHED for _, mark in cut)


def cut_of(text: str, life: int = 1) -> StreamCut:
    return StreamCut.parse(f"nyc/flights@{life}:{text}")


def half_merged() -> MemoryStream:
    """Return a stream whose segments 0 and 1 (10 and 20 events) merged into 2 (5 events)."""
    stream = MemoryStream.of(2)
    stream.append(0, 10)
    stream.append(1, 20)
    stream.scale([0, 1], [(0.0, 1.0)])
    stream.append(parse_segment("2#1"), 5)
    return stream


def crossed() -> MemoryStream:
    """Return a stream: 0 and 1 (10 each) become 2 = [0, 0.25) and 3 = [0.25, 1); 2 splits."""
    stream = MemoryStream.of(2)
    for segment_id in (0, 1):
        stream.append(segment_id, 10)
    stream.scale([0, 1], [(0.0, 0.25), (0.25, 1.0)])
    stream.scale([parse_segment("2#1")], [(0.0, 0.125), (0.125, 0.25)])
    return stream
