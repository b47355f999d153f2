"""The state that the readers of a group share: frozen values and pure queries over them.

The state keeps every segment that the group has reached in exactly one of four maps: with a reader
(``assigned``), waiting for a reader (``unassigned``), waiting for a predecessor (``future``) or
finished (``completed``). A finished segment leaves the state once all its successors are reached.
So the offsets of a stream form, at every moment, a cut that covers all keys. The transitions are in
``transitions`` and ``segments``.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from pravega_spark.errors import ReinitializationRequired
from pravega_spark.reader_groups.configuration import GroupRetention, ReaderGroupConfiguration
from pravega_spark.reader_groups.owners import Owners
from pravega_spark.values.segments import END, NOT_REACHED, SegmentRange, StreamCut, segment_text


class SegmentKey(NamedTuple):
    """A segment of one of the group's streams."""

    stream: str
    segment_id: int

    def __str__(self) -> str:
        """Return ``scope/stream/number#epoch``."""
        return f"{self.stream}/{segment_text(self.segment_id)}"


class Phase(enum.Enum):
    """How far the creation, a reset, an update or the deletion of a group is."""

    CHANGING = "CHANGING"
    """Created or reset, but its streams are not subscribed yet; readers must wait."""
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class ReaderEntry:
    """A reader of the group: the number of its joining and its lease.

    A reader without a lease never expires. An ``exclusive`` reader, such as a streaming query, has
    all segments and shares the group with no other reader.
    """

    number: int
    lease_ms: int | None
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Ownership:
    """A segment's reader, the number of this ownership, and the last recorded offset."""

    reader: str
    number: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint, pending until every reader in ``pending_readers`` has answered.

    ``positions`` holds an offset, END or NOT_REACHED for each segment: for segments without a
    reader from the start, for the others as their readers answer. A ``silent`` checkpoint shows no
    marker and records no offset.
    """

    name: str
    number: int
    silent: bool
    automatic: bool
    pending_readers: frozenset[str]
    positions: Mapping[SegmentKey, int]

    @property
    def is_complete(self) -> bool:
        """Whether every reader has answered."""
        return not self.pending_readers


@dataclass(frozen=True, slots=True)
class PreparedPositions:
    """The positions of a reader that a joint transaction acknowledges if it commits.

    ``number`` is that of the reader's joining. ``offsets`` are those of its segments that move.
    """

    transaction: str
    number: int
    offsets: Mapping[SegmentKey, int]


@dataclass(frozen=True, slots=True)
class Find:
    """What a reader has to tell: events that were truncated unread, or a stream that was deleted.

    ``joining`` is the number of the reader's joining. ``lost`` is None for a deleted stream; an
    empty range has an unknown end.
    """

    reader: str
    joining: int
    stream: str
    lost: SegmentRange | None


class UndecidedPositions(Exception):
    """Internal: a change must first carry out or abort the prepared positions of transactions."""

    def __init__(self, transactions: Collection[str]) -> None:
        """Name the transactions."""
        super().__init__(*transactions)
        self.transactions = frozenset(transactions)


@dataclass(frozen=True, slots=True)
class GroupState:
    """Everything that the readers of a group agree on.

    ``generation`` counts creations, resets and updates and never restarts. ``lives`` has the life
    of each stream, ``ends`` the cut up to which the group reads it, if it has one. ``next_number``
    numbers joinings, ownerships and checkpoints. ``checkpoints`` has the pending and the newest
    complete checkpoints, oldest first; ``last_checkpoint`` is the last complete one that was not
    silent. ``former_streams`` were subscribed by an earlier generation and are not by this one,
    each with its life (None if an older version did not record it). ``query_number`` is the number
    of the last streaming query that joined; the group ignores reports of earlier ones. ``began``
    has the generation in which the group began to read each stream: since
    then its positions only moved forward. ``renewed_streams`` keep, until the group is active, what
    they kept for the generation before. ``prepared`` has, by reader, the positions that a joint
    transaction has prepared; while they are there the reader stays in the group. ``finds`` has, by
    number, what readers have found and not told yet. ``owners`` has the record of each segment in
    reach, and of those that were finished last; it lacks segments of which an older version dropped
    it. ``finished_since`` has, for each stream, the number from which on no ownership of a segment
    that was finished since is missing.
    """

    group: str
    generation: int
    phase: Phase
    configuration: ReaderGroupConfiguration
    lives: Mapping[str, int]
    ends: Mapping[str, StreamCut] = field(default_factory=dict)
    next_number: int = 1
    readers: Mapping[str, ReaderEntry] = field(default_factory=dict)
    assigned: Mapping[SegmentKey, Ownership] = field(default_factory=dict)
    unassigned: Mapping[SegmentKey, int] = field(default_factory=dict)
    future: Mapping[SegmentKey, frozenset[int]] = field(default_factory=dict)
    completed: Mapping[SegmentKey, int] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()
    last_checkpoint: Checkpoint | None = None
    former_streams: Mapping[str, int | None] = field(default_factory=dict)
    query_number: int = 0
    began: Mapping[str, int] = field(default_factory=dict)
    renewed_streams: frozenset[str] = frozenset()
    prepared: Mapping[str, PreparedPositions] = field(default_factory=dict)
    finds: Mapping[int, Find] = field(default_factory=dict)
    owners: Mapping[SegmentKey, Owners] = field(default_factory=dict)
    finished_since: Mapping[str, int] = field(default_factory=dict)

    @property
    def subscribed_streams(self) -> frozenset[str]:
        """The streams that keep what the group has not read."""
        observes = self.configuration.retention is GroupRetention.NONE
        return frozenset() if observes else frozenset(self.lives)

    @property
    def subscribed_lives(self) -> dict[str, int | None]:
        """The lives of all streams that keep data for the group, or may still do so."""
        subscribed = {stream: self.lives[stream] for stream in self.subscribed_streams}
        return {**self.former_streams, **subscribed}

    def continued_streams(self, generation: int) -> frozenset[str]:
        """Return the streams whose positions continue those of an earlier generation, or this.

        A deleted group has none.
        """
        if generation > self.generation or self.phase in (Phase.DELETING, Phase.DELETED):
            return frozenset()
        return frozenset(stream for stream, began in self.began.items() if began <= generation)

    def continues(self, generation: int) -> bool:
        """Return whether all positions continue those of an earlier generation, or this."""
        return self.continued_streams(generation) == self.lives.keys()

    def reader_entry(self, reader: str, number: int) -> ReaderEntry:
        """Return a reader's entry; raise ReinitializationRequired unless it has that number."""
        entry = self.readers.get(reader)
        if self.phase in (Phase.DELETING, Phase.DELETED):
            raise ReinitializationRequired(
                f"reader {reader}: reader group {self.group} was deleted.",
                group=self.group,
                reader=reader,
            )
        if entry is None or entry.number != number:
            raise ReinitializationRequired(
                f"reader {reader} is no longer in reader group {self.group}: the group was reset "
                "or updated, or the reader's lease expired and other readers continue from its "
                "last recorded position. Create the reader again.",
                group=self.group,
                reader=reader,
                generation=self.generation,
            )
        return entry

    def check_nothing_prepared(self, readers: Collection[str]) -> None:
        """Raise UndecidedPositions if a transaction has prepared positions of these readers."""
        found = {self.prepared[r].transaction for r in readers if r in self.prepared}
        if found:
            raise UndecidedPositions(found)

    def owned_by(self, reader: str) -> dict[SegmentKey, Ownership]:
        """Return the segments of a reader, in the order in which it acquired them."""
        mine = [(key, owned) for key, owned in self.assigned.items() if owned.reader == reader]
        return dict(sorted(mine, key=lambda item: item[1].number))

    @property
    def awaited(self) -> dict[str, list[str]]:
        """The readers for whom each pending checkpoint waits, by its name."""
        return {c.name: sorted(c.pending_readers) for c in self.checkpoints if c.pending_readers}

    def pending_checkpoint(self, reader: str) -> Checkpoint | None:
        """Return the first checkpoint that the reader has not answered."""
        return next((c for c in self.checkpoints if reader in c.pending_readers), None)

    def checkpoint(self, number: int) -> Checkpoint | None:
        """Return a pending or retained checkpoint."""
        return next((c for c in self.checkpoints if c.number == number), None)

    @property
    def is_at_end(self) -> bool:
        """Whether the group has read everything that it will ever read."""
        return not (self.assigned or self.unassigned or self.future)

    def positions(self) -> Iterator[tuple[SegmentKey, int]]:
        """Yield every segment of the state with its recorded offset, END or NOT_REACHED."""
        for key, owned in self.assigned.items():
            yield key, owned.offset
        yield from self.unassigned.items()
        for key in self.future:
            yield key, NOT_REACHED
        yield from self.completed.items()

    def cut(self, stream: str) -> StreamCut:
        """Return the recorded cut of a stream, which covers all of its keys."""
        cells = {key.segment_id: offset for key, offset in self.positions() if key.stream == stream}
        return StreamCut(stream, self.lives[stream], cells)

    def cuts(self) -> dict[str, StreamCut]:
        """Return the recorded cut of each stream."""
        return self.cuts_of(dict(self.positions()))

    def held_cut(self, stream: str) -> StreamCut:
        """Return the cut from which a new subscription of the group holds data.

        That is the last checkpoint, to which a reset returns, or the recorded cut without one.
        """
        last = self.last_checkpoint
        return self.cut(stream) if last is None else self.cuts_of(last.positions)[stream]

    def cuts_of(self, positions: Mapping[SegmentKey, int]) -> dict[str, StreamCut]:
        """Return positions, such as those of a checkpoint, as one cut for each stream."""
        cells: dict[str, dict[int, int]] = {stream: {} for stream in self.lives}
        for key, offset in positions.items():
            cells[key.stream][key.segment_id] = offset
        return {s: StreamCut(s, self.lives[s], found) for s, found in cells.items()}


def check_state(state: GroupState) -> GroupState:
    """Return the state; assert its invariants, before it is written and after it is read."""
    maps = (state.assigned, state.unassigned, state.future, state.completed)
    keys = [key for segments in maps for key in segments]
    assert len(keys) == len(set(keys)), "a segment is in two maps"
    assert all(key.stream in state.lives for key in keys), "a segment of another stream"
    readers = {owned.reader for owned in state.assigned.values()}
    pending = {reader for c in state.checkpoints for reader in c.pending_readers}
    assert readers | pending <= set(state.readers), "a reader that is not in the group"
    held = {reader: entry.number for reader, entry in state.readers.items()}
    assert all(held.get(r) == p.number for r, p in state.prepared.items()), "prepared by nobody"
    numbers = [owned.number for owned in state.assigned.values()]
    numbers += [*(entry.number for entry in state.readers.values()), *state.finds]
    assert len(numbers) == len(set(numbers)), "a number was given twice"
    assert all(number < state.next_number for number in numbers), "a number was not given yet"
    offsets = [owned.offset for owned in state.assigned.values()] + list(state.unassigned.values())
    assert all(offset >= 0 for offset in offsets), "END or NOT_REACHED instead of an offset"
    assert all(offset >= END for offset in state.completed.values())
    assert all(state.future.values()), "a future segment that waits for nothing"
    for key, record in state.owners.items():
        assert key.stream in state.lives, "owners of a segment of another stream"
        known = [(owner.offset, owner.number) for owner in record.last]
        assert all(a < c and b < d for (a, b), (c, d) in pairwise(known)), "owners out of order"
    return state
