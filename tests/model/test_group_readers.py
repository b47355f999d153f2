"""Readers of a group against streams that are scaled, truncated, deleted and created again.

Readers of several processes join, leave, die, answer checkpoints and are reset, and any of their
storage calls may fail. Each event is read once (again only after a death or a change of the group,
and only what was not acknowledged), in the order of its key; or one error says that it is lost.
"""

# ruff: noqa: PT017  (a model judges whichever error comes)

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from pravega_spark.errors import (
    CheckpointFailed,
    CommitUnknown,
    InvalidStreamCut,
    NoSuchStream,
    ReinitializationRequired,
    StoreError,
    TooManyCheckpoints,
    TruncatedData,
)
from pravega_spark.reader_groups.checkpoint_future import CheckpointFuture, GroupCheckpoint
from pravega_spark.reader_groups.lifecycle import GroupLifecycle
from pravega_spark.reader_groups.position import EventRead, EventsRead
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.values.segments import StreamCut
from tests.harness.group_world import membership_of
from tests.harness.reading_world import Life, Process, ReadingWorld, number_of
from tests.harness.sequences import Step, act, drawn_steps, play_shortest
from tests.harness.tiers import sized

NAMES = ("s/t", "s/u", "s/v")
GROUP = "s/g"
LEASE_SECONDS = 60.0
HEARTBEAT_SECONDS = 20.0


@dataclass
class Member:
    """A reader, and what it has handed out that the group may not know of yet."""

    name: str
    process: Process
    reader: EventStreamReader
    unsafe: set[int] = field(default_factory=set)
    unsafe_lost: set[int] = field(default_factory=set)
    """What it has told as lost, and may be told again."""
    safe_at: float = 0.0
    is_out: bool = False
    """Whether it is not in the group any more, and may not know it."""
    last: set[int] = field(default_factory=set)
    """The events in hand, which count as processed at the next call."""
    marker: str | None = None
    told: set[tuple[str, int]] = field(default_factory=set)
    """The lives of streams whose deletion it has told."""


def _streams_of(member: Member) -> int:
    return len({key.stream for key in member.reader.position.offsets})


@dataclass
class Part:
    """A stream of the group: the life that it reads, and what has become of its events."""

    life: Life
    read: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    """What an error has told as lost."""
    again: set[int] = field(default_factory=set)
    """What was read, and may be read or lost again."""
    is_forgotten: bool = False
    """Whether an error has told of a loss whose extent nobody knows any more."""
    is_told: bool = False
    """Whether a reader has told that the stream was deleted."""

    def passed(self) -> set[int]:
        return self.read | self.lost


class Group(ReadingWorld):
    """A group, its readers, and what each of them may say."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(NAMES, processes=3)
        self.dice = dice
        self.acknowledge = dice.choice(("next", "next", "checkpoint"))
        self.members: dict[str, Member] = {}
        self.parts: dict[str, Part] = {}
        self.pending: list[CheckpointFuture] = []
        self.kept: list[tuple[GroupCheckpoint, dict[str, frozenset[int]]]] = []
        self.has_lost_readers = False
        self._groups: dict[int, ReaderGroup] = {}
        names = dice.sample(NAMES, dice.choice((1, 2, 2, 3)))
        self.judge.create_reader_group(
            GROUP,
            names,
            checkpoint_interval=None if dice.random() < 0.6 else "10 s",
            acknowledge=self.acknowledge,
        )
        for name in names:
            self.parts[name] = Part(self.lives[name][-1])
            for _ in range(dice.choice((0, 0, 1, 2))):
                self.scale_life(self.lives[name][-1])
        self.names = [*names, *(n for n in NAMES if n not in names)]

    def group(self, process: Process) -> ReaderGroup:
        found = self._groups.get(id(process))
        if found is None:
            lifecycle = GroupLifecycle(process.spy, GROUP, process.log, self.clock)
            found = self._groups[id(process)] = ReaderGroup(lifecycle)
        return found

    # --------------------------------------------------------------------------------- membership

    def join(self) -> None:
        free = [name for name in "abcd" if name not in self.members]
        if not free:
            return
        process, name = self.process(), self.dice.choice(free)
        try:
            reader = self.group(process).create_reader(name, lease=LEASE_SECONDS)
        except Exception as error:
            assert "already in reader group" in str(error), error  # the dead one is still in it
            return
        self.members[name] = Member(name, process, reader, safe_at=self.clock.elapsed)

    def leave(self) -> None:
        member = self._member()
        if member is None:
            return
        nth = self.dice.randint(1, 6) if self.dice.random() < 0.3 else 0
        self._look_who_is_out()
        try:
            with member.process.failing(nth, self.dice):
                member.reader.close()
        except ReinitializationRequired:
            assert self.acknowledge == "checkpoint"
            self._repeat(member)
        except (StoreError, CommitUnknown) as error:
            assert nth, error
            self._repeat(member)
        del self.members[member.name]

    def leave_by_error(self) -> None:
        """The body of a ``with`` fails: what is in hand, or what no checkpoint has, comes again."""
        member = self._member()
        if member is None:
            return
        again = set(member.unsafe if self.acknowledge == "checkpoint" else member.last)
        self._look_who_is_out()
        member.reader.__exit__(ValueError, ValueError(), None)
        self._may_come_again(again)
        del self.members[member.name]

    def die(self) -> None:
        member = self._member()
        if member is not None:
            self._repeat(member)
            del self.members[member.name]

    def offline(self) -> None:
        """Somebody removes a reader, alive or dead."""
        online = self.group(self.judge).online_readers()
        if online:
            assert self.group(self.process()).reader_offline(self.dice.choice(online))

    def sleep(self) -> None:
        self.clock.sleep(self.dice.choice((0.5, 2, 4, 4, 11, 25)))

    def outlive(self) -> None:
        """Let the leases of all who make no calls run out; some go on making calls."""
        alive = [m for m in self.members.values() if self.dice.random() < 0.7]
        for _ in range(10):
            self.clock.sleep(15)
            for member in alive:
                self._read(member, 1, fails=False)

    def _member(self) -> Member | None:
        found = sorted(self.members)
        return self.members[self.dice.choice(found)] if found else None

    def _repeat(self, member: Member) -> None:
        """What the group may not know of is read again."""
        self.has_lost_readers = True
        self._may_come_again(member.unsafe)
        for part in self.parts.values():
            part.again |= part.passed() & member.unsafe_lost

    def _look_who_is_out(self) -> None:
        """Look whom others have removed: what these have not reported comes again."""
        entries = self.group(self.judge)._state().readers
        for member in self.members.values():
            entry = entries.get(member.name)
            if entry is None or entry.number != membership_of(member.reader).number:
                member.is_out = True
                self._repeat(member)

    def _may_come_again(self, numbers: Collection[int]) -> None:
        for part in self.parts.values():
            part.again |= part.read & set(numbers)

    # -------------------------------------------------------------------------------- what is read

    def read(self) -> None:
        member = self._member()
        if member is not None:
            self._read(member, self.dice.choice((1, 1, 2, 5, 20)))

    def trouble(self) -> None:
        """Let several things happen to the streams between two calls, and the next calls fail."""
        for part in list(self.parts.values()):
            roll = self.dice.random()
            if part.life.is_deleted or roll < 0.3:
                continue
            if roll < 0.75:
                self.truncate_life(part.life)
            else:
                self.delete_life(part.life)
        self.sleep()
        for member in list(self.members.values()):
            for _ in range(3):
                if self.members.get(member.name) is member:
                    self._call(member, self.dice.choice((0, self.dice.randint(1, 15))))

    def lose_beside_a_deletion(self) -> None:
        """Truncate one stream and delete another while several readers hold parts of both.

        One of them finds what others have to tell.
        """
        parts = [part for part in self.parts.values() if self._is_open(part.life)]
        if len(parts) < 2:
            return
        lossy, doomed = self.dice.sample(parts, 2)
        for part in (lossy, doomed) * 3:
            if len(self.judge.stream(part.life.name).segments()) < 4:
                self.scale_life(part.life)
        for _ in range(4):
            if len(self.members) < 3:
                self.join()
        for _ in range(3):
            self.clock.sleep(4)
            for member in list(self.members.values()):
                self._read(member, 20, fails=False)
        for part in (lossy, doomed):
            self.write_life(part.life)
        self.truncate_life(lossy.life, self.tail(lossy.life))
        self.delete_life(doomed.life)
        self.clock.sleep(4)
        for member in sorted(self.members.values(), key=_streams_of):  # who holds both, the last
            self._read(member, self.dice.choice((3, 20, 20)))

    def _is_open(self, life: Life) -> bool:
        return not (life.is_sealed or life.is_deleted)

    def _read(self, member: Member, calls: int, *, fails: bool = True) -> bool:
        """Make calls; return whether the last one found something."""
        for _ in range(calls):
            if self.members.get(member.name) is not member:
                return False
            nth = self.dice.randint(1, 12) if fails and self.dice.random() < 0.2 else 0
            if not self._call(member, nth):
                return False
        return True

    def _call(self, member: Member, nth: int) -> bool:
        now, before, marker = self.clock.elapsed, set(member.unsafe), member.marker
        is_beat_due = now - member.safe_at >= HEARTBEAT_SECONDS
        member.safe_at = now if is_beat_due else member.safe_at
        try:
            try:
                with member.process.failing(nth, self.dice):
                    found, streams, numbers = self._read_some(member.reader)
            finally:
                self._look_who_is_out()
        except TruncatedData as error:
            self._told_lost(member, error)
            return True
        except NoSuchStream as error:
            self._told_deleted(member, error)
            return True
        except ReinitializationRequired:
            assert member.is_out, f"{member.name} is in the group"
            del self.members[member.name]
            return False
        except (StoreError, CommitUnknown) as error:
            assert nth, error
            return True
        if not nth:
            if marker is not None if self.acknowledge == "checkpoint" else is_beat_due:
                member.unsafe -= before
            if is_beat_due:
                member.unsafe_lost.clear()
        member.marker, member.last = found.checkpoint, set(numbers)
        for number in numbers:
            self._took(member, streams[0], number)
        if found.is_completed:
            self._completed()
        return bool(numbers or found.checkpoint)

    def _read_some(
        self, reader: EventStreamReader
    ) -> tuple[EventRead | EventsRead, list[str], list[int]]:
        """Return an answer, the streams of its events, and their numbers."""
        if self.dice.random() < 0.8:
            one = reader.read_next_event(timeout=0)
            event = one.event
            return one, [event.pointer.stream] if event else [], [number_of(event)] if event else []
        many = reader.read_events(self.dice.randint(1, 9), timeout=0)
        numbers = [int(data.split(b":")[0]) for data in many.events.column("event").to_pylist()]
        return many, many.events.column("stream").to_pylist(), numbers

    def _took(self, member: Member, stream: str, number: int) -> None:
        part = self.parts[stream]
        life = part.life
        assert number in life.events, f"{number} is not of the life that the group reads"
        if number in part.passed():
            may_repeat = member.is_out or number in part.again
            assert may_repeat, f"{number} comes again, to {member.name}"
            part.again.discard(number)
        known = part.read | life.gone
        missing = [n for n in life.before_in_key(number) if n not in known]
        assert not missing, f"{number} comes before {missing} of its key"
        part.read.add(number)
        part.lost.discard(number)
        member.unsafe.add(number)
        if member.is_out:
            part.again.add(number)

    def _told_lost(self, member: Member, error: TruncatedData) -> None:
        (stream,) = {rng.stream for rng in error.lost}
        part = self.parts[stream]
        life = part.life
        lost = set(life.in_ranges(error.lost))
        has_unknown = self.forgets and any(not len(rng) for rng in error.lost)
        part.is_forgotten |= has_unknown
        assert lost or has_unknown, f"loses nothing: {error}"
        assert lost <= life.gone, f"{sorted(lost - life.gone)} are not truncated: {error}"
        told = (lost & part.passed()) - part.again
        if self.acknowledge == "checkpoint":  # what is in a buffer is not processed
            told -= {n for one in self.members.values() for n in one.unsafe}
        assert not told or member.is_out, f"{sorted(told)} were passed before: {error}"
        part.again -= lost
        part.lost |= lost - part.read
        member.unsafe_lost |= lost
        if member.is_out:
            part.again |= lost
        if life.is_deleted:
            return
        assert error.head is not None, f"no head: {error}"
        left = {number_of(event) for event in self.judge.read(stream, error.head)}
        assert left == life.events - life.gone, f"the head is wrong: {error}"

    def _told_deleted(self, member: Member, error: NoSuchStream) -> None:
        part = self.parts[error.stream or ""]
        assert part.life.is_deleted, f"nothing is deleted: {error}"
        deletion = error.stream or "", part.life.number
        is_inherited = self.has_lost_readers  # what a dead one had to tell, others tell, too
        assert is_inherited or deletion not in member.told, f"told twice: {error}"
        member.told.add(deletion)
        part.is_told = True

    def _completed(self) -> None:
        for name, part in self.parts.items():
            life = part.life
            if life.is_deleted:
                assert part.is_told or life.events <= part.passed(), f"{name} is not told"
                continue
            unread = life.events - life.gone - part.read
            assert not unread, f"completed without {sorted(unread)} of {name}"
            assert life.is_sealed, f"completed, and {name} is not sealed"

    # --------------------------------------------------------------------------------- the group

    def checkpoint(self) -> None:
        try:
            self.pending.append(self.group(self.process()).initiate_checkpoint())
        except TooManyCheckpoints:
            return

    def await_checkpoint(self) -> None:
        for future in self.pending[:]:
            try:
                if not future.done():
                    continue
                found = future.result(timeout=0)
            except CheckpointFailed:
                self.pending.remove(future)
                continue
            self.pending.remove(future)
            self._keep(found)

    def _keep(self, found: GroupCheckpoint) -> None:
        """Keep a checkpoint, with the events before each of its cuts."""
        before = {}
        for name, cut in found.stream_cuts.items():
            part = self.parts.get(name)
            if part is None or part.life.number != cut.life or part.life.is_deleted:
                continue
            before[name] = frozenset(self._before(part.life, cut))
            ahead = before[name] - part.passed() - part.life.gone
            assert not ahead, f"checkpoint {cut} passes {sorted(ahead)}, which nobody has read"
        self.kept.append((found, before))

    def _before(self, life: Life, cut: StreamCut) -> set[int]:
        """Return the events before a cut."""
        try:
            left = {number_of(event) for event in self.judge.read(life.name, cut)}
        except TruncatedData as error:
            left = set(life.in_ranges(error.lost))
            if any(not len(rng) for rng in error.lost):
                left |= life.gone  # the history does not know; all of it may be
            assert error.head is not None
            left |= {number_of(event) for event in self.judge.read(life.name, error.head)}
        return life.events - left

    def reset(self) -> None:
        """Reset the group to a checkpoint, to cuts, or to its last checkpoint."""
        roll = self.dice.random()
        group = self.group(self.process())
        if roll < 0.5 and self.kept:
            found, before = self.dice.choice(self.kept)
            try:
                group.reset(found)
            except (InvalidStreamCut, NoSuchStream):
                return
            except TruncatedData:
                return
            named = {n: b for n, b in before.items() if n in self.parts}
            self._has_reset({n: set(b) for n, b in named.items()})
            return
        cuts: dict[str, StreamCut] = {}
        befores: dict[str, set[int]] = {}
        for name in self.parts:
            life = self.present(name)
            if life is not None and self.dice.random() < 0.7:
                known = self.dice.choice([*life.cuts, self.tail(life)])
                cuts[name], befores[name] = known.cut, set(known.before)
        if not cuts:
            return
        try:
            group.reset(cuts)
        except (TruncatedData, InvalidStreamCut, NoSuchStream):
            return
        self._has_reset(befores)

    def _has_reset(self, befores: dict[str, set[int]]) -> None:
        """Begin again: each named stream at what lies before its cut, others where they are."""
        for member in self.members.values():
            self._repeat(member)
        for name, before in befores.items():
            life = self.present(name)
            assert life is not None
            self.parts[name] = Part(life, read=before)
        self._all_are_out()

    def _all_are_out(self) -> None:
        """Each reader learns at its next call that the group has changed."""
        for member in self.members.values():
            self.clock.sleep(4)
            with pytest.raises(ReinitializationRequired):
                member.reader.read_next_event(timeout=0)
        self.members.clear()

    def update(self) -> None:
        """Add a stream, remove one, or begin one again in its present life."""
        group = self.group(self.process())
        others = [n for n in NAMES if n not in self.parts and self.present(n) is not None]
        gone = [n for n, part in self.parts.items() if part.life.is_deleted]
        again = [n for n in gone if self.present(n) is not None]
        roll = self.dice.random()
        add, remove = set[str](), set[str]()
        if again and roll < 0.7:
            add = remove = {self.dice.choice(again)}
        elif others and roll < 0.8:
            add = {self.dice.choice(others)}
        elif len(self.parts) > 1:
            remove = {self.dice.choice(sorted(self.parts))}
        if not add | remove:
            return
        group.update(add=add, remove=remove)
        for member in self.members.values():
            self._repeat(member)
        for name in remove:
            del self.parts[name]
        for name in add:
            life = self.lives[name][-1]
            self.parts[name] = Part(life, read=set(life.gone))
        self._all_are_out()

    def end(self) -> None:
        """Seal all streams, and read on until the group has told everything."""
        for name, part in self.parts.items():
            if not part.life.is_deleted and not part.life.is_sealed:
                self.judge.seal_stream(name)
                part.life.is_sealed = True
        self.dice = random.Random(7)
        if not self.members:
            self.clock.sleep(200)
            self.join()
        for _ in range(3_000):
            if not self.members:
                self.join()
            for member in list(self.members.values()):
                while self._read(member, 1, fails=False):
                    pass
            self.clock.sleep(4)
            state = self.group(self.judge)._state()
            if state.is_at_end and not state.finds:
                break
        else:
            raise AssertionError(f"not at the end: {self.group(self.judge)._state()}")
        for name, part in self.parts.items():
            life = part.life
            if life.is_deleted:
                assert part.is_told or life.events <= part.passed()
                continue
            missing = life.events - part.passed()
            if part.is_forgotten:
                missing -= life.gone
            assert not missing, f"never told: {sorted(missing)} of {name}"


VERBS = (
    *("write", "write", "write", "write", "scale", "scale", "truncate", "save", "sleep", "sleep"),
    *(
        "trouble",
        "trouble",
        "join",
        "join",
        "read",
        "read",
        "read",
        "read",
        "read",
        "read",
        "leave",
        "die",
    ),
    *("lose_beside_a_deletion", "lose_beside_a_deletion"),
    *("leave_by_error", "offline", "outlive", "checkpoint", "await_checkpoint", "reset", "update"),
    *("compact", "sweep", "seal", "delete", "create"),
)


def play(steps: Sequence[Step]) -> None:
    world = Group(random.Random(steps[0][1] if steps else 0))
    act(world, steps)
    world.end()


@pytest.mark.long
def test_a_group_reads_each_event_once_or_tells_what_is_lost() -> None:
    for seed in range(sized(10, 5_000, "GROUP_READERS_SEEDS")):
        steps = [("write", seed), *drawn_steps(seed, VERBS, 8 + seed % 60)]
        play_shortest(seed, steps, play)
