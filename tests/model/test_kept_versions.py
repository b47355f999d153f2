"""Time travel and pins beside sweeps: what a version promises to keep, and for how long.

A stream is written, scaled, compacted, truncated, thinned out by its policy and swept, while the
clock goes on. A version younger than what sweeps retain, or pinned for a backup, keeps each of its
files and its cut; an older one has the same content, or says that it is gone, and never another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log.reader import table_at
from pravega_spark.engine.log.retained import Pin, pin, release
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CorruptLog, TruncatedData
from pravega_spark.retention import run
from pravega_spark.values.segments import StreamCut
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.tiers import sized

NAME = "s/t"
VERBS = ("write", "write", "write", "scale", "compact", "truncate", "wait", "wait", "sweep",
         "sweep", "pin", "pin", "release", "thin")  # fmt: skip
HOUR = 3_600.0
RETAIN, GRACE = 2 * HOUR, HOUR / 2
AGE_LIMIT = 6 * HOUR


@dataclass(frozen=True)
class Kept:
    """A version as it was when it was the newest."""

    version: int
    at: float
    files: frozenset[str]
    cut: StreamCut


class VersionWorld:
    """A stream, its versions as they were, and the pins that hold some."""

    def __init__(self) -> None:
        self.clock = FakeRuntime()
        self.manager = manager_of(self.clock)
        self.manager.create_scope("s")
        policy = RetentionPolicy.by_time(AGE_LIMIT)
        self.manager.create_stream(NAME, StreamConfiguration(ScalingPolicy.fixed(1), policy))
        self.stream: StreamLog = self.manager.stream(NAME)._log()
        self.written: dict[bytes, float] = {}
        self.truncated = False
        self.kept: dict[int, Kept] = {}
        self.pins: dict[Pin, float] = {}
        self.note()

    def note(self) -> None:
        """Remember each version that the last step has made."""
        snapshot = self.stream.log.refresh()
        assert snapshot is not None
        if snapshot.version not in self.kept:
            _, files = table_at(self.stream.log.reader, snapshot.version)
            cut = self.manager.tail(NAME)
            paths = frozenset(add.path for add in files.all())
            self.kept[snapshot.version] = Kept(snapshot.version, self.clock.elapsed, paths, cut)

    def write(self, dice: random.Random) -> None:
        with self.manager.create_writer(NAME) as writer:
            for _ in range(dice.randint(1, 5)):
                event = b"%d" % len(self.written)
                writer.write_event(event, f"k{dice.randrange(4)}").result()
                self.written[event] = self.clock.elapsed
                if dice.random() < 0.3:
                    self.note()

    def scale(self, dice: random.Random) -> None:
        active = list(self.manager.stream(NAME).segments())
        if len(active) < 6:
            chosen = dice.choice(active)
            middle = (chosen.key_range.low + chosen.key_range.high) / 2
            ranges = [(chosen.key_range.low, middle), (middle, chosen.key_range.high)]
            self.manager.scale_stream(NAME, [chosen.segment_id], ranges)

    def compact(self, dice: random.Random) -> None:
        self.manager.compact_stream(NAME, include_newest=dice.random() < 0.5)

    def truncate(self, dice: random.Random) -> None:
        cut = dice.choice(list(self.kept.values())).cut
        head = self.manager.head(NAME)
        if all(cut.positions.get(s, -1) >= at for s, at in head.positions.items()):
            self.manager.truncate_stream(NAME, cut)
            self.truncated = True

    def wait(self, dice: random.Random) -> None:
        self.clock.sleep(dice.uniform(60, 2 * HOUR))

    def sweep(self, dice: random.Random) -> None:
        self.manager.sweep_stream(NAME, retain=RETAIN, grace=GRACE)

    def thin(self, dice: random.Random) -> None:
        """Let the policy delete what is too old, with a sample of the tail in the log."""
        self.manager.retention(NAME).run(sample_every=dice.choice((60, HOUR)))

    def pin(self, dice: random.Random) -> None:
        keep = dice.choice((HOUR, 24 * HOUR, 24 * HOUR))
        name = f"p{dice.randrange(2)}"
        self.pins = {one: end for one, end in self.pins.items() if one.pin_id != name}
        self.note()
        found = pin(self.stream.log, name, keep_ms=int(keep * 1_000))
        self.pins[found] = self.clock.elapsed + keep

    def release(self, dice: random.Random) -> None:
        if self.pins:
            chosen = dice.choice(list(self.pins))
            release(self.stream.log, chosen)
            del self.pins[chosen]

    # --------------------------------------------------------------------------------- the checks

    def check(self) -> None:
        now, log = self.clock.elapsed, self.stream.log
        pinned = {one.version for one, end in self.pins.items() if now < end}
        for version, kept in self.kept.items():
            must = version in pinned or now - kept.at < RETAIN
            try:
                _, files = table_at(log.reader, version)
            except (TruncatedData, CorruptLog, FileNotFoundError):
                assert not must, f"version {version} of {now - kept.at} s is gone"
                continue
            assert {add.path for add in files.all()} == kept.files, f"version {version} is another"
            try:
                assert self.manager.cut_at(NAME, version) == kept.cut
            except TruncatedData:
                assert not must, f"the cut of version {version} is gone"
            if must:
                folder = self.stream.path
                lost = [path for path in kept.files if not log.store.exists(f"{folder}/{path}")]
                assert not lost, f"version {version} of {now - kept.at} s has lost {lost}"
        left = {bytes(event.data) for event in self.manager.read(NAME)}
        if not self.truncated:
            young = {e for e, at in self.written.items() if now - at < AGE_LIMIT}
            assert young <= left, f"deleted early: {young - left}"


def play(steps: Sequence[Step]) -> None:
    world = VersionWorld()
    for verb, dice in steps:
        getattr(world, verb)(random.Random(dice))
        world.note()
        if verb in ("sweep", "thin"):
            world.check()
    world.check()


@pytest.mark.long
def test_versions_keep_what_they_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_SAMPLES", 4)
    for seed in range(sized(8, 5_000, "KEPT_VERSIONS_SEEDS")):
        play_shortest(seed, drawn_steps(seed, VERBS, 6 + seed % 30), play)
