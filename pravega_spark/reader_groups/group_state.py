"""The state that the readers of a group share: frozen values, and what can be asked of them.

Every segment that the group has come to is in exactly one place: with one reader (``assigned``),
waiting for one (``unassigned``), waiting for a predecessor (``future``) or done (``completed``).
What is done leaves the state when its successors have come, so the places of a stream are, at
every moment, a cut of it that covers all keys. The transitions are in ``members``, ``checkpoints``
and ``progress``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pravega_spark.errors import ReinitializationRequired
from pravega_spark.model import END, NOT_REACHED, StreamCut, segment_text
from pravega_spark.reader_groups.group_configuration import GroupRetention, ReaderGroupConfiguration


class Key(NamedTuple):
    """A segment of one of the group's streams."""

    stream: str
    segment_id: int

    def __str__(self) -> str:
        """Name it as people do."""
        return f"{self.stream}/{segment_text(self.segment_id)}"


class Phase(enum.Enum):
    """Where a group is in its life."""

    CHANGING = "CHANGING"
    """It was created or reset, and its streams have still to be told; readers must wait."""
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Member:
    """A reader of the group: the number of its joining, and how long it lives without a sign.

    Without a lease nobody takes it for dead. One that is ``alone``, such as a streaming query, has
    all segments; nobody joins beside it.
    """

    number: int
    lease_ms: int | None
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Owned:
    """A segment with a reader: the number of this ownership, and the offset last recorded."""

    reader: str
    number: int
    offset: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint under way (somebody owes an answer) or completed.

    ``positions`` holds offsets or marks: of segments without a reader from the beginning, of the
    others as their readers answer. ``silent`` ones show no marker and move nothing.
    """

    name: str
    number: int
    silent: bool
    automatic: bool
    owing: frozenset[str]
    positions: Mapping[Key, int]

    @property
    def is_complete(self) -> bool:
        """Whether every reader has answered."""
        return not self.owing


@dataclass(frozen=True, slots=True)
class GroupState:
    """Everything that the readers of a group agree on.

    ``generation`` counts creations and resets and never restarts. ``lives`` names the life of
    each stream, ``ends`` the cut up to which it is read, where there is one. ``next_number``
    numbers joinings, ownerships and checkpoints. ``checkpoints`` has those under way and some
    completed ones, in the order of their beginning; ``last`` is the last completed one that was
    not silent. ``former`` are streams that an earlier generation held and this one does not, with
    the life of each; None where an older version has not noted it.
    ``query`` is the number of the last streaming query that joined; of older ones nothing counts.
    """

    group: str
    generation: int
    phase: Phase
    configuration: ReaderGroupConfiguration
    lives: Mapping[str, int]
    ends: Mapping[str, StreamCut] = field(default_factory=dict)
    next_number: int = 1
    readers: Mapping[str, Member] = field(default_factory=dict)
    assigned: Mapping[Key, Owned] = field(default_factory=dict)
    unassigned: Mapping[Key, int] = field(default_factory=dict)
    future: Mapping[Key, frozenset[int]] = field(default_factory=dict)
    completed: Mapping[Key, int] = field(default_factory=dict)
    checkpoints: tuple[Checkpoint, ...] = ()
    last: Checkpoint | None = None
    former: Mapping[str, int | None] = field(default_factory=dict)
    query: int = 0

    @property
    def held(self) -> frozenset[str]:
        """The streams that keep what the group has not read."""
        observes = self.configuration.retention is GroupRetention.NONE
        return frozenset() if observes else frozenset(self.lives)

    @property
    def released(self) -> dict[str, int | None]:
        """The lives of the streams that keep something for the group or may do so still."""
        return {**self.former, **{stream: self.lives[stream] for stream in self.held}}

    def member(self, reader: str, number: int) -> Member:
        """Return the reader's entry; raise ReinitializationRequired unless it is that joining."""
        member = self.readers.get(reader)
        if self.phase in (Phase.DELETING, Phase.DELETED):
            raise ReinitializationRequired(
                f"reader {reader}: reader group {self.group} was deleted.",
                group=self.group,
                reader=reader,
            )
        if member is None or member.number != number:
            raise ReinitializationRequired(
                f"reader {reader} is not in reader group {self.group} any more: the group was "
                "reset, or the reader was taken for dead and others go on from its last recorded "
                "position. Create the reader anew.",
                group=self.group,
                reader=reader,
                generation=self.generation,
            )
        return member

    def owned_by(self, reader: str) -> dict[Key, Owned]:
        """Return the segments of a reader, in the order in which it got them."""
        mine = [(key, owned) for key, owned in self.assigned.items() if owned.reader == reader]
        return dict(sorted(mine, key=lambda item: item[1].number))

    def owed_by(self, reader: str) -> Checkpoint | None:
        """Return the first checkpoint that waits for the reader's answer."""
        return next((c for c in self.checkpoints if reader in c.owing), None)

    def checkpoint(self, number: int) -> Checkpoint | None:
        """Return a checkpoint that is under way or kept."""
        return next((c for c in self.checkpoints if c.number == number), None)

    @property
    def is_at_end(self) -> bool:
        """Whether everything that the group is to read was read, for ever."""
        return not (self.assigned or self.unassigned or self.future)

    def positions(self) -> Iterator[tuple[Key, int]]:
        """Yield every segment of the state with its recorded offset or mark."""
        for key, owned in self.assigned.items():
            yield key, owned.offset
        yield from self.unassigned.items()
        for key in self.future:
            yield key, NOT_REACHED
        yield from self.completed.items()

    def cut(self, stream: str) -> StreamCut:
        """Return the recorded place in a stream, which covers all of its keys."""
        cells = {key.segment_id: mark for key, mark in self.positions() if key.stream == stream}
        return StreamCut(stream, self.lives[stream], cells)

    def cuts(self) -> dict[str, StreamCut]:
        """Return the recorded place in each stream."""
        return self.cuts_of(dict(self.positions()))

    def cuts_of(self, positions: Mapping[Key, int]) -> dict[str, StreamCut]:
        """Return positions, such as those of a checkpoint, as a cut for each stream."""
        cells: dict[str, dict[int, int]] = {stream: {} for stream in self.lives}
        for key, mark in positions.items():
            cells[key.stream][key.segment_id] = mark
        return {s: StreamCut(s, self.lives[s], found) for s, found in cells.items()}


def check(state: GroupState) -> GroupState:
    """Return the state; assert what holds of every state, before it is written and after."""
    places = (state.assigned, state.unassigned, state.future, state.completed)
    keys = [key for place in places for key in place]
    assert len(keys) == len(set(keys)), "a segment is in two places"
    assert all(key.stream in state.lives for key in keys), "a segment of another stream"
    readers = {owned.reader for owned in state.assigned.values()}
    owing = {reader for c in state.checkpoints for reader in c.owing}
    assert readers | owing <= set(state.readers), "a reader that is not in the group"
    numbers = [owned.number for owned in state.assigned.values()]
    numbers += [member.number for member in state.readers.values()]
    assert len(numbers) == len(set(numbers)), "a number was given twice"
    assert all(number < state.next_number for number in numbers), "a number of the future"
    offsets = [owned.offset for owned in state.assigned.values()] + list(state.unassigned.values())
    assert all(offset >= 0 for offset in offsets), "a mark where an offset should be"
    assert all(offset >= END for offset in state.completed.values())
    assert all(state.future.values()), "a future segment that waits for nothing"
    return state
