"""Curves of what is unread: their rates, their gaps, how many points they keep, and the words."""

from __future__ import annotations

import pytest

from pravega_spark.serve.lags import GAP_MS, TREND_MS, LagCurve, trend


def curve_of(*points: tuple[int, int, tuple[int, int] | None], limit: int = 240) -> LagCurve:
    curve = LagCurve(limit)
    for seconds, events, moved in points:
        curve.add(seconds * 1_000, events, None, moved)
    return curve


def test_rates_are_those_between_two_looks_and_none_before_a_third_of_a_minute() -> None:
    curve = curve_of((0, 100, None), (10, 110, (20, 30)))
    assert curve.progress(10_000) is None
    curve.add(30_000, 120, None, (40, 50))
    found = curve.progress(30_000)
    assert found is not None
    assert (found.read, found.written, found.lag_change) == (2.0, 80 / 30, 20)
    assert found.catch_up_seconds(120) is None  # more is written than read


def test_nothing_is_said_of_a_time_in_which_nobody_looked() -> None:
    pause = GAP_MS // 1_000 + 1
    curve = curve_of((0, 100, None), (30, 90, (10, 0)), (30 + pause, 10, (80, 0)))
    assert [point.is_joined for point in curve.points] == [False, True, False]
    assert curve.progress((30 + pause) * 1_000) is None
    assert curve_of((0, 5, None), (30, 5, (0, 0))).progress(30_000 + 2 * GAP_MS) is None


def test_a_reset_or_a_truncation_ends_what_is_known_and_the_curve_goes_on() -> None:
    known = [(0, 100, None), (30, 90, (10, 0)), (60, 500, None), (90, 480, (20, 0))]
    curve = curve_of(*known, (120, 460, (20, 0)))
    found = curve.progress(120_000)
    assert found is not None
    assert (found.seconds, found.read) == (60.0, 20 / 30)


@pytest.mark.medium
def test_a_day_of_looks_keeps_a_bounded_number_of_points_the_newest_all_of_them() -> None:
    curve = LagCurve(240)
    curve.add(0, 0)
    for number in range(1, 86_400 // 3):
        curve.add(number * 3_000, number, None, (1, 2))
    times = [point.time_ms for point in curve.points]
    assert len(times) <= 240
    assert times == sorted(times)
    assert times[-60:] == [times[-1] - 3_000 * back for back in range(59, -1, -1)]
    assert times[0] == 0
    assert all(point.is_joined for point in curve.points[1:])  # a dropped point is no gap
    last = curve.points[-1]
    assert (last.read, last.written) == (28_799, 57_598)


def test_a_gap_stays_when_its_points_are_dropped() -> None:
    curve = LagCurve(20)
    for number in range(100):
        moved = None if number == 3 else (1, 1)
        curve.add(number * 3_000, 5, None, moved)
    assert [point.is_joined for point in curve.points[1:]].count(False) == 1


def test_a_clock_that_goes_back_adds_no_point() -> None:
    curve = curve_of((10, 5, None), (9, 7, (1, 1)), (10, 8, (1, 1)))
    assert len(curve.points) == 1


@pytest.mark.parametrize(
    ("written", "read", "begin", "state"),
    [
        (10, 10, 40, "up to date"),
        (10, 2, 200, "falling behind"),
        (10, 30, 9_000, "catching up"),
        (10, 10, 9_000, "behind"),
        (10, 0, 200, "not reading"),
        (0, 0, 0, "up to date"),
        (0, 0, 500, "not reading"),
    ],
)
def test_states_follow_from_the_curve(written: int, read: int, begin: int, state: str) -> None:
    curve = LagCurve()
    curve.add(0, begin)
    for number in range(1, 31):
        events = begin + number * 10 * (written - read)
        curve.add(number * 10_000, events, None, (read * 10, written * 10))
    last = curve.points[-1]
    found = curve.progress(last.time_ms), curve.progress(last.time_ms, TREND_MS)
    assert trend(last.events, *found, pause_seconds=20.0) == state


def test_nothing_is_claimed_of_a_group_that_was_looked_at_once() -> None:
    assert trend(500, None, None, 20.0) == "unknown"
    assert trend(0, None, None, 20.0) == "up to date"
