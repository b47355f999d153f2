"""Rounds of maintenance against a model of each policy: nothing early, nothing late, none in vain.

The model knows when each event was written, how large it is, and who has consumed it. Hosts whose
clocks are ahead, behind or stand still write, publish and maintain; the storage's clock is right.
After each round:

- what is gone had reached the policy's limits, and by consumption nobody held it;
- what had reached them one round ago is gone, however the stream was scaled meanwhile, unless the
  host of the round is behind or one was ahead before: a wrong clock makes deletions late only;
- a subscriber is removed when it has published nothing and left an event unread for so long;
- a stream that nobody changes is not looked at in every round.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import pytest

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import (
    LimitUnit,
    RetentionPolicy,
    RetentionType,
    ScalingPolicy,
    StreamConfiguration,
)
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import HeldBySubscriber
from pravega_spark.manager import StreamManager
from pravega_spark.values.segments import StreamCut
from tests.harness.backup_world import manager_of
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.sequences import Step, drawn_steps, play_shortest
from tests.harness.tiers import sized

NAME = "s/t"
HOUR, ROUND = 3_600.0, 900.0
EXPIRE = 8 * HOUR
IDLE_ROUNDS = 40
RETENTION = (MaintenanceKind.RETENTION,)
CONSUMED = RetentionPolicy.by_consumption
POLICIES = (
    RetentionPolicy.by_time(HOUR),
    RetentionPolicy.by_time(HOUR, 2 * HOUR),
    RetentionPolicy.by_size(300),
    RetentionPolicy.by_size(100, 500),
    CONSUMED(),
    CONSUMED("1 h"),
    CONSUMED("1 h", "3 h"),
    CONSUMED("0 s", "2 h"),
    CONSUMED("300 B"),
    CONSUMED("100 B", "500 B"),
)
VERBS = (
    *("write", "write", "write", "scale", "rounds", "rounds", "rounds", "change"),
    *(
        "subscribe",
        "subscribe",
        "publish",
        "publish",
        "publish",
        "unsubscribe",
        "truncate",
        "idle",
        "set_clock",
    ),
)


@dataclass
class Subscriber:
    """What a subscriber has consumed, and when it last said so."""

    seen_at: float
    consumed: frozenset[bytes]


class Host(FakeRuntime):
    """A host whose clock is wrong by some seconds, or stands still."""

    def __init__(self, true: FakeRuntime, seed: int) -> None:
        super().__init__(seed)
        self.true, self.wrong_by, self.still_at = true, 0.0, float("nan")

    def follow(self) -> None:
        self.elapsed = self.true.elapsed
        still = self.still_at == self.still_at
        self.wall_ms = self.still_at if still else self.true.wall_ms + self.wrong_by * 1_000


@dataclass
class RetentionWorld:
    """A stream, its events, and its subscribers."""

    seed: int
    written: dict[bytes, float] = field(default_factory=dict)
    segments: dict[bytes, int] = field(default_factory=dict)
    gone: set[bytes] = field(default_factory=set)
    subscribers: dict[str, Subscriber] = field(default_factory=dict)
    cuts: list[tuple[StreamCut, frozenset[bytes]]] = field(default_factory=list)
    largest: int = 0
    """The bytes of the largest commit: entries of the retention set are no closer."""
    was_ahead: bool = False
    """Whether a host has been ahead: its commits count as new until one has a right date."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.clock = FakeRuntime(self.seed)
        self.store = MemoryStore(clock_ms=self.clock.now_ms)
        self.hosts = [Host(self.clock, n) for n in range(3)]
        self.managers = [manager_of(self.store, host) for host in self.hosts]
        self.policy = POLICIES[self.seed % len(POLICIES)]
        first = self.managers[0]
        first.update_settings(expire=EXPIRE)
        first.create_scope("s")
        first.create_stream(NAME, StreamConfiguration(ScalingPolicy.fixed(2), self.policy))

    @property
    def manager(self) -> StreamManager:
        return self.dice.choice(self.managers)

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)
        for host in self.hosts:
            host.follow()

    def act(self, step: Step) -> None:
        verb, seed = step
        self.dice = random.Random(seed)
        getattr(self, verb)()
        self.sleep(self.dice.choice((0.0, 0.0, 10.0, 400.0)))

    # --------------------------------------------------------------------------------- the steps

    def write(self) -> None:
        size, answers = 0, []
        with self.manager.create_writer(NAME) as writer:
            for key in range(self.dice.randint(1, 4)):
                event = b"%d:" % len(self.written)
                event += b"x" * self.dice.randrange(100)
                answers.append((event, writer.write_event(event, routing_key=str(key))))
                self.written[event] = self.clock.elapsed
                size += len(event)
        self.largest = max(self.largest, size)
        for event, answer in answers:
            self.segments[event] = answer.result().segment_id

    def scale(self) -> None:
        manager = self.manager
        active = list(manager.stream(NAME).segments())
        if len(active) > 8:
            return
        chosen = self.dice.choice(active)
        middle = (chosen.key_range.low + chosen.key_range.high) / 2
        ranges = [(chosen.key_range.low, middle), (middle, chosen.key_range.high)]
        manager.scale_stream(NAME, [chosen.segment_id], ranges)

    def change(self) -> None:
        """Another policy."""
        if self.dice.random() < 0.3:
            self.policy = self.dice.choice(POLICIES)
            self.manager.update_stream(NAME, retention=self.policy)

    def subscribe(self) -> None:
        name = self.dice.choice("ab")
        if name not in self.subscribers:
            self.manager.subscribe(NAME, name, "earliest")
            self.subscribers[name] = Subscriber(self.clock.elapsed, frozenset(self.gone))

    def publish(self) -> None:
        """Publish a cut that was kept, or the tail: all that is there by then is consumed."""
        manager = self.manager
        self.cuts.append((manager.tail(NAME), frozenset(self.written)))
        if not self.subscribers:
            return
        name = self.dice.choice(sorted(self.subscribers))
        known = self.subscribers[name]
        cut, consumed = self.mixed(*self.dice.choices(self.cuts[-3:], k=2))
        if consumed > known.consumed and not self.gone - consumed:
            manager.publish(NAME, name, cut)
            self.subscribers[name] = Subscriber(self.clock.elapsed, consumed)

    def mixed(
        self, one: tuple[StreamCut, frozenset[bytes]], other: tuple[StreamCut, frozenset[bytes]]
    ) -> tuple[StreamCut, frozenset[bytes]]:
        """Return a cut that is one cut in some segments and the other one in the rest."""
        if one[0].positions.keys() != other[0].positions.keys():
            return one
        chosen = {segment for segment in one[0].positions if self.dice.random() < 0.5}
        positions = {s: (one if s in chosen else other)[0].positions[s] for s in one[0].positions}
        consumed = {e for e in one[1] if e in other[1] or self.segments[e] in chosen}
        consumed |= {e for e in other[1] if e in one[1] or self.segments[e] not in chosen}
        return StreamCut(NAME, one[0].life, positions), frozenset(consumed)

    def unsubscribe(self) -> None:
        if self.subscribers and self.dice.random() < 0.3:
            name = self.dice.choice(sorted(self.subscribers))
            self.manager.unsubscribe(NAME, name)
            del self.subscribers[name]

    def truncate(self) -> None:
        """Truncate by hand, if no subscriber holds what goes."""
        if self.dice.random() < 0.3:
            with contextlib.suppress(HeldBySubscriber):
                self.manager.truncate_stream(NAME, self.manager.tail(NAME))
                self.gone = set(self.written)

    def set_clock(self) -> None:
        """A host's clock goes ahead, falls behind, or stands still; or it is right again."""
        host = self.dice.choice(self.hosts)
        still = self.dice.random() < 0.2
        host.wrong_by = (
            0.0 if still else self.dice.choice((0.0, -20 * HOUR, -2 * HOUR, -2 * HOUR, HOUR))
        )
        host.still_at = self.clock.wall_ms if still else float("nan")
        host.follow()
        self.was_ahead |= host.wrong_by > 0

    def rounds(self) -> None:
        for _ in range(self.dice.randint(1, 10)):
            self.sleep(ROUND)
            self.round()

    def idle(self) -> None:
        """Nobody changes anything for ten hours: looks get rare, but for entries that come due."""
        if self.dice.random() < 0.5:
            return
        looks, entries = 0, len({at for e, at in self.written.items() if e not in self.gone})
        for _ in range(IDLE_ROUNDS):
            self.sleep(ROUND)
            looks += self.round()
        is_right = not self.was_ahead and all(
            host.wall_ms == self.clock.wall_ms for host in self.hosts
        )
        assert not is_right or looks <= 8 + entries, f"{looks} looks, {entries} entries"

    # ---------------------------------------------------------------------------------- a round

    def round(self) -> int:
        """Run a round on some host; return how many times it looked at the stream."""
        before = {event for event in self.written if event not in self.gone}
        host = self.dice.choice(self.hosts)
        manager = self.managers[self.hosts.index(host)]
        goes = manager.retention(NAME).explain().goes
        result = manager.maintain(kinds=RETENTION)
        assert not result.failures, result.failures
        left = {bytes(event.data) for event in self.manager.read(NAME)}
        assert left <= before, "events came back"
        self.gone |= before - left
        self.check_early(before, left)
        stays = manager.retention(NAME).explain().stays
        oldest = max((self.age(event) for event in left), default=0.0)
        assert stays.events <= len(left)
        assert stays.seconds < oldest + 1, f"explained as {stays}, and {oldest} s old"
        if host.wall_ms >= self.clock.wall_ms and not self.was_ahead:
            self.check_late(left)
            assert stays.events == len(left)
            if deleted := before - left:
                ages = goes.events, round(goes.seconds)
                assert ages == (len(deleted), round(max(map(self.age, deleted)))), f"{goes} went"
            assert oldest - stays.seconds < 1, f"explained as {stays}, and {oldest} s old"
        return result.kinds[MaintenanceKind.RETENTION].looked_at

    def age(self, event: bytes) -> float:
        return self.clock.elapsed - self.written[event]

    def idle_seconds(self, known: Subscriber, there: set[bytes]) -> float:
        """For how long a subscriber has published nothing and left an event unread."""
        unread = (self.age(event) for event in there - known.consumed)
        return min(self.clock.elapsed - known.seen_at, max(unread, default=0.0))

    def is_consumed(self, event: bytes) -> bool:
        held = [known for known in self.subscribers.values() if event not in known.consumed]
        return bool(self.subscribers) and not held

    @staticmethod
    def size(events: Iterable[bytes]) -> int:
        return sum(map(len, events))

    def check_early(self, before: set[bytes], left: set[bytes]) -> None:
        """What this round deleted had reached the limits, and who was removed was idle."""
        present = {found.name for found in self.managers[0].list_subscribers(NAME)}
        for name in self.subscribers.keys() - present:
            idle = self.idle_seconds(self.subscribers.pop(name), before)
            assert idle >= EXPIRE, f"{name} was removed after {idle} s"
        policy, deleted = self.policy, before - left
        by_consumption = policy.type is RetentionType.CONSUMPTION
        if policy.unit is LimitUnit.TIME_MS:
            early = {e for e in deleted if self.age(e) < policy.minimum / 1_000}
            assert not early, f"deleted early: {sorted(early)}"
        elif policy.unit is LimitUnit.SIZE_BYTES and deleted:
            assert self.size(left) >= policy.minimum, "less than the minimum is left"
        if by_consumption:
            held = {event for event in deleted if not self.is_consumed(event)}
            if policy.unit is LimitUnit.TIME_MS and policy.maximum is not None:
                held = {e for e in held if self.age(e) <= policy.maximum / 1_000}
            if policy.unit is LimitUnit.SIZE_BYTES and policy.maximum is not None and held:
                assert self.size(before) > policy.maximum, f"deleted though held: {sorted(held)}"
            else:
                assert not held, f"deleted though held: {sorted(held)}"

    def check_late(self, left: set[bytes]) -> None:
        """What had reached the limits one round ago is gone."""
        for name, known in self.subscribers.items():
            idle = self.idle_seconds(known, left)
            assert idle <= EXPIRE + ROUND, f"{name} is there after {idle} s"
        policy = self.policy
        by_consumption = policy.type is RetentionType.CONSUMPTION
        free = {event for event in left if not by_consumption or self.is_consumed(event)}
        if policy.unit is LimitUnit.TIME_MS:
            late = {e for e in free if self.age(e) > policy.minimum / 1_000 + ROUND}
            if by_consumption and policy.maximum is not None:
                late |= {e for e in left if self.age(e) > policy.maximum / 1_000 + ROUND}
            assert not late, f"still there: {sorted(late)}"
        elif policy.unit is LimitUnit.SIZE_BYTES:
            if free == left:
                assert self.size(left) < policy.minimum + self.largest, "more than the minimum"
            if policy.maximum is not None:
                assert self.size(left) <= policy.maximum, "more than the maximum"
        else:
            assert not free, f"consumed and still there: {sorted(free)}"


def play(seed: int, steps: Iterable[Step]) -> None:
    world = RetentionWorld(seed)
    for step in steps:
        world.act(step)
    for _ in range(8):
        world.sleep(ROUND)
        world.round()


def sequence(seed: int) -> None:
    play_shortest(seed, drawn_steps(seed, VERBS, 4 + seed % 16), partial(play, seed))


@pytest.mark.long
def test_rounds_delete_what_has_reached_its_limit_and_nothing_else() -> None:
    for seed in range(sized(4, 5_000, "RETENTION_SEEDS")):
        sequence(seed)
