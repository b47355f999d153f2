"""Readers without a group against streams that are scaled, truncated, deleted and created again.

Iterators between cuts, by batch and by range, and followers go on through all of it, in processes
that know of it and in others; any of their storage calls may fail. Each event comes once and in the
order of its key, or an error says what is lost and where the rest begins.
"""

# ruff: noqa: PT017  (a model judges whichever error comes)

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pravega_spark.errors import (
    InvalidStreamCut,
    NoSuchStream,
    StaleIdentity,
    StoreError,
    TruncatedData,
)
from pravega_spark.event_reader import EventReader
from pravega_spark.values.segments import SegmentRange, StreamCut
from tests.harness.reading_world import KnownCut, Life, Process, ReadingWorld, number_of
from tests.harness.sequences import Step, act, drawn_steps, play_shortest
from tests.harness.tiers import sized

NAMES = ("s/t", "s/u")
KINDS = ("read", "read", "follow", "batches", "read_range")


@dataclass
class Reading:
    """A read in progress: what it has passed, and what it is to pass (None: all there will be)."""

    kind: str
    process: Process
    life: Life
    reader: EventReader
    source: Iterator[Any]
    start: StreamCut | str | SegmentRange
    end: StreamCut | str
    done: set[int]
    target: frozenset[int] | None
    forbidden: frozenset[int]
    """What was truncated before the call."""
    last_offset: int = -1

    def __post_init__(self) -> None:
        self.passed = frozenset(self.done)

    def wanted(self) -> set[int]:
        """Return what a read that has ended must have passed."""
        return set(self.life.events if self.target is None else self.target)


class Readers(ReadingWorld):
    """Reads in progress of some streams."""

    def __init__(self) -> None:
        super().__init__(NAMES)
        self.readings: list[Reading] = []

    # --------------------------------------------------------------------------------- beginning

    def begin(self) -> None:
        name, dice = self.dice.choice(self.names), self.dice
        life = dice.choice(self.lives[name]) if dice.random() < 0.2 else self.lives[name][-1]
        kind, process = dice.choice(KINDS), self.process()
        earliest = KnownCut(StreamCut.EARLIEST, frozenset(life.gone))
        start = dice.choice([earliest, *life.cuts])
        present = self.present(name)
        if present is not life and start is earliest:
            return
        end = KnownCut(StreamCut.LATEST, frozenset(life.events))
        if life.cuts and dice.random() < 0.3:
            end = dice.choice(life.cuts)
        try:
            reading = self._opened(kind, process, life, start, end)
        except InvalidStreamCut as error:
            is_of_another_life = present is not None and present is not life
            is_ordered = end.cut == StreamCut.LATEST or start.is_before(end)
            assert is_of_another_life or not is_ordered or not start.cut.is_bound, error
        except NoSuchStream as error:
            assert present is None, error
        except TruncatedData as error:
            assert kind == "read_range"
            self.check_lost(life, error, start.before)
        else:
            assert present is life, f"{start.cut} is of another life than {present}"
            if reading is not None:
                self.readings.append(reading)

    def _opened(
        self, kind: str, process: Process, life: Life, start: KnownCut, end: KnownCut
    ) -> Reading | None:
        gone = frozenset(life.gone)
        if kind == "read_range":
            ranges = process.segment_ranges(life.name, start.cut, end.cut)
            found = life.in_ranges(ranges)
            expected = end.before - start.before
            assert set(found) == expected, f"{ranges} between {start} and {end}"
            if not ranges:
                return None
            rng = self.dice.choice(ranges)
            reader = EventReader(process.log(life.name))
            passed = set(life.events - set(life.in_ranges([rng])))
            return Reading(
                *(kind, process, life, reader, reader.read_range(rng)),
                *(rng, "", passed, frozenset(life.events), gone),
            )
        reader = EventReader(process.log(life.name))
        source = self._source(kind, reader, start.cut, end.cut)
        target: frozenset[int] | None = None if kind == "follow" else end.before
        if kind != "follow" and end.cut == StreamCut.LATEST:
            target = frozenset(life.events)
        return Reading(
            *(kind, process, life, reader, source, start.cut, end.cut),
            *(set(start.before), target, gone),
        )

    def _source(
        self, kind: str, reader: EventReader, start: StreamCut | str, end: StreamCut | str
    ) -> Iterator[Any]:
        if kind == "read":
            return reader.events(start, end)
        if kind == "batches":
            return reader.batches(start, end)
        return reader.follow(start, timeout=0)

    # ----------------------------------------------------------------------------------- going on

    def go(self) -> None:
        if not self.readings:
            return
        reading = self.dice.choice(self.readings)
        for _ in range(self.dice.choice((1, 1, 2, 5, 20))):
            if not self._go(reading):
                self.readings = [one for one in self.readings if one is not reading]
                return

    def _go(self, reading: Reading, *, fails: bool = True) -> bool:
        """Take one step of a read; return whether it goes on."""
        dice, life = self.dice, reading.life
        nth = dice.randint(1, 4) if fails and dice.random() < 0.3 else 0
        try:
            with reading.process.failing(nth, dice):
                item = next(reading.source, None)
        except TruncatedData as error:
            self._lost(reading, error)
        except (NoSuchStream, StaleIdentity) as error:
            assert life.is_deleted, error
        except StoreError as error:
            assert nth, error
            return self._resume(reading)
        else:
            if item is None:
                return self._ended(reading)
            self._took(reading, item)
            return True
        return False

    def _took(self, reading: Reading, item: Any) -> None:
        life = reading.life
        if reading.kind != "batches":
            numbers = [number_of(item)]
        else:
            rng, batch = item
            payloads = batch.column("event").to_pylist()
            numbers = [int(payload.split(b":")[0]) for payload in payloads]
            assert rng.segment_id == life.pointers[numbers[0]].segment_id
        for number in numbers:
            assert number in life.events, f"{number} is not of this life"
            assert number not in reading.done, f"{number} comes again"
            assert number not in reading.forbidden, f"{number} was truncated before the call"
            missing = [n for n in life.before_in_key(number) if n not in reading.done]
            assert not missing, f"{number} comes before {missing} of its key"
            reading.done.add(number)
            reading.last_offset = life.pointers[number].offset

    def _ended(self, reading: Reading) -> bool:
        life = reading.life
        missing = reading.wanted() - reading.done
        assert not missing, f"{reading.kind} ended without {sorted(missing)}"
        if reading.target is not None:
            assert reading.done - reading.passed <= reading.target, "it passed its end"
            return False
        if life.is_deleted:
            return False
        position = reading.reader.position
        assert position is not None
        reading.source = reading.reader.follow(position, timeout=0)
        return not life.is_sealed

    def _lost(self, reading: Reading, error: TruncatedData) -> None:
        life = reading.life
        if life.is_deleted:  # this process does not know of it yet
            assert set(life.in_ranges(error.lost)) <= life.gone - reading.done, error
            return
        is_newest = life.gone == reading.forbidden
        if isinstance(reading.start, SegmentRange):
            lost, missed = set(life.in_ranges(error.lost)), life.gone - reading.done
            assert set() < lost <= missed, f"{lost} for {missed}: {error}"
            assert error.head is not None
            if is_newest:
                assert lost == missed, f"{lost} for {missed}: {error}"
                self.check_cut(life, error.head, life.gone)
            return
        missed = life.gone - reading.done
        if reading.target is not None and not missed & reading.target:
            assert missed & reading.forbidden, f"nothing is lost: {error}"
        self.check_lost(life, error, reading.done, is_newest=is_newest)

    def _resume(self, reading: Reading) -> bool:
        """Go on after an error of the storage, at the position that the reader tells."""
        life, kind = reading.life, reading.kind
        try:
            if isinstance(reading.start, SegmentRange):
                at = max(reading.start.start, reading.last_offset + 1)
                rng = replace(reading.start, start=at)
                reading.source = reading.reader.read_range(rng)
            else:
                position = reading.reader.position
                start = reading.start if position is None else position
                if self.present(life.name) is life and StreamCut.of(start).is_bound:
                    self.check_cut(life, StreamCut.of(start), reading.done)
                end = reading.end if StreamCut.of(reading.end).is_bound else StreamCut.LATEST
                if end == StreamCut.LATEST and kind != "follow":
                    reading.target = frozenset(life.events)
                if start == StreamCut.EARLIEST:
                    reading.done |= life.gone
                reading.source = self._source(kind, reading.reader, start, end)
                reading.forbidden = frozenset(life.gone)
        except (NoSuchStream, StaleIdentity, InvalidStreamCut) as error:
            assert life.is_deleted, error
            return False
        return True

    def look(self) -> None:
        """Check the position of a read in progress."""
        if self.readings:
            reading = self.dice.choice(self.readings)
            position = reading.reader.position
            if position is not None and self.present(reading.life.name) is reading.life:
                self.check_cut(reading.life, position, reading.done)

    # ------------------------------------------------------------------------------ single answers

    def fetch(self) -> None:
        life = self.dice.choice(self.lives[self.dice.choice(self.names)])
        if not life.events:
            return
        number = self.dice.choice(sorted(life.events))
        pointer, present = life.pointers[number], self.present(life.name)
        try:
            event = self.process().fetch_event(str(pointer))
        except NoSuchStream as error:
            assert present is None, error
        except StaleIdentity as error:
            assert present not in (None, life), error
        except TruncatedData as error:
            assert number in life.gone, error
            assert life.in_ranges(error.lost) == [number], error
        else:
            assert (present, number in life.gone) == (life, False), f"{pointer} is readable"
            assert number_of(event) == number

    def distance(self) -> None:
        life = self.any_life()
        if life is None or not life.cuts:
            return
        start, end = (self.dice.choice(life.cuts) for _ in range(2))
        try:
            count, size = self.process().distance(life.name, start.cut, end.cut)
        except InvalidStreamCut as error:
            assert not start.is_before(end), error
        except TruncatedData as error:
            self.check_lost(life, error, start.before)
        else:
            assert life.gone <= start.before, f"{start.cut} is below the head"
            between = end.before - start.before
            assert (count, size) == (len(between), sum(self.sizes[n] for n in between))

    def end(self) -> None:
        """Let each read end."""
        for reading in self.readings:
            for _ in range(100_000):
                has_all = reading.kind == "follow" and reading.life.events <= reading.done
                if has_all and not reading.life.is_sealed:
                    break
                if not self._go(reading, fails=False):
                    break
        for name in self.names:
            life = self.present(name)
            for known in life.cuts if life is not None else ():
                assert life is not None
                self.check_cut(life, known.cut, known.before)


VERBS = (
    *("write", "write", "write", "scale", "scale", "truncate", "truncate", "save", "save"),
    *("begin", "begin", "begin", "go", "go", "go", "go", "go", "look", "fetch", "distance"),
    *("compact", "sweep", "seal", "delete", "create"),
)


def play(steps: Sequence[Step]) -> None:
    world = Readers()
    act(world, steps)
    world.dice = random.Random(0)
    world.end()


@pytest.mark.long
def test_each_event_is_read_once_or_an_error_says_what_is_lost() -> None:
    for seed in range(sized(15, 5_000, "READERS_SEEDS")):
        play_shortest(seed, drawn_steps(seed, VERBS, 6 + seed % 40), play)
