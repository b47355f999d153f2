"""The threads of a round on a clock that the test moves: streams that hang are parked.

They are called alone: their tasks hang for the ten minutes of a clock that only the test moves.
Rounds as users start them are in ``test_maintenance_round.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pytest

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.maintenance import round
from pravega_spark.maintenance.result import WorkOutcome
from pravega_spark.maintenance.round import (
    PARKED_PER_THREAD,
    PATIENCE_SECONDS,
    RoundStop,
    TaskThreads,
)
from pravega_spark.maintenance.work import RoundTask
from tests.harness.fake_runtime import FakeRuntime

LIMIT = 600.0
KINDS = (MaintenanceKind.RETENTION,)


class Hanging:
    """Tasks of which some hang until their limit, by the clock of the test."""

    def __init__(self, clock: FakeRuntime, hanging: Sequence[str]) -> None:
        self.clock, self.hanging = clock, hanging
        self.begun = list[str]()
        self.ended = list[str]()
        self._changed = threading.Condition()

    def do(self, task: RoundTask) -> list[WorkOutcome]:
        with self._changed:
            self.begun.append(task.unit)
            self._changed.notify_all()
            until = self.clock.monotonic() + LIMIT
            if task.unit in self.hanging:
                self._changed.wait_for(lambda: self.clock.monotonic() >= until, 60)
            self.ended.append(task.unit)
            self._changed.notify_all()
        return [WorkOutcome(task.unit, KINDS[0])]

    def pass_time(self, seconds: float) -> None:
        with self._changed:
            self.clock.sleep(seconds)
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, 60), (self.begun, self.ended)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round, "LOOK_SECONDS", 0.005)


def started(
    tasks: Hanging, names: Sequence[str], parallelism: int, used: Callable[[], float] = lambda: 0.0
) -> Future[list[WorkOutcome]]:
    threads = TaskThreads(tasks.do, parallelism, LIMIT, RoundStop(), tasks.clock, used)
    return SYSTEM.start(lambda: list(threads.run([RoundTask(name, KINDS) for name in names])))


def test_streams_that_hang_cost_the_round_one_limit_more_and_not_one_for_each_few() -> None:
    clock = FakeRuntime()
    hanging, good = [f"s/h{number}" for number in range(10)], [f"s/z{n}" for n in range(5)]
    tasks = Hanging(clock, hanging)
    begin = clock.monotonic()
    found = started(tasks, [*hanging, *good], 2)
    tasks.wait_until(lambda: len(tasks.begun) == 2)
    tasks.pass_time(LIMIT / 2)
    threading.Event().wait(0.1)  # many looks
    assert len(tasks.begun) == 2, "long work is no sign that streams hang"
    tasks.pass_time(LIMIT / 2)
    for count in (4, 6, 8, 10):
        tasks.wait_until(lambda count=count: len(tasks.begun) == count)  # type: ignore[misc]
        tasks.pass_time(PATIENCE_SECONDS)
    tasks.wait_until(lambda: set(good) <= set(tasks.ended))
    assert clock.monotonic() - begin <= LIMIT + 4 * PATIENCE_SECONDS
    assert len(tasks.ended) == 2 + len(good), "the others still hang"
    tasks.pass_time(LIMIT)
    assert {outcome.unit for outcome in found.result(60)} == {*hanging, *good}
    assert sorted(tasks.begun) == sorted([*hanging, *good]), "each once"


@pytest.mark.medium
def test_the_more_tasks_are_parked_the_sooner_the_next_one_is() -> None:
    clock = FakeRuntime()
    names = [f"s/h{number:02d}" for number in range(PARKED_PER_THREAD + 1)]
    tasks = Hanging(clock, names)
    found = started(tasks, names, 1)
    tasks.wait_until(lambda: len(tasks.begun) == 1)
    tasks.pass_time(LIMIT)
    tasks.wait_until(lambda: len(tasks.begun) == 2)
    for parked in range(PARKED_PER_THREAD - 1):
        tasks.pass_time(PATIENCE_SECONDS / (parked + 1) - 0.02)
        threading.Event().wait(0.03)  # some looks
        assert len(tasks.begun) == parked + 2, "it was parked too soon"
        tasks.pass_time(0.03)
        tasks.wait_until(lambda count=parked + 3: len(tasks.begun) == count)  # type: ignore[misc]
    tasks.pass_time(LIMIT)
    assert len(found.result(60)) == len(names)


@pytest.mark.medium
def test_parked_tasks_are_bounded_and_busy_ones_are_not_parked() -> None:
    clock = FakeRuntime()
    names = [f"s/h{number:02d}" for number in range(PARKED_PER_THREAD + 10)]
    tasks, rate = Hanging(clock, names), [1.0]
    found = started(tasks, names, 1, lambda: rate[0] * clock.monotonic())
    tasks.wait_until(lambda: len(tasks.begun) == 1)
    tasks.pass_time(LIMIT)
    tasks.wait_until(lambda: len(tasks.begun) == 2)
    for _ in range(20):  # the task computes
        tasks.pass_time(PATIENCE_SECONDS)
        threading.Event().wait(0.01)
    assert len(tasks.begun) == 2
    rate[0] = 0.0
    for count in range(3, PARKED_PER_THREAD + 3):
        tasks.pass_time(PATIENCE_SECONDS)
        tasks.wait_until(lambda count=count: len(tasks.begun) == count)  # type: ignore[misc]
    for _ in range(5):
        tasks.pass_time(PATIENCE_SECONDS)
        threading.Event().wait(0.02)
    assert len(tasks.begun) == PARKED_PER_THREAD + 2
    while not found.done():
        tasks.pass_time(LIMIT)
        threading.Event().wait(0.01)
    assert {outcome.unit for outcome in found.result(60)} == set(names)
