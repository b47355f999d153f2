"""Rounds of maintenance against a model of a policy by time: nothing early, and nothing late.

The model knows when each event was written. A round may delete what is older than the limit, and
must have deleted it one round after it reached the limit, however the stream was scaled meanwhile.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from pravega_spark.manager import StreamManager
from pravega_spark.model import MaintenanceKind
from pravega_spark.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.tiers import sized

LIMIT_SECONDS = 3_600.0
ROUND_SECONDS = 900.0
RETENTION = (MaintenanceKind.RETENTION,)
NAME = "s/t"


@dataclass
class RetentionWorld:
    """A stream, and when each of its events was written."""

    clock: FakeRuntime = field(default_factory=FakeRuntime)
    written: dict[bytes, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.manager: StreamManager = manager_of(self.clock)
        self.manager.create_scope("s")
        policy = RetentionPolicy.by_time(LIMIT_SECONDS)
        self.manager.create_stream(NAME, StreamConfiguration(ScalingPolicy.fixed(2), policy))

    def write(self, keys: int) -> None:
        with self.manager.create_writer(NAME) as writer:
            for key in range(keys):
                event = b"%d" % len(self.written)
                writer.write_event(event, routing_key=str(key))
                self.written[event] = self.clock.elapsed

    def scale(self, rng: random.Random) -> None:
        active = self.manager.stream(NAME).segments()
        chosen = rng.choice(list(active))
        middle = (chosen.key_range.low + chosen.key_range.high) / 2
        ranges = [(chosen.key_range.low, middle), (middle, chosen.key_range.high)]
        self.manager.scale_stream(NAME, [chosen.segment_id], ranges)

    def round(self) -> None:
        self.manager.maintain(kinds=RETENTION)
        left = {bytes(event.data) for event in self.manager.read(NAME)}
        now = self.clock.elapsed
        early = {e for e, at in self.written.items() if now - at < LIMIT_SECONDS} - left
        late = {e for e in left if now - self.written[e] > LIMIT_SECONDS + ROUND_SECONDS}
        assert not early, f"deleted early: {sorted(early)}"
        assert not late, f"still there: {sorted(late)}"
        stays = self.manager.retention(NAME).explain().stays
        oldest = max((now - self.written[event] for event in left), default=0.0)
        assert stays.events == len(left)
        assert abs(stays.seconds - oldest) < 1, f"explained as {stays}, and {oldest} s old"


def play(seed: int) -> list[str]:
    rng, world, steps = random.Random(seed), RetentionWorld(), list[str]()
    try:
        for _ in range(rng.randint(4, 14)):
            step = rng.choice(("write", "write", "scale", "rounds", "rounds"))
            steps.append(step)
            if step == "write":
                world.write(rng.randint(1, 4))
            elif step == "scale":
                world.scale(rng)
            else:
                for _ in range(rng.randint(1, 6)):
                    world.clock.sleep(ROUND_SECONDS)
                    world.round()
        steps.append("end")
        for _ in range(7):
            world.clock.sleep(ROUND_SECONDS)
            world.round()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {steps}: {error}") from error
    return steps


@pytest.mark.long
def test_rounds_delete_what_has_reached_its_limit_and_nothing_else() -> None:
    for seed in range(sized(40, 5_000)):
        play(seed)
