from __future__ import annotations

import pytest

from pravega_spark.serve.watch import BUCKET_MS, POINTS, WINDOW_MS, TrafficWindow

NOW_MS = 1_700_000_000_000


def test_a_rate_is_the_mean_of_the_last_minute() -> None:
    window = TrafficWindow(NOW_MS - WINDOW_MS)
    window.add(NOW_MS - 30_000, 120, 1_200)
    window.add(NOW_MS - 120_000, 9_999, 9_999)
    events, size_bytes = window.rate(NOW_MS)
    assert events == pytest.approx(120 / 60, rel=0.2)
    assert size_bytes == pytest.approx(1_200 / 60, rel=0.2)


def test_a_rate_of_a_young_window_counts_its_own_time_only() -> None:
    window = TrafficWindow(NOW_MS - 10_000)
    window.add(NOW_MS - 5_000, 100, 0)
    assert window.rate(NOW_MS)[0] == pytest.approx(10, rel=0.5)


def test_a_series_has_nothing_before_the_window_is_known() -> None:
    window = TrafficWindow(NOW_MS - 600_000)
    window.add(NOW_MS, 60, 1)
    series = window.series(NOW_MS)
    assert len(series) == POINTS
    assert series[:49] == [None] * 49
    assert series[50:59] == [0.0] * 9
    assert series[59] == 1.0


def test_every_event_of_the_hour_is_in_one_point_of_the_series() -> None:
    window = TrafficWindow(NOW_MS - WINDOW_MS)
    for step in range(1, 360):
        window.add(NOW_MS - WINDOW_MS + step * BUCKET_MS, 6, 0)
    series = window.series(NOW_MS)
    assert sum(value * 60 for value in series if value) == pytest.approx(359 * 6)


def test_what_is_older_than_the_window_is_forgotten() -> None:
    window = TrafficWindow(NOW_MS)
    window.add(NOW_MS, 1, 1)
    window.add(NOW_MS + 2 * WINDOW_MS, 1, 1)
    assert len(window._buckets) == 1
