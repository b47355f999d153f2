"""Automatic scaling under a random load, against the load that was counted when it was written.

A run never splits what was slow nor merges what was busy, and no segment in its cool-down. A load
far above the target is split within a quarter of an hour, and an idle stream goes back to its
minimum. The open segments always cover the keys once, and no event is lost or doubled.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunks.routing import Router
from pravega_spark.engine.layout.epochs import split
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.scaling.auto import explain_scaling, run_scaling
from pravega_spark.scaling.commit import scale_stream
from tests.harness.loads import stream_with
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.small_streams import all_events, write
from tests.harness.tiers import sized

VERBS = ("load", "load", "load", "idle", "decide", "decide", "scale", "retarget")
COOL_DOWN_SECONDS = 600.0
WINDOW_SECONDS = 1_200.0
STEP_SECONDS = 30.0
FACTOR = 4


@dataclass
class Load:
    """A stream of a policy by event rate, and when each event went to which segment."""

    stream: StreamLog
    target: int = 2
    minimum: int = 2
    retargeted_at: float = -1e9
    written: int = 0
    counts: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    born: dict[int, float] = field(default_factory=dict)

    @property
    def now(self) -> float:
        return self.stream.runtime.monotonic()

    def sleep(self, seconds: float) -> None:
        self.stream.runtime.sleep(seconds)

    def note_births(self) -> None:
        for segment in self.stream.view().active.segments:
            self.born.setdefault(segment.segment_id, self.now)

    def write(self, count: int, keys: int) -> None:
        router = Router(self.stream.view().active.segments)
        events = [(f"key-{n % keys}", b"%d" % n) for n in range(self.written, self.written + count)]
        for segment, number in Counter(router.segment_of(key) for key, _ in events).items():
            self.counts.setdefault(segment, []).append((self.now, number))
        if events:
            write(self.stream, events)
        self.written += count

    def rate(self, segment: int, seconds: float, end: float | None = None) -> float:
        """The events a second that a segment really got in the seconds up to now, or an end."""
        end = self.now if end is None else end
        counts = self.counts.get(segment, ())
        return sum(n for at, n in counts if end - seconds < at <= end) / seconds

    def average(self, segment: int, constant: float, end: float) -> float:
        """The exponential average of the events a second at a time, over the segment's life."""
        counts = self.counts.get(segment, ())
        total = sum(n * math.exp((at - end) / constant) for at, n in counts if at <= end)
        life = max(STEP_SECONDS, end - self.born[segment])
        return total / constant / (1 - math.exp(-life / constant))

    def load(self, dice: random.Random) -> None:
        rate, keys = dice.choice((0.2, 1, 4, 20)), dice.choice((1, 8, 64))
        for _ in range(dice.randint(2, 30)):
            self.sleep(STEP_SECONDS)
            self.write(int(rate * STEP_SECONDS), keys)

    def idle(self, dice: random.Random) -> None:
        self.sleep(dice.uniform(60, 2_400))

    def scale(self, dice: random.Random) -> None:
        chosen = dice.choice(self.stream.view().active.segments)
        if len(self.stream.view().active.segments) < 12:
            scale_stream(self.stream, [chosen.segment_id], split(chosen.key_range, 2))
            self.note_births()

    def retarget(self, dice: random.Random) -> None:
        self.target = dice.choice((1, 2, 10))
        policy = ScalingPolicy.by_event_rate(self.target, FACTOR, self.minimum)
        if lifecycle.update(self.stream, StreamConfiguration(policy)):
            self.retargeted_at = self.now

    def decide(self, dice: random.Random) -> set[str]:
        """Run once; what it does must fit the load that was counted."""
        before = {s.segment_id: s for s in self.stream.view().active.segments}
        planned = explain_scaling(self.stream)
        assert self.stream.view().active.segment_ids == tuple(before), "explain changed the stream"
        found = run_scaling(self.stream)
        assert found.decision == planned.decision, "a run does what was explained"
        for request in found.decision.requests:
            for segment in request.seal:
                self.check_sealed(segment, request.action.value)
            assert len(request.ranges) <= FACTOR
        self.note_births()
        active = sorted(self.stream.view().active.segments, key=lambda s: s.key_range.low)
        lows = [segment.key_range.low for segment in active]
        highs = [segment.key_range.high for segment in active]
        assert lows == [0.0, *highs[:-1]], f"the keys are not covered once: {active}"
        assert highs[-1] == 1.0
        assert len(active) >= min(self.minimum, len(before))
        return {request.action.value for request in found.decision.requests}

    def check_sealed(self, segment: int, action: str) -> None:
        if self.now - self.retargeted_at < WINDOW_SECONDS:
            return
        age = self.now - self.born[segment]
        if action == "split":
            assert age >= COOL_DOWN_SECONDS, f"{segment} is split at the age of {age} s"
            ends = [self.now - 60 * minutes for minutes in range(11)]  # an event counts so long
            windows = itertools.product((120, 300, 600), ends)
            fastest = max(self.average(segment, seconds, end) for seconds, end in windows)
            assert fastest > self.target / 2, f"{segment} is split at {fastest} events a second"
        else:
            assert age >= COOL_DOWN_SECONDS, f"{segment} is merged at the age of {age} s"
            assert self.was_slow(segment), f"{segment} is merged, and was always fast"

    def was_slow(self, segment: int) -> bool:
        """Whether it was slow at a moment of the last ten minutes, or ever without a write."""
        times = [self.born[segment], *(at for at, _ in self.counts.get(segment, ())), self.now]
        if any(later - at >= WINDOW_SECONDS for at, later in itertools.pairwise(times)):
            return True
        ends = [self.now - 60 * minutes for minutes in range(11)]
        return any(self.rate(segment, WINDOW_SECONDS, end) < self.target for end in ends)

    def check_events(self) -> None:
        events = [event for _, event in all_events(self.stream)]
        assert sorted(map(int, events)) == list(range(self.written))

    def check_ends(self) -> None:
        """A load far above the target is split; without a load the minimum comes back."""
        self.sleep(2 * WINDOW_SECONDS)
        segments = len(self.stream.view().active.segments)
        actions = set[str]()
        for _ in range(int(3 * COOL_DOWN_SECONDS / 2 / STEP_SECONDS)):
            self.sleep(STEP_SECONDS)
            self.write(int(10 * self.target * segments * STEP_SECONDS), 64)
            actions |= self.decide(random.Random(0))
        assert "split" in actions, f"{segments} segments were never split"
        self.check_events()
        for _ in range(40):
            self.sleep(300)
            self.decide(random.Random(0))
        assert len(self.stream.view().active.segments) == self.minimum


def play(steps: Sequence[Step], *, minimum: int, is_ending: bool) -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(2, FACTOR, minimum))
    world = Load(stream, minimum=minimum)
    world.note_births()
    for verb, dice in itertools.chain(steps, [("decide", 0)]):
        getattr(world, verb)(random.Random(dice))
    world.check_events()
    if is_ending:
        world.check_ends()


@pytest.mark.long
def test_scaling_follows_the_load_that_was_written() -> None:
    for seed in range(sized(5, 3_000, "SCALING_SEEDS")):
        minimum = 1 + seed % 3
        steps = drawn_steps(seed, VERBS, 3 + seed % 12)
        play_shortest(seed, steps, partial(play, minimum=minimum, is_ending=seed % 10 == 0))
