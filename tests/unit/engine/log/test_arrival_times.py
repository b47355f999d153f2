from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest

from pravega_spark.engine.log.tail import ArrivalTimes

SHORTEST, LONGEST = 0.02, 2.0


def polls_until(times: ArrivalTimes, now: float, arrival: float) -> tuple[int, float]:
    """Poll from ``now`` on; return how many polls there are up to the one after the arrival."""
    polls = 1
    while now < arrival:
        now += times.pause(now)
        polls += 1
    return polls, now


def follow(gaps: Iterable[float]) -> list[tuple[int, float]]:
    """Return the polls and the delay of each arrival."""
    times = ArrivalTimes(SHORTEST, LONGEST)
    arrival = now = 0.0
    times.arrived(now)
    found = []
    for gap in gaps:
        arrival += gap
        polls, now = polls_until(times, now, arrival)
        found.append((polls, now - arrival))
        times.arrived(now)
    return found


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def test_regular_arrivals_are_met_with_short_pauses_and_few_polls_before() -> None:
    found = follow([5.0] * 60)[40:]
    assert mean(delay for _, delay in found) <= 2 * SHORTEST
    assert mean(polls for polls, _ in found) <= 30


@pytest.mark.parametrize("gap", [0.1, 0.5, 1.0])
def test_random_arrivals_of_a_busy_stream_wait_for_a_small_part_of_their_gap(gap: float) -> None:
    source = random.Random(7)
    found = follow(source.expovariate(1 / gap) for _ in range(500))
    assert mean(delay for _, delay in found) <= max(SHORTEST, gap / 16)
    assert mean(polls for polls, _ in found) <= 40


def test_idle_log_is_polled_seldom_whatever_came_before() -> None:
    for gaps in ([], [0.05] * 50, [3.0] * 50, [0.1, 30.0] * 20):
        times, now = ArrivalTimes(SHORTEST, LONGEST), 0.0
        times.arrived(now)
        for gap in gaps:
            now += gap
            times.arrived(now)
        polls, _ = polls_until(times, now, now + 3_600)
        assert polls <= 3_600 / LONGEST + 16 * math.log(LONGEST / SHORTEST) + 100


def test_burst_after_a_long_silence_is_followed_closely() -> None:
    found = follow([60.0] * 5 + [0.2] * 40)
    assert max(delay for _, delay in found[:5]) <= LONGEST
    assert mean(delay for _, delay in found[-10:]) <= 0.1


def test_pause_is_never_out_of_its_bounds() -> None:
    times, now = ArrivalTimes(SHORTEST, LONGEST), 0.0
    assert times.pause(now) == SHORTEST
    source = random.Random(3)
    for _ in range(2_000):
        now += source.choice((0.0, 1e-6, 0.01, 1.0, 1_000.0, -5.0))
        if source.random() < 0.5:
            times.arrived(now)
        assert SHORTEST <= times.pause(now) <= LONGEST


def test_check_beside_reports_gets_rare_with_the_idle_time() -> None:
    times = ArrivalTimes(0.001, 0.050)
    times.arrived(100.0)
    assert times.watched_pause(100.1) == 0.25
    assert times.watched_pause(116.0) == 1.0
    assert times.watched_pause(1_000.0) == 2.0
    times.arrived(1_000.0)
    assert times.watched_pause(1_000.0) == 0.25
