"""Both bounds of the watermark, against a model that knows only the acknowledged notes.

Writers append, note, are killed in between, close, and come back; transactional ones leave before
what they began has ended; marks are removed; maintenance is done by processes whose clocks are a
day wrong both ways, and dies while it samples. After every step the watermark is what the model
computes from the history of notes, it never goes back, every event whose time was noted as earlier
lies before its cut, and no writer that counts may still write an event before its lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_spark.config.descriptions import Watermark
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.runtime import failpoints
from pravega_spark.errors import InvalidTime
from pravega_spark.event_writer import EventStreamWriter, queue_of
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.txn.transaction import Transaction
from pravega_spark.txn.writer import TransactionalWriter
from pravega_spark.values.segments import EventPointer
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.tiers import IS_LONG, sized

S = "s/t"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
DAY_MS = 86_400_000
TIMEOUT_S = 300.0
Bounds = tuple[int, int]


@dataclass
class Mark:
    """What a writer has noted: ``left`` is the step at which it left, ``age_s`` since its note."""

    time: int
    left: int | None = None
    is_removed: bool = False
    is_late: bool = False
    age_s: float = 0.0


@dataclass
class Model:
    """The notes that were acknowledged, and the bounds that follow from them."""

    marks: dict[str, Mark] = field(default_factory=dict)
    recorded: Bounds | None = None
    began: dict[str, list[int]] = field(default_factory=dict)
    """The steps at which the open transactions of each writer began."""

    def lives(self, name: str) -> bool:
        mark = self.marks[name]
        if mark.left is None or mark.is_removed:
            return not mark.is_removed
        return any(step < mark.left for step in self.began.get(name, ()))

    def shown(self, without: tuple[str, ...] = ()) -> Bounds | None:
        times = [mark.time for mark in self.marks.values() if not mark.is_removed]
        living = [
            mark.time
            for name, mark in self.marks.items()
            if self.lives(name) and name not in without
        ]
        lower = min(living) if living else max(times, default=None)
        if lower is None or (self.recorded is not None and lower <= self.recorded[0]):
            return self.recorded
        return lower, max([*times, *(self.recorded[1:] if self.recorded else ())])

    def note(self, name: str, time: int, step: int, *, began: int | None = None) -> None:
        shown, known = self.shown(), self.marks.get(name)
        if known is not None and not known.is_removed:
            time = max(time, known.time)
            if known.left is not None and began is not None and began < known.left:
                known.time = time
                return
        is_new = known is None or known.left is not None or known.is_removed
        is_late = shown is not None and time < shown[0]
        if is_new and is_late:
            self.recorded = shown
        self.marks[name] = Mark(time, is_late=is_late)


class World:
    """The stream, its writers in several processes, and the model beside it."""

    def __init__(self) -> None:
        self.clock = FakeRuntime()
        self.manager = manager_of(self.clock)
        self.manager.create_scope("s")
        self.manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2)))
        self.clocks = [self.clock, FakeRuntime(), FakeRuntime()]
        self.clocks[1].wall_ms += DAY_MS
        self.clocks[2].wall_ms -= DAY_MS
        url = root_of(self.manager).store.url
        others = [StreamManager(url, runtime=clock) for clock in self.clocks[1:]]
        self.processes = [self.manager, *others]
        self.model, self.step = Model(), 0
        self.writers: dict[str, EventStreamWriter] = {}
        self.killed: list[EventStreamWriter] = []
        self.joined: dict[str, TransactionalWriter] = {}
        self.open: list[tuple[str, int, Transaction]] = []
        self.promised: dict[str, int] = {}
        """What each writer noted last, also if its mark has been dropped since."""
        self.unnoted: dict[str, list[tuple[int, EventPointer]]] = {}
        self.noted: list[tuple[int, EventPointer]] = []
        self.written: list[tuple[int, EventPointer]] = []
        """The events that are stored with their times."""
        self.last: Watermark | None = None

    # What happens. ``who`` is a writer, a process or a transaction; ``time`` in ms, or minutes.

    def write(self, who: int, time: int) -> None:
        name = f"w{who}"
        if name not in self.writers:
            self.writers[name] = self.processes[who].create_writer(S, name)
        mark = self.model.marks.get(name)
        is_there = mark is not None and self.model.lives(name)
        if mark is not None:
            time = max(time, mark.time)
        shown = self.model.shown()
        if mark is not None and is_there and shown is not None:
            assert mark.is_late or time >= shown[0], "a writer that counts would be late"
        row = {"event": [b"%d" % time], "routing_key": [str(self.step)]}
        stamp = pa.array([1_000 * time], pa.timestamp("us", "UTC"))
        (pointer,) = self.writers[name].write_table(pa.table({**row, "timestamp": stamp})).result()
        self.written.append((time, pointer))
        self.unnoted.setdefault(name, []).append((time, pointer))

    def note(self, who: int, time: int) -> None:
        name = f"w{who}"
        if name not in self.writers:
            self.write(who, time)
        try:
            self.writers[name].note_time(time).result()
        except InvalidTime:
            assert time < self.promised[name]
            return
        self.promised[name] = time
        self._add_noted(name)
        self.model.note(name, time, self.step)

    def _add_noted(self, name: str) -> None:
        """Take a writer's events as noted, except late ones: it did not count, and was passed."""
        shown, events = self.model.shown(), self.unnoted.pop(name, [])
        self.noted += [event for event in events if shown is None or event[0] >= shown[0]]

    def kill(self, who: int, time: int) -> None:
        """Kill a writer right after an append, before its note."""
        self.write(who, time)
        self.killed.append(self.writers.pop(f"w{who}"))
        self.unnoted.pop(f"w{who}", None)

    def close(self, who: int, time: int) -> None:
        name = f"w{who}"
        writer = self.writers.pop(name, None)
        if writer is None:
            return
        has_noted, shown = queue_of(writer).notes_time, self.model.shown()
        writer.close()
        mark = self.model.marks.get(name)
        if has_noted and mark is not None:
            self._add_noted(name)
            mark.left = self.step
            if mark.is_removed:  # its commit keeps what is shown, as the removal did
                self.model.recorded = shown

    def begin(self, who: int, time: int) -> None:
        name = f"x{who % 2}"
        if name not in self.joined:
            for other, _, transaction in [one for one in self.open if one[0] == name]:
                transaction.abort()  # a newer session would
                self._ended(other, transaction)
            self.joined[name] = self.processes[who].create_transactional_writer(S, name)
        transaction = self.joined[name].begin_transaction()
        transaction.write_event(b"t", str(self.step))
        transaction.flush()
        self.open.append((name, self.step, transaction))
        self.model.began.setdefault(name, []).append(self.step)

    def _ended(self, name: str, transaction: Transaction) -> int:
        (entry,) = [one for one in self.open if one[2] is transaction]
        self.open.remove(entry)
        self.model.began[name].remove(entry[1])
        return entry[1]

    def commit(self, who: int, time: int) -> None:
        if self.open:
            name, _, transaction = self.open[who % len(self.open)]
            transaction.commit(timestamp=EPOCH + timedelta(milliseconds=time))
            self.model.note(name, time, self.step, began=self._ended(name, transaction))

    def abort(self, who: int, time: int) -> None:
        if self.open:
            name, _, transaction = self.open[who % len(self.open)]
            if time % 2:
                transaction.abort()
            else:
                transaction.commit()
            self._ended(name, transaction)

    def leave(self, who: int, time: int) -> None:
        name = f"x{who % 2}"
        if name in self.joined:
            self.joined.pop(name).close()
            mark = self.model.marks.get(name)
            if mark is not None and mark.left is None and not mark.is_removed:
                mark.left = self.step

    def remove(self, who: int, time: int) -> None:
        name = f"w{who}"
        mark, shown = self.model.marks.get(name), self.model.shown()
        was_there = self.processes[time % 3].event_time(S).remove_mark(name)
        assert was_there == (mark is not None and not mark.is_removed)
        if was_there and mark is not None:
            self.model.recorded, mark.is_removed = shown, True

    def wait(self, who: int, time: int) -> None:
        for clock in self.clocks:
            clock.sleep(60.0 * time)
        for mark in self.model.marks.values():
            mark.age_s += 60.0 * time

    def update(self, who: int, time: int) -> None:
        """Sample by a process, which may die on the way."""
        if time == 0:
            with suppress(_Killed):
                failpoints.install(_die)
                self.processes[who].event_time(S).update()
            failpoints.install(None)
            return
        found = self.processes[who].event_time(S).update()
        dropped, before = tuple(mark.writer_id for mark in found.dropped), self.model.recorded
        expected = self.model.shown(without=dropped)
        bounds = None if expected == before else expected
        assert _bounds(found.watermark) == bounds
        self.model.recorded = expected
        for name in dropped:
            mark = self.model.marks.pop(name)
            assert expected is not None or mark.is_removed
            if not mark.is_removed:
                assert expected is not None
                assert mark.time <= expected[0]
                assert mark.left is not None or mark.age_s >= TIMEOUT_S, "silence was judged early"
        if who == 0:
            held = {mark.writer_id for mark in found.held_by}
            ages = [self.model.marks[name].age_s for name in held]
            assert all(age <= TIMEOUT_S for age in ages), "a silent writer holds the watermark"

    def check(self) -> None:
        self.step += 1
        shown = self.processes[self.step % 3].event_time(S).watermark()
        assert _bounds(shown) == self.model.shown()
        if shown is None:
            assert self.last is None
            return
        for asked in (shown.upper_us // 1_000 + 1, self.step % 10):
            start = dict(self.processes[self.step % 3].event_time(S).cut_before(asked))
            for time, pointer in self.written:
                assert time < asked or pointer.offset >= start[pointer.segment_id]
        cut = dict(shown.cut)
        for time, pointer in self.noted:
            if 1_000 * time < shown.lower_us:
                assert pointer.offset < cut[pointer.segment_id]
        if self.last is not None:
            assert (shown.lower_us, shown.upper_us) >= (self.last.lower_us, self.last.upper_us)
            assert shown.upper_us >= self.last.upper_us
            assert all(cut[segment] >= offset for segment, offset in self.last.cut)
        self.last = shown


class _Killed(BaseException):
    """The process was killed."""


def _die(name: str) -> None:
    if name == "watermark.history":
        raise _Killed


def _bounds(found: Watermark | None) -> Bounds | None:
    return None if found is None else (found.lower_us // 1_000, found.upper_us // 1_000)


OFTEN = {World.note: 4, World.update: 3, World.commit: 2, World.begin: 2, World.leave: 2}
ACTIONS = [
    action
    for action in (
        *(World.write, World.note, World.kill, World.close, World.begin, World.commit),
        *(World.abort, World.leave, World.remove, World.wait, World.update),
    )
    for _ in range(OFTEN.get(action, 1))
]
STEPS = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2), st.integers(0, 9))


@pytest.mark.long
@settings(
    max_examples=sized(10, 1_500, "EVENT_TIME_EXAMPLES"), deadline=None, derandomize=not IS_LONG
)
@given(st.lists(STEPS, max_size=30))
def test_the_watermark_is_what_the_acknowledged_notes_say(
    steps: list[tuple[Callable[[World, int, int], None], int, int]],
) -> None:
    world = World()
    try:
        for action, who, time in steps:
            action(world, who, time)
            world.check()
    finally:
        failpoints.install(None)
        for process in world.processes:
            process.close()
