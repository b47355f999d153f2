"""Simulated readers that leave at positions which they returned before, against what was read.

The group's state changes by the real transitions, over streams in memory. The oracle knows each
event that was handed out, to whom and when, so it knows what a position asks for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from pravega_spark.errors import PositionOvertaken, ReinitializationRequired, TruncatedData
from pravega_spark.reader_groups import segments, transitions
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.going_back import leave_at
from pravega_spark.reader_groups.lifecycle import continued_generation
from pravega_spark.reader_groups.position import Position
from pravega_spark.reader_groups.state import GroupState, SegmentKey, check_state
from pravega_spark.reader_groups.step import Marker, ReaderView, reader_step
from pravega_spark.reader_groups.table import GroupCodec
from pravega_spark.values.segments import NOT_REACHED, StreamCut
from tests.harness import stream_cuts as cuts
from tests.harness.strategies import MemoryStream, grow

EventKey = tuple[SegmentKey, int]
NAMES = ("a", "b", "c")


@dataclass
class Returned:
    """A position that a reader returned, and when."""

    position: Position
    time: int


@dataclass
class LivingReader:
    number: int
    held: dict[SegmentKey, tuple[int, int]] = field(default_factory=dict)
    next_number: int = 0
    shown: Marker | None = None
    pending: Marker | None = None


class LeavingReaders:
    """A group whose readers come, read, and leave at old positions."""

    def __init__(self, dice: Random, *, acknowledge: str, streams: int) -> None:
        self.dice, self.time = dice, 0
        self.has_numbers = dice.random() < 0.8
        """Whether positions have numbers, as texts of release 0.1.0 do not."""
        self.names = NAMES[: dice.choice((1, 2, 2, 3))]
        self.streams = dict[str, MemoryStream]()
        for i in range(streams):
            stream = MemoryStream.of(dice.choice((1, 1, 2, 3)))
            stream.stream = f"nyc/s{i}"
            stream.head = replace(stream.head, stream=stream.stream)
            self.streams[stream.stream] = stream
            for _ in range(dice.randrange(6)):
                grow(stream, dice)
        self.configuration = ReaderGroupConfiguration(list(self.streams), acknowledge=acknowledge)
        self.state = segments.begin("nyc/g", 0, self.configuration, self.streams)
        self.codec = GroupCodec()
        self.readers = dict[str, LivingReader]()
        self.handed = dict[EventKey, list[tuple[int, str]]]()
        """Who was handed each event, and when, since the last reset."""
        self.returned: dict[str, list[Returned]] = {name: [] for name in (*NAMES, "last")}
        self.acquired = list[tuple[int, str]]()
        """When somebody acquired a segment."""
        self.unknown_until = 0
        """The time before which records were dropped, by a process of 0.1.0 or a reset."""
        self.owed = set[EventKey]()
        self.claimed = set[EventKey]()
        """What the group has passed only since a position said that it was processed."""
        self.counts = Counter[str]()

    # ---------------------------------------------------------------------------------- changes

    def change(self, state: GroupState) -> None:
        check_state(state)
        assert self.codec.decode(self.codec.encode(state)) == state
        assert GroupCodec().decode(GroupCodec().encode(state)) == state
        for name, stream in self.streams.items():
            cuts.check(stream, state.cut(name))
        for checkpoint in state.checkpoints:
            if checkpoint.is_complete:
                for name, cut in state.cuts_of(checkpoint.positions).items():
                    cuts.check(self.streams[name], cut)
        before = self.state.assigned
        for key, owned in state.assigned.items():
            if key not in before or before[key].number != owned.number:
                self.acquired.append((self.time, owned.reader))
        self.state = state

    def join(self, name: str) -> None:
        self.change(transitions.join(self.state, name, None))
        self.readers[name] = LivingReader(self.state.readers[name].number)
        self.refresh(name)

    def refresh(self, name: str, *, automatic: bool = False) -> None:
        local = self.readers[name]
        if local.pending is not None:
            local.shown, local.pending = local.pending, None
        view = ReaderView(
            name,
            local.number,
            dict(local.held),
            frozenset(k for k, (_, offset) in local.held.items() if self.has_ended(k, offset)),
            frozenset(k.stream for k, (_, o) in local.held.items() if self.is_gone(k, o)),
        )
        try:
            after = reader_step(
                self.state, view, self.streams.get, answering=local.shown, automatic=automatic
            )
        except ReinitializationRequired:
            del self.readers[name]
            return
        self.change(after)
        held = {}
        for key, owned in after.owned_by(name).items():
            number, at = local.held.get(key, (0, 0))
            held[key] = (
                owned.number,
                max(at, owned.offset) if number == owned.number else owned.offset,
            )
        local.held, local.shown, local.next_number = held, None, after.next_number
        pending = after.pending_checkpoint(name)
        if pending is not None:
            local.pending = Marker(pending.number, dict(held), pending.name)
        if self.dice.random() < 0.3:
            self.keep_position(name)

    def has_ended(self, key: SegmentKey, offset: int) -> bool:
        stream = self.streams[key.stream]
        if not stream.has_segment(key.segment_id):
            return False
        record = stream.segment(key.segment_id)
        return record.sealed_epoch is not None and offset >= record.next_offset

    def is_gone(self, key: SegmentKey, offset: int) -> bool:
        stream = self.streams[key.stream]
        return not stream.has_segment(key.segment_id) or (key, offset) in self.truncated()

    def read(self, name: str, count: int) -> None:
        local = self.readers[name]
        ready = [
            k
            for k, (_, offset) in sorted(local.held.items())
            if not self.is_gone(k, offset)
            and offset < self.streams[k.stream].segment(k.segment_id).next_offset
        ]
        if not ready or local.pending is not None:
            return
        key = self.dice.choice(ready)
        number, at = local.held[key]
        end = min(at + count, self.streams[key.stream].segment(key.segment_id).next_offset)
        for offset in range(at, end):
            self.time += 1
            self.handed.setdefault((key, offset), []).append((self.time, name))
            self.owed.discard((key, offset))
            self.claimed.discard((key, offset))
            local.held[key] = number, offset + 1
            if self.dice.random() < 0.3:
                self.keep_position(name)

    def keep_position(self, name: str) -> None:
        local = self.readers[name]
        offsets = {key: offset for key, (_, offset) in local.held.items()}
        position = Position.parse(str(Position(offsets, local.next_number)))
        self.returned[name].append(Returned(position, self.time))

    def expire(self, name: str) -> None:
        held, number = self.heartbeat(name), self.readers.pop(name).number
        self.change(transitions.evict(self.state, name, number, held))
        self.counts["expired"] += 1

    def heartbeat(self, name: str) -> dict[SegmentKey, tuple[int, int]]:
        """Return a reader's last report, which may be old."""
        return {
            key: (number, self.dice.randint(0, offset))
            for key, (number, offset) in self.readers[name].held.items()
        }

    def leave(self, name: str) -> None:
        local = self.readers.pop(name)
        if name in self.state.readers and self.state.readers[name].number == local.number:
            offsets = {key: offset for key, (_, offset) in local.held.items()}
            self.change(transitions.remove_reader(self.state, name, offsets))

    def drop_records(self) -> None:
        """Commit as a process of release 0.1.0 does, which does not know of records of owners."""
        state = replace(
            self.state,
            owners={},
            finished_since=dict.fromkeys(self.state.lives, self.state.next_number),
        )
        self.unknown_until = self.time = self.time + 1
        self.change(state)
        self.counts["0.1.0"] += 1

    def truncate(self) -> None:
        """Truncate a stream up to where the group is."""
        stream = self.streams[self.dice.choice(sorted(self.streams))]
        stream.truncate(cuts.canonical(stream, self.state.cut(stream.stream)))
        self.counts["truncation"] += 1

    def reset(self) -> None:
        """Begin again, at the last checkpoint, the head, or where the group is."""
        last = self.state.last_checkpoint
        starts = {n: stream.head for n, stream in self.streams.items()}
        if self.dice.random() < 0.5:
            starts = self.state.cuts()
        elif last is not None and not any(
            self.is_gone(k, o) for k, o in last.positions.items() if o >= 0
        ):
            starts = self.state.cuts_of(last.positions)
        state = segments.begin(
            "nyc/g",
            self.state.generation + 1,
            self.configuration,
            self.streams,
            starts=starts,
            next_number=self.state.next_number,
            last=last,
        )
        self.time += 1
        self.handed, self.owed, self.unknown_until = {}, set(), self.time
        self.readers.clear()
        self.change(state)
        self.counts["reset"] += 1

    def update(self) -> None:
        configuration = self.configuration.replaced(refresh=self.dice.randint(1, 9))
        self.change(continued_generation(self.state, configuration, {}))
        self.readers.clear()
        self.counts["update"] += 1

    # ---------------------------------------------------------------------------------- the oracle

    def before(self, state: GroupState) -> set[EventKey]:
        """Return the events before the recorded cuts of the group."""
        found = set[EventKey]()
        for name, stream in self.streams.items():
            whole = replace(stream, oldest_epoch=0)
            origin = StreamCut(name, 1, dict.fromkeys(whole.history[0].segment_ids, 0))
            for r in cuts.ranges_between(whole, origin, state.cut(name)):
                found |= {(SegmentKey(name, r.segment_id), o) for o in range(r.start, r.end)}
        return found

    def before_position(self, position: Position) -> set[EventKey]:
        """Return the events before a position: of its segments, and of all that they continue."""
        found = set[EventKey]()
        for key, offset in position.offsets.items():
            stream = self.streams[key.stream]
            found |= {(key, o) for o in range(offset)}
            todo = [s for s in stream.all_segments() if s.segment_id == key.segment_id]
            while todo:
                for earlier in stream.before(todo.pop()):
                    todo.append(earlier)
                    end = stream.records[earlier.segment_id].next_offset
                    before = SegmentKey(key.stream, earlier.segment_id)
                    found |= {(before, o) for o in range(end)}
        return found

    def truncated(self) -> set[EventKey]:
        found = set[EventKey]()
        for name, stream in self.streams.items():
            whole = replace(stream, oldest_epoch=0)
            origin = StreamCut(name, 1, dict.fromkeys(whole.history[0].segment_ids, 0))
            for r in cuts.ranges_between(whole, origin, stream.head):
                found |= {(SegmentKey(name, r.segment_id), o) for o in range(r.start, r.end)}
        return found

    def leave_at(self, name: str, returned: Returned) -> None:
        """Close a reader at a position, or set it offline there, and check what comes of it."""
        state, local = self.state, self.readers.get(name)
        position, handed_out = returned.position, dict[SegmentKey, int]()
        with_number = self.has_numbers
        if not with_number:
            position = replace(position, number=None)
        entry = state.readers.get(name)
        is_closing = local is not None and entry is not None and entry.number == local.number
        if is_closing and self.dice.random() < 0.5:
            assert local is not None
            handed_out = {key: offset for key, (_, offset) in local.held.items()}
            if any(o > handed_out.get(k, o) for k, o in position.offsets.items()):
                return  # refused before anything else
            state = transitions.record_offsets(state, name, local.number, local.held)
        elif is_closing and entry is not None:
            state = transitions.record_offsets(state, name, entry.number, self.heartbeat(name))
        mine = {
            event
            for event, whom in self.handed.items()
            if whom[-1][1] == name and whom[-1][0] > returned.time
        }
        after_it = mine - self.before_position(position) - self.claimed
        passed = self.before(state)
        try:
            after = leave_at(state, name, position, self.streams.get, handed_out)
        except TruncatedData:
            is_forgotten = any(
                not self.streams[key.stream].has_segment(key.segment_id) for key in position.offsets
            )
            if with_number and not self.unknown_until:
                assert is_forgotten or mine & self.truncated()
            self.counts["truncated"] += 1
            return
        except PositionOvertaken as error:
            named = {
                (SegmentKey(r.stream, r.segment_id), offset)
                for r in error.ranges
                for offset in range(r.start, r.end)
            }
            if with_number:
                unnamed = (after_it & passed) - named - self.truncated()
                assert not unnamed, f"{unnamed} would be lost, and are not named"
            is_known = self.unknown_until < returned.time and with_number
            if is_known and not any(
                who != name for time, who in self.acquired if time >= returned.time
            ):
                in_reach = {*state.assigned, *state.unassigned, *state.completed}
                is_missing = not in_reach <= state.owners.keys() or state.finished_since
                assert is_missing or any(record.since for record in state.owners.values())
            self.counts["overtaken" if is_known else "unknown"] += 1
            return
        back = passed - self.before(after)
        whom = {event: self.handed.get(event, [(0, "nobody")])[-1][1] for event in back}
        assert set(whom.values()) <= {name}, f"others have read {whom}"
        if with_number:
            kept = (after_it & self.before(after)) - self.truncated()
            assert not kept, f"{kept} are after the position, and will not be read again"
            assert back <= mine, f"{back - mine} are before the position"
        for checkpoint in after.checkpoints:
            if not checkpoint.is_complete:
                for key, offset in back:
                    at = checkpoint.positions.get(key, NOT_REACHED)
                    assert at in (NOT_REACHED, *range(offset + 1)), "a pending checkpoint is ahead"
        forward = self.before(after) - passed
        self.owed, self.claimed = (self.owed | back) - forward, (self.claimed | forward) - back
        self.counts["went back" if back else "left"] += 1
        gone = state.assigned.keys() | state.unassigned.keys() | state.completed.keys()
        if not gone >= {key for key, _ in back}:
            self.counts["revived"] += 1
        self.readers.pop(name, None)
        self.change(after)

    def drain(self) -> None:
        self.change(transitions.remove_readers(self.state))
        self.readers.clear()
        for stream in self.streams.values():
            stream.seal()
        self.join("last")
        for _ in range(400):
            if self.state.is_at_end:
                break
            self.refresh("last")
            for _ in range(4):
                self.read("last", 100)
        assert self.state.is_at_end
        assert not self.owed - self.truncated(), "these were to be read again"

    def step(self) -> None:
        dice = self.dice
        roll, name = dice.random(), dice.choice(self.names)
        self.time += 1
        if name not in self.state.readers:
            if name in self.readers:
                self.refresh(name)
            elif roll < 0.25 and self.returned[name]:
                self.leave_at(name, self.some_position(name))
            elif roll < 0.6:
                self.join(name)
            return
        if name not in self.readers:
            self.change(transitions.remove_reader(self.state, name))
            return
        if roll < 0.25:
            self.refresh(name, automatic=dice.random() < 0.1)
        elif roll < 0.6:
            self.read(name, dice.choice((1, 3, 6, 20)))
        elif roll < 0.72:
            grow(dice.choice(list(self.streams.values())), dice)
        elif roll < 0.76:
            self.expire(name)
        elif roll < 0.78:
            self.leave(name)
        elif roll < 0.9:
            if self.returned[name]:
                self.leave_at(name, self.some_position(name))
        elif roll < 0.95:
            count = self.state.next_number
            with_marker = dice.random() < 0.7
            pending = [c for c in self.state.checkpoints if not c.is_complete]
            if len(pending) < 2:
                after, _ = transitions.initiate(self.state, f"c{count}", silent=not with_marker)
                self.change(after)
        elif roll < 0.96:
            self.drop_records()
        elif roll < 0.97:
            self.truncate()
        elif roll < 0.975:
            self.reset()
        elif roll < 0.98:
            self.update()

    def some_position(self, name: str) -> Returned:
        """Return a position of a reader, mostly a recent one."""
        known = self.returned[name]
        return known[-1 - min(len(known) - 1, int(self.dice.expovariate(0.15)))]


def run(seed: int, acknowledge: str, steps: int = 120) -> Mapping[str, int]:
    """Run a random history; return what happened, counted."""
    dice = Random(seed)
    group = LeavingReaders(dice, acknowledge=acknowledge, streams=dice.choice((1, 1, 2)))
    for _ in range(steps):
        group.step()
    group.drain()
    return group.counts
