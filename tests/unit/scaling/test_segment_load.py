from __future__ import annotations

import pytest

from pravega_spark.config.policies import ScalingPolicy
from pravega_spark.scaling.rates import FOREVER, ScaleUpEvent, SegmentLoad, segment_load
from tests.harness.fake_runtime import NOW_MS
from tests.harness.loads import BY_BYTES, BY_EVENTS, MINUTE, rates_of, segment_rates

FAST = (501.0, 150.0, 90.0, 60.0)
WITHIN = (499.0, 199.0, 99.0, 99.0)


def load_of(
    time_ms: int = NOW_MS, policy: ScalingPolicy = BY_EVENTS, **options: int
) -> SegmentLoad:
    averages = (60.0, 60.0, 60.0, 60.0)
    segments = {0: segment_rates(averages=averages, **options), 1: segment_rates()}
    found = segment_load(rates_of(segments, policy), 0, time_ms)
    assert found is not None
    return found


def test_rates_are_a_second_in_events_and_in_bytes_under_both_policies() -> None:
    for policy in (BY_EVENTS, BY_BYTES):
        found = load_of(policy=policy)
        assert found.events == pytest.approx((60,) * 4)
        assert found.size_bytes == pytest.approx((60 * 1024,) * 4)
        assert (found.hot, found.cold, found.time_ms) == (False, False, NOW_MS)


@pytest.mark.parametrize(("averages", "hot"), [(FAST, True), (WITHIN, False)])
def test_segment_is_hot_by_the_rule_that_would_split_it_at_any_age(
    averages: tuple[float, float, float, float], hot: bool
) -> None:
    for age_ms in (3 * MINUTE, 60 * MINUTE):
        rates = rates_of({0: segment_rates(averages=averages, age_ms=age_ms)})
        found = segment_load(rates, 0, NOW_MS)
        assert found is not None
        assert found.hot is hot


def test_segment_that_is_marked_for_a_split_is_hot_until_the_mark_ends() -> None:
    segment = segment_rates()
    segment.up = ScaleUpEvent(NOW_MS - 9 * MINUTE, 2, 2, 150.0, 100)
    rates = rates_of({0: segment, 1: segment_rates()})
    for later, hot in ((0, True), (MINUTE - 1, True), (MINUTE, False)):
        found = segment_load(rates, 0, NOW_MS + later)
        assert found is not None
        assert found.hot is hot


def test_segment_is_cold_by_its_mark_or_by_silence() -> None:
    marked = segment_rates()
    marked.mark_cold(NOW_MS - MINUTE, NOW_MS + MINUTE)
    for later, cold in ((0, True), (2 * MINUTE, False), (21 * MINUTE, True)):
        found = segment_load(rates_of({0: marked, 1: segment_rates()}), 0, NOW_MS + later)
        assert found is not None
        assert found.cold is cold
    marked.mark_cold(NOW_MS, FOREVER)
    found = segment_load(rates_of({0: marked}), 0, NOW_MS + 10**9)
    assert found is not None
    assert found.cold


def test_times_of_mute_and_cooldown_are_null_when_they_are_over() -> None:
    young = load_of(age_ms=4 * MINUTE)
    assert young.cooldown_until_ms == young.muted_until_ms == NOW_MS + 6 * MINUTE
    muted = load_of(up_ms=NOW_MS - MINUTE)
    assert (muted.muted_until_ms, muted.cooldown_until_ms) == (NOW_MS + 9 * MINUTE, None)
    over = load_of(NOW_MS + 9 * MINUTE + 1, up_ms=NOW_MS - MINUTE)
    assert (over.muted_until_ms, over.cooldown_until_ms) == (None, None)


def test_unknown_segment_and_fixed_policy_have_no_load() -> None:
    segments = {0: segment_rates()}
    assert segment_load(rates_of(segments), 1, NOW_MS) is None
    assert segment_load(rates_of(segments, ScalingPolicy.fixed(1)), 0, NOW_MS) is None
