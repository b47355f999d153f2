"""Streams whose every event is known: what was written, deleted and truncated, and in which order.

Processes change the streams, each with its own view of them. The truth counts events by their own
numbers: a cut is the set of the numbers before it, so nothing here knows segments or epochs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import (
    InvalidStreamCut,
    StoreError,
    TruncatedData,
)
from pravega_spark.event_reader import EventReader
from pravega_spark.manager import StreamManager
from pravega_spark.stream import Stream
from pravega_spark.values.events import Event
from pravega_spark.values.segments import EventPointer, SegmentRange, StreamCut
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.roots import KeptRoot
from tests.harness.spy_store import Spy

_WRITES = ("put_if_absent", "put", "writer", "delete")


class Process(StreamManager):
    """A process: a manager with its own calls to the storage, and one view of each stream."""

    def __init__(self, clock: FakeRuntime, inner: MemoryStore) -> None:
        super().__init__("memory://of-a-process", runtime=clock)
        self.spy = Spy(inner)
        self._root = KeptRoot(self.spy, clock)
        self.log = self._root.stream

    def stream(self, name: str) -> Stream:
        found = super().stream(name)
        found._root = self._root
        return found

    @contextmanager
    def failing(self, nth: int, dice: random.Random) -> Iterator[None]:
        """Fail the nth storage call of the block (0: none), before or after it took effect."""
        if nth:
            if dice.random() < 0.5:
                fault = dice.choice((Fault.LOSE_ANSWER, Fault.LOSE_REQUEST))
                rules = [Rule(fault, name, nth=nth) for name in _WRITES]
            else:
                rules = [Rule(StoreError("down"), nth=nth)]
            self.spy.rules.add(*rules)
        try:
            yield
        finally:
            self.spy.rules.clear()


class Life:
    """One life of a stream, and its events by their numbers, in the order of their writes."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.events: set[int] = set()
        self.gone: set[int] = set()
        """What is below the head."""
        self.is_sealed = self.is_deleted = False
        self.keys: defaultdict[str, list[int]] = defaultdict(list)
        self.key_of: dict[int, str] = {}
        self.pointers: dict[int, EventPointer] = {}
        self.cuts = list[KnownCut]()
        self._at: dict[tuple[int, int], int] = {}

    def add(self, number: int, key: str, pointer: EventPointer) -> None:
        assert (pointer.stream, pointer.life) == (self.name, self.number)
        at = pointer.segment_id, pointer.offset
        assert at not in self._at, f"two events have the pointer {pointer}"
        self._at[at] = number
        self.pointers[number] = pointer
        self.events.add(number)
        self.keys[key].append(number)
        self.key_of[number] = key

    def before_in_key(self, number: int) -> Iterable[int]:
        """Return the events of the same key that were written before this one."""
        same = self.keys[self.key_of[number]]
        return same[: same.index(number)]

    def in_ranges(self, ranges: Iterable[SegmentRange]) -> list[int]:
        """Return the events that ranges name; each must be one that was written."""
        found = list[int]()
        for rng in ranges:
            assert (rng.stream, rng.life) == (self.name, self.number), f"{rng} of another stream"
            for offset in range(rng.start, rng.end):
                assert (rng.segment_id, offset) in self._at, f"{rng} names no event at {offset}"
                found.append(self._at[rng.segment_id, offset])
        assert len(found) == len(set(found)), f"{ranges} name an event twice"
        return found


@dataclass(frozen=True)
class KnownCut:
    """A cut, the events before it, and of tails their order."""

    cut: StreamCut
    before: frozenset[int]
    order: int | None = None

    def is_before(self, other: KnownCut) -> bool:
        """Whether the other one is surely not behind, also where no events lie between."""
        return self.order is not None and other.order is not None and self.order <= other.order


class ReadingWorld:
    """Streams, the processes that change and read them, and the truth about all events."""

    def __init__(self, names: Collection[str], processes: int = 2) -> None:
        self.clock = FakeRuntime()
        self.dice = random.Random()
        self.store = memory(self.clock)
        self.processes = [Process(self.clock, self.store) for _ in range(processes)]
        self.judge = Process(self.clock, self.store)
        self.names = sorted(names)
        self.lives: dict[str, list[Life]] = {name: [] for name in self.names}
        self.sizes: dict[int, int] = {}
        self.forgets = False
        """Whether a sweep has deleted versions of a log, so that its history may have gaps."""
        self._order = 0
        self.judge.create_scope("s")
        for name in self.names:
            self._create(self.judge, name)

    # ------------------------------------------------------------------------- what there is

    def present(self, name: str) -> Life | None:
        """Return the life that a stream has now."""
        life = self.lives[name][-1]
        return None if life.is_deleted else life

    def any_life(self, *, sealed: bool = True) -> Life | None:
        found = [life for name in self.names if (life := self.present(name)) is not None]
        found = [life for life in found if sealed or not life.is_sealed]
        return self.dice.choice(found) if found else None

    def process(self) -> Process:
        return self.dice.choice(self.processes)

    # ------------------------------------------------------------------------- what changes

    def write(self) -> None:
        life = self.any_life(sealed=False)
        if life is not None:
            self.write_life(life)

    def write_life(self, life: Life) -> None:
        many = self.dice.random() < 0.02
        with self.process().create_writer(life.name) as writer:
            for _ in range(self.dice.randint(1, 5)):
                key = f"k{self.dice.randrange(7)}"
                count = self.dice.randint(1_000, 3_000) if many else self.dice.randint(1, 4)
                numbers = range(len(self.sizes), len(self.sizes) + count)
                events = [b"%d:" % n + b"x" * self.dice.randrange(9) for n in numbers]
                pointers = writer.write_events(events, routing_key=key).result()
                for number, event, pointer in zip(numbers, events, pointers, strict=True):
                    self.sizes[number] = len(event)
                    life.add(number, key, pointer)

    def scale(self) -> None:
        life = self.any_life(sealed=False)
        if life is not None:
            self.scale_life(life)

    def scale_life(self, life: Life) -> None:
        if self.dice.random() < 0.6:
            self._save(life, self.judge.tail(life.name))
        stream = self.process().stream(life.name)
        active = sorted(stream.segments(), key=lambda s: s.key_range.low)
        at = self.dice.randrange(len(active))
        first, pair = active[at], active[at : at + 2]
        if len(pair) == 2 and (self.dice.random() < 0.5 or len(active) > 4):
            ranges = [(pair[0].key_range.low, pair[1].key_range.high)]
            stream.scale([s.segment_id for s in pair], ranges)
        else:
            low, high = first.key_range.low, first.key_range.high
            middle = (low + high) / 2
            ranges = [(low, middle), (middle, high)] if self.dice.random() < 0.8 else [(low, high)]
            stream.scale([first.segment_id], ranges)
        if self.dice.random() < 0.6:
            self._save(life, self.judge.tail(life.name))

    def truncate(self) -> None:
        life = self.any_life()
        if life is not None:
            self.truncate_life(life)

    def truncate_life(self, life: Life, known: KnownCut | None = None) -> None:
        """Truncate a stream at a known cut, or at any of them."""
        if known is None:
            known = self.dice.choice([*life.cuts, self.tail(life)])
        try:
            done = self.process().truncate_stream(life.name, known.cut)
        except InvalidStreamCut:
            # It is below the head somewhere, perhaps only by the age of segments without events.
            head = self.judge.head(life.name)
            assert head != known.cut, f"{known.cut} is the head, and is refused"
            assert not known.before > life.gone or known.order is None or known.order < self._head
            return
        if not known.before >= life.gone:  # of a forgotten segment it is only known to be below
            kept = {segment for segment, _ in self.judge.head(life.name)}
            assert not kept & known.cut.positions.keys(), f"{known.cut} is below the head"
            assert done.events == 0
            return
        assert done.events == len(known.before - life.gone), f"{done} has the wrong number"
        life.gone |= known.before
        self._head = known.order if known.order is not None else 1 << 60

    _head = 0
    """The order of the last truncation's tail."""

    def save(self) -> None:
        """Save a cut: the tail, or one in the middle of anything, where a read has stopped."""
        life = self.any_life()
        if life is None:
            return
        if self.dice.random() < 0.4 or not life.events - life.gone:
            life.cuts.append(self.tail(life))
            return
        reader = EventReader(self.judge.log(life.name))
        start = self._readable_start(life)
        found, most = set(start.before), self.dice.randint(1, 12)
        for event in reader.events(start.cut):
            found.add(number_of(event))
            most -= 1
            if not most:
                break
        if reader.position is not None:
            life.cuts.append(KnownCut(reader.position, frozenset(found)))

    def _readable_start(self, life: Life) -> KnownCut:
        earliest = KnownCut(StreamCut.EARLIEST, frozenset(life.gone))
        fits = [known for known in life.cuts if known.before >= life.gone]
        return self.dice.choice([earliest, *fits])

    def _save(self, life: Life, cut: StreamCut) -> None:
        self._order += 1
        life.cuts.append(KnownCut(cut, frozenset(life.events), self._order))

    def tail(self, life: Life) -> KnownCut:
        self._order += 1
        return KnownCut(self.judge.tail(life.name), frozenset(life.events), self._order)

    def seal(self) -> None:
        life = self.any_life(sealed=False)
        if life is not None and self.dice.random() < 0.5:
            assert self.process().seal_stream(life.name)
            life.is_sealed = True

    def delete(self) -> None:
        life = self.any_life()
        if life is not None and self.dice.random() < 0.5:
            self.delete_life(life)

    def delete_life(self, life: Life) -> None:
        process = self.process()
        if not life.is_sealed:
            process.seal_stream(life.name)
        assert process.delete_stream(life.name)
        life.is_deleted = True
        if self.dice.random() < 0.6:
            self._create(self.process(), life.name)

    def create(self) -> None:
        for name in self.names:
            if self.present(name) is None:
                self._create(self.process(), name)

    def _create(self, process: Process, name: str) -> None:
        assert process.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(1)))
        self.lives[name].append(Life(name, self.judge.stream_info(name).life))

    def compact(self) -> None:
        life = self.any_life()
        if life is not None:
            self.process().compact_stream(life.name, include_newest=True, head_after=0)

    def sweep(self) -> None:
        """Delete the files that nothing needs, and with them the versions that have named them."""
        life = self.any_life()
        if life is not None:
            self.clock.sleep(2)
            self.process().sweep_stream(life.name, grace="1 s", retain="1 s")
            self.forgets = True

    # ------------------------------------------------------------------------- what must be so

    def check_lost(
        self, life: Life, error: TruncatedData, done: Collection[int], *, is_newest: bool = True
    ) -> None:
        """Check that an error names what is lost after these events, and where it goes on.

        A read that has begun earlier may know of a part alone; its head then leads to the rest.
        """
        missed = life.gone - set(done)
        lost = set(life.in_ranges(error.lost))
        has_unknown = self.forgets and any(not len(rng) for rng in error.lost)
        assert lost <= missed, f"{sorted(lost - missed)} are not lost: {error}"
        assert lost or has_unknown, f"nothing is lost: {error}"
        assert error.head is not None, f"no head: {error}"
        if is_newest or has_unknown:
            assert lost == missed or has_unknown, f"{sorted(missed - lost)} are lost, too: {error}"
            lost = missed
        self.check_cut(life, error.head, {*done, *lost})

    def check_cut(self, life: Life, cut: StreamCut, done: Collection[int]) -> None:
        """Check that exactly these events lie before a cut."""
        try:
            left = {number_of(event) for event in self.judge.read(life.name, cut)}
        except TruncatedData as error:
            self.check_lost(life, error, done)
        else:
            assert life.gone <= set(done), f"{cut}: {sorted(life.gone - set(done))} are lost"
            assert left == life.events - set(done), f"{cut} has the wrong events after it"


def number_of(event: Event) -> int:
    return int(bytes(event.data).split(b":")[0])


def once(function: Callable[[], Any], *errors: type[Exception]) -> tuple[Any, Exception | None]:
    """Return what a call returns, or the error that it raises."""
    try:
        return function(), None
    except errors as error:
        return None, error
