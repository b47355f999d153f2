from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.policies import ScalingPace, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log.actions import Commit
from pravega_spark.engine.log.snapshot import first_snapshot
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import STREAM_DOMAIN
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.scaling.rates import (
    FOREVER,
    Averages,
    SegmentRates,
    StreamRates,
    decode_rates,
    encode_rates,
)
from pravega_spark.values.segments import KeyRange
from tests.harness.fake_runtime import NOW_MS
from tests.harness.loads import (
    BY_BYTES,
    BY_EVENTS,
    MINUTE,
    PACE,
    SECOND,
    commit,
    rates_of,
    segment_rates,
    stream_with,
)
from tests.harness.small_streams import write

LOW: Averages = (99.0, 99.0, 99.0, 49.0)
WINDOWS = (120.0, 300.0, 600.0, 1_200.0)


class ConstantRates:
    """Averages by their definition, summed over spans of time with a constant rate each."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float, float]] = []
        """(begin, end, events a second), in seconds since the beginning."""

    def averages(self, at: float) -> list[float]:
        found = []
        for window in WINDOWS:
            total = 0.0
            for begin, end, rate in self.spans:
                total += rate * (math.exp((end - at) / window) - math.exp((begin - at) / window))
            found.append(total / (1 - math.exp(-at / window)))
        return found


class Pravega:
    """Pravega's arithmetic: a step for each tick of 5 s, with a rate of 0 for silent ones."""

    def __init__(self) -> None:
        self.rates = [0.0] * 4
        self.ticked_ms = NOW_MS
        self.pending = 0.0

    def move(self, instant: float) -> None:
        for index, minutes in enumerate((2, 5, 10, 20)):
            weight = 1 - math.exp(-(5 / 60) / minutes)
            rate = self.rates[index]
            self.rates[index] = instant if rate == 0 else rate + weight * (instant - rate)

    def write(self, time_ms: int, count: int) -> None:
        self.pending += count
        passed = time_ms - self.ticked_ms
        if passed > 5_000:
            for _ in range(passed // 5_000 - 1):
                self.move(0.0)
                passed -= 5_000
            self.move(self.pending / (passed / 1_000))
            self.ticked_ms, self.pending = time_ms, 0.0


def one_segment(policy: ScalingPolicy = BY_EVENTS, pace: ScalingPace = PACE) -> StreamRates:
    return rates_of({0: SegmentRates.begin(NOW_MS)}, policy, pace)


def transaction(
    created_ms: int, rows: int, size: int = 0, segment: str = "0#0"
) -> dict[str, object]:
    return {
        "id": "t", "created": created_ms,
        "rowsBySegment": {segment: rows}, "bytesBySegment": {segment: size},
    }  # fmt: skip


# Averages


def averages_of(rates: StreamRates, policy: ScalingPolicy = BY_EVENTS) -> Averages:
    return rates.segments[0].averages(policy.type, rates.pace)


@given(
    st.lists(
        st.tuples(st.integers(1, 200_000), st.integers(0, 10_000), st.integers(0, 1_000_000)),
        max_size=40,
    )
)
def test_averages_follow_their_definition(writes: list[tuple[int, int, int]]) -> None:
    rates, events, sizes = one_segment(), ConstantRates(), ConstantRates()
    at = ticked = 0
    pending = [0, 0]
    for version, (pause_ms, rows, size) in enumerate(writes, 1):
        at += pause_ms
        rates.apply(commit(version, NOW_MS + at, {"0#0": rows}, {"0#0": size}))
        pending = [pending[0] + rows, pending[1] + size]
        if at - ticked > 5_000:
            seconds = (at - ticked) / 1_000
            events.spans.append((ticked / 1_000, at / 1_000, pending[0] / seconds))
            sizes.spans.append((ticked / 1_000, at / 1_000, pending[1] / seconds))
            ticked, pending = at, [0, 0]
    if ticked:
        assert averages_of(rates) == pytest.approx(events.averages(ticked / 1_000), rel=1e-6)
        in_kib = [rate / 1_024 for rate in sizes.averages(ticked / 1_000)]
        assert averages_of(rates, BY_BYTES) == pytest.approx(in_kib, rel=1e-6)
    found = rates.segments[0].pending
    assert [found.events, found.size_bytes] == pending


def test_averages_of_steady_writes_are_pravegas() -> None:
    rates, reference, dice = one_segment(), Pravega(), Random(4)
    at, level = NOW_MS, 500
    for version in range(1, 2_881):
        at += 5_001
        if version % 100 == 0:
            level = dice.randrange(1, 2_000)
        count = dice.randrange(level)
        rates.apply(commit(version, at, {"0#0": count}))
        reference.write(at, count)
    assert averages_of(rates) == pytest.approx(reference.rates, rel=0.005)


def test_load_from_the_beginning_counts_in_full_immediately() -> None:
    rates = one_segment()
    rates.apply(commit(1, NOW_MS + 10 * SECOND, {"0#0": 500}))
    assert averages_of(rates) == pytest.approx([50] * 4)


@pytest.mark.parametrize(("passed_ms", "ticked"), [(5_000, False), (5_001, True)])
def test_tick_ends_after_more_than_5_s(passed_ms: int, ticked: bool) -> None:
    rates = one_segment()
    rates.apply(commit(1, NOW_MS + passed_ms, {"0#0": 5_001}))
    assert averages_of(rates) == (pytest.approx([1_000] * 4) if ticked else (0, 0, 0, 0))
    assert rates.segments[0].pending.events == (0 if ticked else 5_001)


@pytest.mark.medium
@pytest.mark.parametrize("every", [1, 7, 60, 300])
def test_steady_writes_give_their_rate_at_any_frequency_of_commits(every: int) -> None:
    rates = one_segment()
    for number in range(1, 3_600 // every + 1):
        rows, sizes = {"0#0": 70 * every}, {"0#0": 7 * 1_024 * every}
        rates.apply(commit(number, NOW_MS + number * every * SECOND, rows, sizes))
        if number * every > 5:
            assert averages_of(rates) == pytest.approx([70] * 4)
    assert averages_of(rates, BY_BYTES) == pytest.approx([7] * 4)


@pytest.mark.parametrize("first", [1, 6, 30])
def test_commits_a_minute_apart_are_no_burst(first: int) -> None:
    rates = one_segment()
    for number in range(11):
        at = NOW_MS + (first + 60 * number) * SECOND
        rates.apply(commit(number + 1, at, {"0#0": 60 * 90}))
    assert rates.segments[0].reported_ms > NOW_MS
    assert averages_of(rates)[2] == pytest.approx(90, rel=0.11)


@pytest.mark.medium
def test_averages_fall_in_silence_and_reading_them_changes_nothing() -> None:
    rates = one_segment()
    for second in range(1, 7_201):
        rates.apply(commit(second, NOW_MS + second * SECOND, {"0#0": 70}))
    before = encode_rates(rates)
    later = rates.averages(rates.current(0, NOW_MS + 7_200 * SECOND + 2 * MINUTE))
    assert later == pytest.approx([70 * math.exp(-120 / w) for w in WINDOWS], rel=0.01)
    assert encode_rates(rates) == before


def test_half_the_pace_gives_the_same_averages_in_half_the_time() -> None:
    slow, fast = one_segment(), one_segment(pace=PACE.scaled(0.5))
    dice = Random(1)
    at = 0
    for version in range(1, 200):
        at += 2 * dice.randrange(1, 20_000)
        rows = dice.randrange(1_000)
        slow.apply(commit(version, NOW_MS + at, {"0#0": rows * 2}))
        fast.apply(commit(version, NOW_MS + at // 2, {"0#0": rows}))
    assert averages_of(slow) == pytest.approx(averages_of(fast))


# Transactions


@given(st.integers(5_000, 900_000), st.integers(0, 10_000), st.integers(0, 10_000))
def test_transaction_counts_evenly_over_its_life(life_ms: int, rows: int, before: int) -> None:
    rates, expected = one_segment(), ConstantRates()
    at_ms = 500_000
    rates.apply(commit(1, NOW_MS + 300_000, {"0#0": before}))
    begun = [transaction(NOW_MS + at_ms - life_ms, rows)]
    rates.apply(commit(2, NOW_MS + at_ms, {"0#0": rows}, transactions=begun))
    begin, rate = max(0, at_ms - life_ms) / 1_000, rows / (life_ms / 1_000)
    expected.spans = [(0, 300, before / 300), (begin, at_ms / 1_000, rate)]
    assert averages_of(rates) == pytest.approx(expected.averages(at_ms / 1_000), rel=1e-6)
    assert rates.segments[0].pending.events == 0


@pytest.mark.parametrize(("life_ms", "immediately"), [(4_999, True), (5_000, False)])
def test_transaction_shorter_than_a_tick_counts_immediately(
    life_ms: int, immediately: bool
) -> None:
    rates = one_segment()
    rates.apply(commit(1, NOW_MS + 6_000, {"0#0": 0}))
    now = NOW_MS + 10_000
    begun = [transaction(now - life_ms, 100, 200 * 1_024)]
    rates.apply(commit(2, now, {"0#0": 100}, transactions=begun))
    pending = rates.segments[0].pending
    assert (pending.events, pending.size_bytes) == ((100, 200 * 1_024) if immediately else (0, 0))
    assert averages_of(rates)[0] == (0.0 if immediately else pytest.approx(10, rel=0.05))
    assert averages_of(rates, BY_BYTES)[0] == (0.0 if immediately else pytest.approx(20, rel=0.05))


@pytest.mark.parametrize("every", [6, 10, 60, 600])
def test_consecutive_transactions_give_the_rate_of_equal_appends(every: int) -> None:
    rates = one_segment()
    for number in range(1, 3_600 // every + 1):
        at = NOW_MS + number * every * SECOND
        begun = [transaction(at - every * SECOND, 100 * every)]
        rates.apply(commit(number, at, {"0#0": 100 * every}, transactions=begun))
        assert averages_of(rates) == pytest.approx([100] * 4)


def test_transactions_of_one_commit_count_separately() -> None:
    rates = one_segment()
    now = NOW_MS + MINUTE
    begun = [transaction(now - 10 * SECOND, 100), transaction(now - 20 * SECOND, 100)]
    rates.apply(commit(1, now, {"0#0": 200}, transactions=begun))
    expected = ConstantRates()
    expected.spans = [(50, 60, 10), (40, 60, 5)]
    assert averages_of(rates) == pytest.approx(expected.averages(60), rel=1e-6)


def test_transaction_at_the_creation_of_a_segment_gives_no_rate() -> None:
    rates = one_segment()
    rates.apply(commit(1, NOW_MS, {"0#0": 9}, transactions=[transaction(NOW_MS - MINUTE, 9)]))
    assert averages_of(rates) == (0.0, 0.0, 0.0, 0.0)


# Scale events


def judged(
    averages: Averages,
    *,
    policy: ScalingPolicy = BY_EVENTS,
    pace: ScalingPace = PACE,
    others: int = 1,
    **state: int,
) -> SegmentRates:
    """Write an event into a segment with these averages; return its statistics."""
    segments = {0: segment_rates(averages=averages, **state)}
    segments |= {number: segment_rates() for number in range(1, 1 + others)}
    rates = rates_of(segments, policy, pace)
    rates.apply(commit(1, NOW_MS + 1, {"0#0": 1}))
    return rates.segments[0]


@pytest.mark.parametrize(
    ("averages", "up"),
    [
        ((500.0, 200.0, 100.0, 9e9), False),
        ((500.1, 200.0, 100.0, 0.0), True),
        ((500.0, 200.1, 100.0, 0.0), True),
        ((500.0, 200.0, 100.1, 0.0), True),
    ],
)
@pytest.mark.parametrize("policy", [BY_EVENTS, BY_BYTES])
def test_scale_up_needs_an_average_above_its_factor_of_the_target(
    averages: Averages, up: bool, policy: ScalingPolicy
) -> None:
    found = judged(averages, policy=policy)
    assert (found.up is not None) is up
    if found.up is not None:
        rule = [500, 200, 100].index(next(int(r) for r in averages if r % 1))
        assert (found.up.time_ms, found.up.rule) == (NOW_MS + 1, rule)
        assert found.up.rate == averages[rule]


@pytest.mark.parametrize(
    ("averages", "splits"),
    [
        ((100.1, 0.0, 100.1, 0.0), 2),
        ((299.9, 0.0, 100.1, 0.0), 2),
        ((300.0, 0.0, 100.1, 0.0), 3),
        ((0.0, 450.0, 100.1, 0.0), 4),
        ((0.0, 0.0, 1_000.0, 9e9), 10),
    ],
)
def test_number_of_splits_is_the_largest_of_three_averages_over_the_target(
    averages: Averages, splits: int
) -> None:
    found = judged(averages)
    assert found.up is not None
    assert found.up.splits == splits


@pytest.mark.parametrize(("age_ms", "up"), [(600_000, False), (600_001, True)])
def test_no_scale_event_occurs_within_the_cool_down(age_ms: int, up: bool) -> None:
    found = judged((9e9, 9e9, 9e9, 9e9), age_ms=age_ms - 1)
    assert (found.up is not None) is up
    assert found.reported_ms == NOW_MS + 1, "the segment counts as judged"


@pytest.mark.parametrize(
    ("averages", "minutes"),
    [((501.0, 0.0, 0.0, 0.0), 2), ((0.0, 201.0, 0.0, 0.0), 5), ((0.0, 0.0, 101.0, 0.0), 10)],
)
def test_average_counts_only_in_a_segment_older_than_its_window(
    averages: Averages, minutes: int
) -> None:
    hasty = ScalingPace(cooldown_ms=0, mute_ms=0, report_ms=0)
    young, old = (
        judged(averages, pace=hasty, age_ms=minutes * MINUTE - 1 + late, up_ms=0) for late in (0, 1)
    )
    assert young.up is None
    assert old.up is not None


@pytest.mark.parametrize(("passed_ms", "found"), [(120_000, False), (120_001, True)])
def test_segment_is_judged_at_most_every_2_minutes(passed_ms: int, found: bool) -> None:
    segment = judged((9e9, 9e9, 9e9, 9e9), reported_ms=NOW_MS + 1 - passed_ms)
    assert (segment.up is not None) is found


@pytest.mark.parametrize(("passed_ms", "again"), [(600_000, False), (600_001, True)])
def test_scale_up_event_mutes_both_kinds_for_10_minutes(passed_ms: int, again: bool) -> None:
    first = judged((9e9, 9e9, 9e9, 9e9))
    assert first.up_ms == first.down_ms == NOW_MS + 1
    last_ms = NOW_MS + 1 - passed_ms
    up = judged((9e9, 9e9, 9e9, 9e9), up_ms=last_ms, down_ms=last_ms)
    assert (up.up is not None) is again
    down = judged(LOW, up_ms=last_ms, down_ms=last_ms)
    assert (down.cold_until_ms > 0) is again


def test_scale_down_event_does_not_mute_scale_up_events() -> None:
    assert judged((9e9, 9e9, 9e9, 9e9), down_ms=NOW_MS).up is not None


def test_new_segment_is_muted() -> None:
    hasty = ScalingPace(cooldown_ms=0, report_ms=0, windows_ms=(1, 1, 1, 1))
    for age_ms, muted in ((600_000, True), (600_001, False)):
        found = judged((9e9, 9e9, 9e9, 9e9), pace=hasty, age_ms=age_ms - 1)
        assert (found.up is None) is muted


@pytest.mark.parametrize(
    ("averages", "down"),
    [
        (LOW, True),
        ((100.0, 99.0, 99.0, 49.0), False),
        ((99.0, 100.0, 99.0, 49.0), False),
        ((99.0, 99.0, 100.0, 49.0), False),
        ((99.0, 99.0, 99.0, 50.0), False),
    ],
)
@pytest.mark.parametrize("policy", [BY_EVENTS, BY_BYTES])
def test_segment_is_cold_if_all_averages_are_low(
    averages: Averages, down: bool, policy: ScalingPolicy
) -> None:
    found = judged(averages, policy=policy)
    assert found.cold_until_ms == (NOW_MS + 1 + 600_000 if down else 0)
    assert found.cold_since_ms == (NOW_MS + 1 if down else 0)
    assert found.up is None


@pytest.mark.parametrize(("age_ms", "down"), [(1_200_000, False), (1_200_001, True)])
def test_segment_is_cold_only_when_older_than_20_minutes(age_ms: int, down: bool) -> None:
    assert (judged(LOW, age_ms=age_ms - 1).cold_until_ms > 0) is down


def test_scale_down_event_at_the_minimum_sets_no_cold_mark() -> None:
    found = judged(LOW, others=0)
    assert found.cold_until_ms == 0
    assert found.down_ms == NOW_MS + 1, "the event still mutes further ones"


def test_stream_of_fixed_segments_has_no_scale_events() -> None:
    for averages in ((9e9, 9e9, 9e9, 9e9), LOW):
        found = judged(averages, policy=ScalingPolicy.fixed(1))
        assert found.up is None
        assert found.cold_until_ms == 0


def test_scale_up_event_does_not_clear_a_cold_mark() -> None:
    rates = rates_of({0: segment_rates(averages=(9e9, 9e9, 9e9, 9e9)), 1: segment_rates()})
    rates.segments[0].mark_cold(NOW_MS - 1, NOW_MS + 500_000)
    rates.apply(commit(1, NOW_MS + 1, {"0#0": 1}))
    assert rates.segments[0].up is not None
    assert rates.is_cold(rates.segments[0], NOW_MS + 499_999)
    assert not rates.is_cold(rates.segments[0], NOW_MS + 500_000)


def test_scale_down_event_does_not_shorten_a_cold_mark() -> None:
    rates = rates_of({0: segment_rates(), 1: segment_rates()})
    rates.segments[0].mark_cold(NOW_MS - 9, FOREVER)
    rates.apply(commit(1, NOW_MS + 1, {"0#0": 1}))
    found = rates.segments[0]
    assert found.down_ms == NOW_MS + 1
    assert (found.cold_since_ms, found.cold_until_ms) == (NOW_MS - 9, FOREVER)


# Idle segments


@pytest.mark.parametrize(("silent_ms", "idle"), [(1_200_000, False), (1_200_001, True)])
def test_segment_without_a_write_for_20_minutes_is_cold(silent_ms: int, idle: bool) -> None:
    rates = rates_of({0: segment_rates(), 1: segment_rates()})
    segment = rates.segments[0]
    assert rates.is_cold(segment, NOW_MS + silent_ms) is idle
    rates.apply(commit(1, NOW_MS + silent_ms, {"0#0": 1}))
    assert (segment.cold_until_ms == FOREVER) is idle
    assert segment.since_ms == (NOW_MS + silent_ms if idle else NOW_MS - 120 * MINUTE)
    if idle:
        assert segment.cold_since_ms == NOW_MS + 1_200_000


def test_statistics_restart_with_the_first_write_after_a_long_silence() -> None:
    rates = rates_of({0: segment_rates(averages=(9e9, 9e9, 9e9, 9e9))})
    at = NOW_MS + 1_200_001
    rates.apply(commit(1, at, {"0#0": 1_000}))
    rates.apply(commit(2, at + 10_000, {"0#0": 1_000}))
    assert averages_of(rates) == pytest.approx([200] * 4)
    rates.apply(commit(3, at + 600_000, {"0#0": 99_000_000}))
    assert rates.segments[0].up is None, "the cool-down counts from the restart"


def test_idle_segment_is_not_cold_while_the_stream_is_at_its_minimum() -> None:
    rates = rates_of(
        {0: segment_rates(), 1: segment_rates()}, ScalingPolicy.by_event_rate(100, 4, 2)
    )
    assert not rates.is_cold(rates.segments[0], NOW_MS + 9_000_000)
    rates.apply(commit(1, NOW_MS + 9_000_000, {"0#0": 1}))
    assert rates.segments[0].cold_until_ms == 0


def test_idle_segment_is_marked_before_a_merge_to_the_minimum() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(100, 4, 3))
    lifecycle.update(stream, StreamConfiguration(ScalingPolicy.by_event_rate(100, 4, 2)))
    first, second, third = stream.view().active.segments
    stream.runtime.sleep(1_201)
    merged = KeyRange(first.key_range.low, second.key_range.high)
    scale_stream(stream, [first.segment_id, second.segment_id], [merged])
    rates = folded(stream)
    assert rates.segments[third.number].cold_until_ms == FOREVER
    assert rates.segments[3].cold_until_ms == 0
    assert not rates.may_shrink


# Layouts and logs


def commits(stream: StreamLog) -> list[Commit]:
    head = stream.log.refresh()
    assert head is not None
    return list(stream.log.reader.span(-1, head.version, light=True))


def folded(stream: StreamLog, pace: ScalingPace = PACE) -> StreamRates:
    first, *rest = commits(stream)
    rates = StreamRates.begin(StreamView(first_snapshot(first, "here")), pace)
    for found in rest:
        rates.apply(found)
    return rates


def test_unchanged_segments_keep_their_statistics_over_a_scale_and_new_ones_are_muted() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(100, 4, 2))
    for _ in range(3):
        stream.runtime.sleep(6)
        write(stream, [(f"key-{i}", b"e" * 10) for i in range(100)])
    kept, split = stream.view().active.segments
    before = folded(stream).segments[kept.number]
    stream.runtime.sleep(6)
    scale_stream(stream, [split.segment_id], [KeyRange(0.5, 0.75), KeyRange(0.75, 1.0)])
    after = folded(stream)
    assert sorted(after.segments) == [kept.number, 2, 3]
    assert after.segments[kept.number] == before
    assert after.segments[2] == SegmentRates.begin(stream.view().timestamp_ms)


def test_new_policy_counts_from_its_commit_on() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(1_000_000, 4, 1))
    lifecycle.update(stream, StreamConfiguration(ScalingPolicy.by_data_rate(1, 8, 1)))
    assert folded(stream).policy == ScalingPolicy.by_data_rate(1, 8, 1)


def test_deleted_stream_has_no_statistics_and_its_next_life_begins_with_new_ones() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(100, 4, 2))
    write(stream, [("a", b"e")])
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    assert folded(stream).segments == {}
    stream.runtime.sleep(60)
    lifecycle.create(stream, 2, StreamConfiguration(ScalingPolicy.by_event_rate(7, 4, 1)))
    view = stream.view()
    found = folded(stream)
    assert (found.life, found.policy.target) == (2, 7)
    assert found.segments == {2: SegmentRates.begin(view.timestamp_ms)}


def grown(seed: int, steps: int) -> StreamLog:
    """Return a stream with random writes, silences, scales and changes of its policy."""
    dice = Random(seed)
    stream = stream_with(ScalingPolicy.by_event_rate(1, 4, 2))
    for _ in range(steps):
        stream.runtime.sleep(dice.choice((0.3, 3, 20, 40, 40, 40, 300, 1_300)))
        roll = dice.random()
        segments = stream.view().active.segments
        if roll < 0.85:
            count = dice.choice((1, 20, 400))
            write(stream, [(f"key-{dice.randrange(9)}", b"e" * 9) for _ in range(count)])
        elif roll < 0.92:
            segment = dice.choice(segments)
            low, high = segment.key_range.low, segment.key_range.high
            middle = (low + high) / 2
            scale_stream(
                stream, [segment.segment_id], [KeyRange(low, middle), KeyRange(middle, high)]
            )
        elif roll < 0.96 and len(segments) > 3:
            left, right = dice.choice(list(pairwise(segments)))
            whole = KeyRange(left.key_range.low, right.key_range.high)
            scale_stream(stream, [left.segment_id, right.segment_id], [whole])
        else:
            policy = ScalingPolicy.by_event_rate(dice.choice((1, 3, 30)), 4, 2)
            lifecycle.update(stream, StreamConfiguration(policy))
    return stream


@pytest.mark.medium
@given(st.integers(0, 2**32), st.integers(0, 40), st.sampled_from((1.0, 0.1)))
def test_fold_that_was_stored_after_each_commit_gives_the_same_rates(
    seed: int, steps: int, factor: float
) -> None:
    stream = grown(seed, steps)
    pace = PACE.scaled(factor)
    first, *rest = commits(stream)
    expected = encode_rates(folded(stream, pace))
    rates = StreamRates.begin(StreamView(first_snapshot(first, "here")), pace)
    for found in rest:
        rates.apply(found)
        stored = decode_rates(encode_rates(rates))
        assert stored is not None
        rates = stored
    assert encode_rates(rates) == expected


@pytest.mark.medium
def test_random_streams_have_scale_up_events_cold_marks_and_new_segments() -> None:
    seen = set()
    for seed in range(20):
        for number, segment in folded(grown(seed, 40), PACE.scaled(0.1)).segments.items():
            seen |= {"up"} if segment.up else set()
            seen |= {"forever"} if segment.cold_until_ms == FOREVER else set()
            seen |= {"cold"} if 0 < segment.cold_until_ms < FOREVER else set()
            seen |= {"new"} if number > 1 else set()
    assert seen == {"up", "forever", "cold", "new"}


def test_commits_must_be_applied_in_order() -> None:
    with pytest.raises(AssertionError):
        one_segment().apply(commit(2, NOW_MS))


def test_change_of_the_streams_record_without_a_new_epoch_keeps_all_segments() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(100, 4, 2))
    record = stream.view().snapshot.domains[STREAM_DOMAIN]
    rates = folded(stream)
    before = dict(rates.segments)
    rates.apply(commit(rates.version + 1, NOW_MS + 1, domains={STREAM_DOMAIN: record}))
    assert rates.segments == before
