"""A group of simulated readers over streams in memory, with a record of every event read.

The readers do what real ones do: they refresh the state now and then, and read their segments in
between. In a group where checkpoints acknowledge events, the application of a reader keeps events
in a buffer that it flushes at markers, and that it loses when it fails. Every guarantee of a group
is checked at each step.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pravega_spark.errors import (
    InvalidStreamCut,
    ReinitializationRequired,
    TooManyCheckpoints,
    TruncatedData,
)
from pravega_spark.reader_groups import segments, transitions
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration, StreamCutRange
from pravega_spark.reader_groups.lifecycle import continued_generation
from pravega_spark.reader_groups.state import GroupState, Phase, SegmentKey, check_state
from pravega_spark.reader_groups.step import Marker, ReaderView, reader_step
from pravega_spark.reader_groups.table import GroupCodec
from pravega_spark.values.segments import StreamCut
from tests.harness import stream_cuts as cuts
from tests.harness.strategies import MemoryStream, Reader, scale_by_numbers

EventKey = tuple[SegmentKey, int]
CODEC = GroupCodec()


@dataclass
class LocalReader:
    """A reader's own knowledge, which may be older than the group's state."""

    number: int
    held: dict[SegmentKey, tuple[int, int]] = field(default_factory=dict)
    behind_head: set[str] = field(default_factory=set)
    shown: Marker | None = None
    pending: Marker | None = None
    is_zombie: bool = False
    buffer: list[EventKey] = field(default_factory=list)


class SimulatedGroup:
    def __init__(
        self,
        dice: Random,
        *,
        streams: int = 1,
        with_ends: bool = False,
        acknowledge: str = "next",
    ) -> None:
        self.dice = dice
        self._before: dict[StreamCut, set[EventKey]] = {}
        self.streams: dict[str, MemoryStream] = {}
        self.deleted: set[str] = set()
        for i in range(streams):
            stream = MemoryStream.of(dice.choice((1, 2, 4)))
            stream.stream = f"nyc/s{i}"
            stream.head = replace(stream.head, stream=stream.stream)
            for _ in range(dice.randrange(20)):
                grow(stream, dice)
            self.streams[stream.stream] = stream
        spans = {}
        for name, stream in self.streams.items():
            start = self.wander(stream, dice.randrange(12))
            end = None
            if with_ends:
                reader = start.copy()
                for _ in range(dice.randrange(40)):
                    reader.move(stream, dice.randrange(32), dice.choice((0, 1, 5)))
                end = reader.cut(stream)
            spans[name] = (start.cut(stream), end)
        self.configuration = ReaderGroupConfiguration(
            spans, acknowledge=acknowledge, retention="automatic"
        )
        self.buffers = self.configuration.acknowledges_at_checkpoints
        self.state: GroupState = segments.begin("nyc/g", 0, self.configuration, self.streams)
        self.readers: dict[str, LocalReader] = {}
        self.generations = 0
        self.counts: dict[str, int] = {}
        self.shown: dict[tuple[int, str], dict[SegmentKey, int]] = {}
        self.restart({name: StreamCut.of(span[0]) for name, span in spans.items()})

    @property
    def living(self) -> dict[str, MemoryStream]:
        return {n: stream for n, stream in self.streams.items() if n not in self.deleted}

    def wander(self, stream: MemoryStream, moves: int) -> Reader:
        reader = Reader()
        for _ in range(moves):
            reader.move(stream, self.dice.randrange(32), self.dice.choice((0, 1, 5)))
        return reader

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ----------------------------------------------------------------------- expected events

    def restart(self, starts: dict[str, StreamCut]) -> None:
        """Begin a generation: events before its start need not be read."""
        self.done: set[EventKey] = set()
        self.skipped: set[EventKey] = set()
        self.handed_out: set[EventKey] = set()
        self.flushed: set[EventKey] = set()
        self.repeatable: set[EventKey] = set()
        for name, start in starts.items():
            self.restart_stream(name, start)

    def restart_stream(self, name: str, start: StreamCut) -> None:
        """Begin one stream: its events before the start need not be read."""
        before = self.before(self.streams[name], start)
        for events in (self.done, self.skipped, self.handed_out, self.flushed):
            events.difference_update({event for event in events if event[0].stream == name})
            events.update(before)

    def before(self, stream: MemoryStream, cut: StreamCut) -> set[EventKey]:
        """All events before a cut, including truncated ones."""
        known = self._before.get(cut)
        if known is not None:
            return known
        whole = replace(stream, oldest_epoch=0)
        origin = StreamCut(stream.stream, 1, dict.fromkeys(whole.history[0].segment_ids, 0))
        return self._before.setdefault(
            cut,
            {
                (SegmentKey(stream.stream, r.segment_id), offset)
                for r in cuts.ranges_between(whole, origin, cut)
                for offset in range(r.start, r.end)
            },
        )

    def wanted(self, name: str) -> set[EventKey]:
        stream = self.streams[name]
        end = self.configuration.streams[name].end
        if end is not None:
            return self.before(stream, end)
        return {(SegmentKey(name, segment_id), offset) for segment_id, offset in stream.log}

    # --------------------------------------------------------------------------- the group

    def change(self, state: GroupState) -> None:
        before, self.state = self.state, check_state(state)
        assert CODEC.decode(CODEC.encode(state)) == state
        assert list(CODEC.decode(CODEC.encode(state)).unassigned) == list(state.unassigned)
        for name, stream in self.living.items():
            cuts.check(stream, state.cut(name))
            if self.buffers:
                missing = self.before(stream, state.cut(name)) - self.flushed
                assert missing <= self.truncated(stream), (
                    f"neither flushed nor to be read: {missing}"
                )
            end = state.ends.get(name)
            if end is not None and end.is_bound:
                allowed = self.wanted(name) | self.skipped | self.truncated(stream)
                assert self.before(stream, state.cut(name)) <= allowed
        if before.readers and not state.readers and state.generation == before.generation:
            assert state.last_checkpoint is not None
            assert dict(state.last_checkpoint.positions) == dict(state.positions()), (
                "nobody is left to make a checkpoint of what was acknowledged"
            )
            self.count("left alone")
        known = {c.number for c in before.checkpoints if c.is_complete}
        for checkpoint in state.checkpoints:
            if checkpoint.is_complete and checkpoint.number not in known:
                done = self.flushed if self.buffers else self.done
                done = self.handed_out if checkpoint.silent else done
                self.completed(checkpoint.number, state.cuts_of(checkpoint.positions), done)

    def completed(self, number: int, found: dict[str, StreamCut], done: set[EventKey]) -> None:
        """Check that the events before a checkpoint were read, by the readers that answered it.

        A silent one records no offset: events of an evicted reader may be read again.
        """
        self.count("checkpoint completed")
        for name, stream in self.living.items():
            cut = found[name]
            cuts.check(stream, cut)
            missing = self.before(stream, cut) - done - self.truncated(stream)
            assert not missing, f"checkpoint {cut} is ahead of what was read: {missing}"
        for (checkpoint, reader), held in list(self.shown.items()):
            if checkpoint == number:
                del self.shown[checkpoint, reader]
                for key, offset in held.items():
                    if key.stream in self.deleted:
                        continue
                    at = found[key.stream].positions.get(key.segment_id)
                    assert at == offset or (key, offset) in self.lost(key), (
                        "a checkpoint is not where its marker was"
                    )

    def truncated(self, stream: MemoryStream) -> set[EventKey]:
        return self.before(stream, stream.head)

    # ----------------------------------------------------------------------------- actions

    def join(self, name: str) -> None:
        if name in self.state.readers:
            return
        self.change(transitions.join(self.state, name, 10_000))
        self.readers[name] = LocalReader(self.state.readers[name].number)

    def refresh(self, name: str, *, automatic: bool = False) -> None:
        """Do the step of a reader's next call."""
        local = self.readers[name]
        if local.pending is not None:
            local.shown, local.pending = local.pending, None
            self.flush(local)
            if self.dice.random() < 0.1:
                self.count("unreachable")
                return
        ended = frozenset(
            key for key, (_, offset) in local.held.items() if self.is_ended(key, offset)
        )
        local.behind_head.update(
            key.stream
            for key in local.held
            if key.stream in self.deleted
            or not self.streams[key.stream].has_segment(key.segment_id)
        )
        view = ReaderView(name, local.number, dict(local.held), ended, frozenset(local.behind_head))
        try:
            after = reader_step(
                self.state,
                view,
                self.living.get,
                answering=local.shown,
                automatic=automatic,
            )
        except ReinitializationRequired:
            self.count("evicted")
            del self.readers[name]
            return
        assert not local.is_zombie
        self.change(after)
        local.shown = None
        if any(found.lost is not None for found in after.finds.values()):
            self.count("truncated")
        held = {}
        for key, owned in after.owned_by(name).items():
            known = local.held.get(key)
            if known is not None and known[0] == owned.number:
                held[key] = (owned.number, max(known[1], owned.offset))
            else:
                held[key] = (owned.number, owned.offset)
        local.held, local.behind_head = held, set()
        pending = after.pending_checkpoint(name)
        if pending is not None:
            self.count("marker")
            local.pending = Marker(pending.number, dict(held), pending.name)
            self.shown[pending.number, name] = {key: offset for key, (_, offset) in held.items()}

    def is_ended(self, key: SegmentKey, offset: int) -> bool:
        stream = self.streams[key.stream]
        if key.stream in self.deleted or not stream.has_segment(key.segment_id):
            return False
        end = segments.EndOffsets(self.state, stream).of(key.segment_id)
        if end is not None:
            return offset >= end
        record = stream.segment(key.segment_id)
        return record.sealed_epoch is not None and offset >= record.next_offset

    def has_more(self, key: SegmentKey, offset: int) -> bool:
        record = self.streams[key.stream].records[key.segment_id]
        return offset < record.next_offset

    def read(self, name: str, count: int) -> None:
        """Hand out events; the application asks for the next after each of them."""
        local = self.readers[name]
        if local.pending is not None or not local.held:
            return
        ready = [k for k, (_, offset) in sorted(local.held.items()) if self.has_more(k, offset)]
        if not ready:
            return
        key = self.dice.choice(ready)
        number, at = local.held[key]
        stream = self.streams[key.stream]
        if key.stream in self.deleted:
            local.behind_head.add(key.stream)
            return
        for offset in range(at, at + count):
            if not stream.has_segment(key.segment_id) or (key, offset) in self.truncated(stream):
                local.behind_head.add(key.stream)
                return
            end = segments.EndOffsets(self.state, stream).of(key.segment_id)
            limit = stream.segment(key.segment_id).next_offset
            if offset >= (limit if end is None else min(limit, end)):
                return
            self.hand_out(local, key, offset)
            local.held[key] = (number, offset + 1)

    def hand_out(self, local: LocalReader, key: SegmentKey, offset: int) -> None:
        event = (key, offset)
        stream = self.streams[key.stream]
        assert event in self.wanted(key.stream), "an event after the end"
        if local.is_zombie:  # it has not noticed its eviction; it may be of an earlier generation
            self.count("zombie")
            return
        (segment,) = (s for s in stream.all_segments() if s.segment_id == key.segment_id)
        for before in stream.before(segment):
            record = stream.records[before.segment_id]
            earlier = {
                (SegmentKey(key.stream, before.segment_id), o) for o in range(record.next_offset)
            }
            done = self.flushed if self.buffers else self.done
            assert earlier <= done | self.truncated(stream), "a successor before its predecessor"
            assert record.sealed_epoch is not None
        assert event not in self.done, f"{event} was read twice"
        self.done.add(event)
        self.handed_out.add(event)
        self.count("read")
        if self.buffers:
            local.buffer.append(event)

    def flush(self, local: LocalReader) -> None:
        """Flush a reader's buffer; check that no event comes before an earlier one of its keys.

        An event is flushed again only after its first reader failed to acknowledge it.
        """
        for event in local.buffer:
            key, offset = event
            stream = self.streams[key.stream]
            truncated = set() if key.stream in self.deleted else self.truncated(stream)
            if event in self.flushed:
                assert event in self.repeatable, f"{event} was flushed twice"
                self.count("flushed again")
            elif event not in truncated and key.stream not in self.deleted:
                before = {(key, offset - 1)} if offset else self.predecessors(key)
                missing = before - self.flushed - truncated
                assert not missing, f"{event} was flushed before {missing}"
            self.flushed.add(event)
            self.count("flushed")
        local.buffer.clear()

    def predecessors(self, key: SegmentKey) -> set[EventKey]:
        """Return all events of a segment's predecessors."""
        stream = self.streams[key.stream]
        (segment,) = (s for s in stream.all_segments() if s.segment_id == key.segment_id)
        return {
            (SegmentKey(key.stream, before.segment_id), offset)
            for before in stream.before(segment)
            for offset in range(stream.records[before.segment_id].next_offset)
        }

    def lost(self, key: SegmentKey) -> set[EventKey]:
        stream = self.streams[key.stream]
        if not stream.has_segment(key.segment_id):
            end = stream.records[key.segment_id].next_offset
            return {(key, offset) for offset in range(end + 1)}
        return self.truncated(stream) | {(k, o + 1) for k, o in self.truncated(stream)}

    def expire(self, name: str, *, has_crashed: bool) -> None:
        """Evict a reader; its process may be alive and continue for a while."""
        local = self.readers[name]
        held = self.heartbeat(local)
        self.abandon(name, {} if self.buffers else held)
        self.shown = {at: held for at, held in self.shown.items() if at[1] != name}
        self.change(transitions.evict(self.state, name, local.number, held))
        self.count("expired")
        if has_crashed:
            del self.readers[name]
        else:
            local.is_zombie = True

    def heartbeat(self, local: LocalReader) -> dict[SegmentKey, tuple[int, int]]:
        """Return a reader's last report, which may be old."""
        return {
            key: (number, self.dice.randint(min(offset, self.state.assigned[key].offset), offset))
            for key, (number, offset) in local.held.items()
            if key in self.state.assigned and self.dice.random() < 0.5
        }

    def abandon(self, name: str, reported: dict[SegmentKey, tuple[int, int]]) -> None:
        """Expect that other readers read again what a reader has not recorded or reported."""
        local = self.readers[name]
        recorded = {
            key: max(owned.offset, reported.get(key, (0, 0))[1])
            for key, owned in self.state.owned_by(name).items()
        }
        for key, (_, offset) in local.held.items():
            for o in range(recorded.get(key, offset), offset):
                self.done.discard((key, o))
                self.repeatable.add((key, o))
                self.count("repeated")

    def fail(self, name: str) -> None:
        """Leave the group by an error of the application, which loses its buffer."""
        if not self.readers[name].is_zombie:
            self.abandon(name, {})
            self.shown = {at: held for at, held in self.shown.items() if at[1] != name}
            self.change(transitions.remove_reader(self.state, name))
            del self.readers[name]
            self.count("failed")

    def leave(self, name: str) -> None:
        local = self.readers[name]
        if local.is_zombie:
            return
        self.flush(local)
        offsets = {
            key: offset
            for key, (n, offset) in local.held.items()
            if key in self.state.assigned and self.state.assigned[key].number == n
        }
        self.shown = {at: held for at, held in self.shown.items() if at[1] != name}
        self.change(transitions.remove_reader(self.state, name, offsets))
        del self.readers[name]
        self.count("left")

    def checkpoint(self, *, silent: bool) -> None:
        try:
            state, _ = transitions.initiate(self.state, f"c{self.state.next_number}", silent=silent)
        except TooManyCheckpoints:
            self.count("too many")
            return
        self.change(state)

    def reset(self, *, to_checkpoint: bool) -> None:
        if self.deleted:
            return
        last = self.state.last_checkpoint if to_checkpoint else None
        starts = self.state.cuts_of(last.positions) if last else None
        starts = starts or {n: span.start for n, span in self.configuration.streams.items()}
        if any(
            not stream.has_segment(s) for n, stream in self.streams.items() for s, _ in starts[n]
        ) or any(
            span.end is not None and any(not self.streams[n].has_segment(s) for s, _ in span.end)
            for n, span in self.configuration.streams.items()
        ):
            return
        try:
            state = segments.begin(
                "nyc/g",
                self.state.generation + 1,
                self.configuration,
                self.streams,
                starts=starts,
                next_number=self.state.next_number,
                last=last,
            )
        except InvalidStreamCut:  # the head is past the end
            return
        self.evict_all()
        self.restart(starts)
        self.change(state)
        self.count("reset")

    def evict_all(self) -> None:
        """Begin a generation, which no reader has noticed yet."""
        for local in self.readers.values():
            local.is_zombie = True
            local.buffer.clear()
        self.shown.clear()

    def update(self) -> None:
        """Change a field of the configuration, and perhaps begin one stream again."""
        before, streams, begun = self.state, dict(self.configuration.streams), dict[str, Any]()
        if self.dice.random() < 0.5:
            name = self.dice.choice(sorted(self.living))
            stream = self.streams[name]
            start = self.dice.choice((stream.head, before.cut(name), before.held_cut(name)))
            streams[name] = StreamCutRange(start, streams[name].end)
            begun[name] = stream
        configuration = self.configuration.replaced(
            streams=streams, refresh=self.dice.randint(1, 9)
        )
        reported = {
            name: self.heartbeat(local)
            for name, local in sorted(self.readers.items())
            if not local.is_zombie
        }
        recorded = before
        for name, held in reported.items():
            number = self.readers[name].number
            recorded = transitions.record_offsets(recorded, name, number, held)
        try:
            state = continued_generation(recorded, configuration, begun)
        except (InvalidStreamCut, TruncatedData):  # the head is past the end, or past the start
            return
        for name, held in reported.items():
            self.abandon(name, {} if self.buffers else held)
        self.evict_all()
        for name in begun:
            self.restart_stream(name, streams[name].start)
        self.configuration = configuration
        self.check_continued(recorded, state, begun)
        done = replace(state, former_streams={}, renewed_streams=frozenset())
        self.change(replace(done, phase=Phase.ACTIVE))
        self.count("begun again" if begun else "update")

    def check_continued(
        self, before: GroupState, state: GroupState, begun: Collection[str]
    ) -> None:
        """Check that the streams that were kept are where they were, also in the checkpoint."""
        for name in self.streams.keys() - begun:
            assert state.cut(name) == before.cut(name)
            assert state.held_cut(name) == before.held_cut(name)
            assert state.began[name] == before.began[name]
        assert (state.last_checkpoint is None) == (before.last_checkpoint is None)
        for left in (state.readers, state.assigned, state.checkpoints):
            assert not left

    def truncate(self) -> None:
        name = self.dice.choice(sorted(self.living))
        stream = self.streams[name]
        whole = replace(stream, oldest_epoch=0)
        reader = self.wander(whole, self.dice.randrange(60))
        goal = reader.cut(whole)
        if any(not stream.has_segment(s) for s, _ in goal):
            return
        if cuts.compare(stream, goal, stream.head) is cuts.Order.EQUAL_OR_AFTER:
            stream.truncate(cuts.canonical(stream, goal))
            self.count("truncation")

    def delete(self) -> None:
        """Delete a stream; readers notice it when they read it."""
        if len(self.living) > 1:
            self.deleted.add(self.dice.choice(sorted(self.living)))
            self.count("deletion")

    # ------------------------------------------------------------------------------ final check

    def drain(self) -> None:
        """Only read from now on; check that every event is read in the end."""
        for name in [n for n, local in self.readers.items() if local.is_zombie]:
            del self.readers[name]
        for name in list(self.state.readers):
            if name not in self.readers:
                self.change(transitions.remove_reader(self.state, name))
        if not self.readers:
            self.join("last")
        for stream in self.living.values():
            if not stream.sealed:
                stream.seal()
        for _ in range(400):
            if self.state.is_at_end and not any(
                self.state.pending_checkpoint(n) for n in self.readers
            ):
                break
            for name in sorted(self.readers):
                self.refresh(name)
                for _ in range(4):
                    self.read(name, 100)
        assert self.state.is_at_end, f"{self.state} is not read to the end"
        for name, stream in self.living.items():
            done = self.flushed if self.buffers else self.done
            missing = self.wanted(name) - done - self.truncated(stream)
            assert not missing, f"never read: {sorted(missing)}"


def grow(stream: MemoryStream, dice: Random) -> None:
    if stream.sealed:
        return
    if dice.random() < 0.7 or len(stream.active.segments) > 8:
        for _ in range(3):
            stream.append(dice.choice(stream.active.segment_ids), dice.randint(1, 6))
    else:
        scale_by_numbers(stream, dice.randrange(2**16), dice.randrange(2**16))


def step(group: SimulatedGroup) -> None:
    dice = group.dice
    names = sorted(group.readers)
    roll = dice.random()
    if roll < 0.06 or not names:
        free = [n for n in ("a", "b", "c", "d") if n not in group.readers]
        if free:
            group.join(dice.choice(free))
        return
    name = dice.choice(names)
    if roll < 0.36:
        group.refresh(name, automatic=dice.random() < 0.1)
    elif roll < 0.75:
        group.read(name, dice.randint(1, 8))
    elif roll < 0.88:
        grow(dice.choice(list(group.living.values())), dice)
    elif roll < 0.91:
        if not group.readers[name].is_zombie:
            group.expire(name, has_crashed=dice.random() < 0.5)
    elif roll < 0.92 or (roll < 0.93 and not group.buffers):
        group.leave(name)
    elif roll < 0.93:
        group.fail(name)
    elif roll < 0.96:
        group.checkpoint(silent=dice.random() < 0.3)
    elif roll < 0.967:
        group.reset(to_checkpoint=dice.random() < 0.7)
    elif roll < 0.973:
        group.update()
    elif roll < 0.985:
        group.truncate()
    elif roll < 0.987:
        group.delete()
    elif roll < 0.99:
        group.change(transitions.cancel(group.state))
    else:
        for _ in range(5):
            group.refresh(name)
            if name not in group.readers:
                break
            group.read(name, 50)
