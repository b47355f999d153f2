"""Conditional appends are linearizable per segment, on storage that loses answers.

Several processes append to one stream in one thread: at any storage call of one of them another
may do a whole operation, and a delayed commit may arrive. Afterwards each answer is compared with
the log: an acknowledged append is where it was expected, a refused one is nowhere, and its actual
position is one that the segment had during the call.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import pytest

from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.batch import WriteBatch
from pravega_spark.engine.writing.committer import BatchCommitter
from pravega_spark.engine.writing.futures import ConditionalOutcome, ConditionalWrite, PendingWrites
from pravega_spark.errors import CommitUnknown, ConditionFailed, StoreError
from pravega_spark.values.segments import EventPointer, StreamCut
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.faulty_store import Fault, FaultyStore
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.simulation import LOSSES
from tests.harness.small_streams import events_of, make_stream, reopen
from tests.harness.tiers import sized

SEEDS = sized(30, 5_000, "CONDITIONAL_SEEDS")
SEGMENTS = (0, 1)
CALLS = 30
"""No operation begins inside another one after so many."""


@dataclass
class Call:
    """One append: what was expected, the positions when it began and ended, and the answer."""

    event: bytes
    expected: EventPointer | StreamCut | None
    began: dict[int, int]
    ended: dict[int, int] = field(default_factory=dict)
    answer: EventPointer | ConditionFailed | None = None


class ConditionalWorld:
    """A stream with two segments and three processes that append to it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.runtime = FakeRuntime(seed)
        self.losses = self.chance.choice((0.0, 0.3, 0.7))
        self.probability = 0.0
        self.store = FaultyStore(MemoryStore(), self._plan)
        self.calls: list[Call] = []
        self.busy: list[int] = []
        self.stream = make_stream(self.store, self.runtime, len(SEGMENTS))
        self.observer = reopen(self.stream, self.store.inner)
        self.processes = [self._opened() for _ in range(3)]
        self.number = 0

    def _opened(self) -> BatchCommitter:
        stream = StreamLog(self.store, "s/t", self.runtime)
        stream.log.maintain = None
        return BatchCommitter(stream, None)

    def _plan(self, operation: str, key: str) -> Fault | StoreError | None:
        if self.chance.random() < 0.1:
            self.store.deliver()
        nests = 0 < len(self.busy) < 3 and len(self.calls) < CALLS
        if nests and self.chance.random() < 0.06:
            self.step()
        if operation == "put_if_absent" and self.chance.random() < self.probability:
            return self.chance.choice(LOSSES)
        return None

    def lengths(self) -> dict[int, int]:
        view = self.observer.view()
        return {segment_id: view.segment(segment_id).next_offset for segment_id in SEGMENTS}

    def step(self) -> None:
        who = self.chance.choice([n for n in range(3) if n not in self.busy])
        self.busy.append(who)
        try:
            self._append(who)
        finally:
            self.busy.remove(who)

    def _append(self, who: int) -> None:
        began = self.lengths()
        segment_id = self.chance.choice(SEGMENTS)
        offset = max(0, began[segment_id] + self.chance.choice((-1, 0, 0, 0, 0, 1)))
        expected = self.chance.choice(
            (
                EventPointer("s/t", 1, segment_id, offset),
                EventPointer("s/t", 1, segment_id, offset),
                StreamCut("s/t", 1, {**began, segment_id: offset}),
                None,
            )
        )
        self.number += 1
        call = Call(b"%d" % self.number, expected, began)
        self.calls.append(call)
        batch = WriteBatch()
        if expected is None:
            batch.events, batch.keys, batch.times_ns = [call.event], [None], [0]
        else:
            outcome = ConditionalOutcome(PendingWrites())
            write = ConditionalWrite(expected, [call.event], 1, outcome, is_single=True)
            assert batch._add(write)
        try:
            call.answer = self.processes[who].commit(batch).pointer(0)
        except ConditionFailed as refused:
            call.answer = refused
        except (CommitUnknown, StoreError):
            self.processes[who] = self._opened()  # as an application does after such an error
        call.ended = self.lengths()

    def run(self, steps: Iterable[Step]) -> collections.Counter[str]:
        """Do some operations; return how many answers there were of each kind."""
        self.probability = self.losses
        for _, seed in steps:
            self.chance = random.Random(seed)
            self.step()
        self.probability = 0.0
        self.store.deliver()
        return self.check()

    def check(self) -> collections.Counter[str]:
        where: dict[bytes, EventPointer] = {}
        for segment_id in SEGMENTS:
            for offset, (_, event) in enumerate(events_of(self.observer, segment_id)):
                assert event not in where, f"{event!r} is there twice"
                where[event] = EventPointer("s/t", 1, segment_id, offset)
        found: collections.Counter[str] = collections.Counter()
        for call in self.calls:
            landed = where.get(call.event)
            if isinstance(call.answer, ConditionFailed):
                assert landed is None, f"{call} was refused and landed at {landed}"
                self._check_refusal(call, call.answer)
                found["refused"] += 1
            elif call.answer is not None:
                assert landed == call.answer
                found["written"] += 1
            else:
                found["unknown"] += 1
            if landed is not None and isinstance(call.expected, EventPointer):
                assert landed == call.expected, f"{call} landed elsewhere: {landed}"
            if landed is not None and isinstance(call.expected, StreamCut):
                assert landed.offset == call.expected.positions[landed.segment_id]
        return found

    def _check_refusal(self, call: Call, refused: ConditionFailed) -> None:
        assert refused.actual != call.expected
        actual = refused.actual
        assert isinstance(actual, (EventPointer, StreamCut))
        cells = actual.positions if isinstance(actual, StreamCut) else {}
        if isinstance(actual, EventPointer):
            cells = {actual.segment_id: actual.offset}
        for segment_id, offset in cells.items():
            assert call.began[segment_id] <= offset <= call.ended[segment_id], call


def steps_of(seed: int) -> list[Step]:
    return drawn_steps(seed, ("step",), 12)


@pytest.mark.long
def test_each_answer_is_that_of_one_moment_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pravega_spark.engine.log.commit.COMMIT_DEADLINE_SECONDS", 0.0)
    found: collections.Counter[str] = collections.Counter()

    def play(seed: int, steps: Iterable[Step]) -> None:
        found.update(ConditionalWorld(seed).run(steps))

    for seed in range(SEEDS):
        play_shortest(seed, steps_of(seed), partial(play, seed))
    assert min(found["refused"], found["written"]) > SEEDS, found
    assert found["unknown"] > SEEDS / 5, found


@pytest.mark.medium
def test_conditions_that_only_the_writers_own_view_decides_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the test is for: without the comparison at the commit it fails."""
    monkeypatch.setattr("pravega_spark.engine.log.commit.COMMIT_DEADLINE_SECONDS", 0.0)
    monkeypatch.setattr(
        "pravega_spark.engine.writing.append.AppendCondition.check",
        lambda condition, view, draft=None: None,
    )
    wrong = 0
    for seed in range(10):
        try:
            ConditionalWorld(seed).run(steps_of(seed))
        except AssertionError:
            wrong += 1
    assert wrong > 5
