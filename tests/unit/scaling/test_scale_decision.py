from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.policies import ScalingPolicy
from pravega_spark.scaling import decision
from pravega_spark.scaling.decision import Action, ScaleDecision, ScaleRequest, decide_scale
from pravega_spark.scaling.rates import FOREVER, Averages, ScaleUpEvent, SegmentRates, StreamRates
from pravega_spark.values.limits import MAX_SEGMENTS
from pravega_spark.values.segments import KeyRange, Segment, make_segment_id
from tests.harness.fake_runtime import NOW_MS
from tests.harness.loads import BY_EVENTS, PACE, epoch_of, rates_of, segment_rates, summed

HIGH: Averages = (9e9, 9e9, 9e9, 9e9)


def hot(splits: int = 2, *, age_ms: int = 0) -> SegmentRates:
    """Return a segment with a scale-up event of the given age."""
    made = segment_rates(averages=HIGH)
    made.up = ScaleUpEvent(NOW_MS - age_ms, splits, 2, 9e9, 100)
    return made


def cold(marked_ms: int = 1) -> SegmentRates:
    """Return a segment that was marked cold some ms ago."""
    made = segment_rates()
    made.mark_cold(NOW_MS - marked_ms, NOW_MS - marked_ms + 600_000)
    return made


def warm() -> SegmentRates:
    return segment_rates(averages=(60.0, 60.0, 60.0, 60.0))


def decided(segments: Sequence[SegmentRates], minimum: int = 1, factor: int = 4) -> ScaleDecision:
    policy = ScalingPolicy.by_event_rate(100, factor, minimum)
    rates = rates_of(dict(enumerate(segments)), policy)
    return decide_scale(epoch_of(len(segments)).segments, rates, NOW_MS)


def merged(found: ScaleDecision) -> list[tuple[int, ...]]:
    return [request.seal for request in found.requests]


def actions(found: ScaleDecision) -> str:
    """Return the first letter of each segment's action."""
    return "".join(verdict.action.value[0] for verdict in found.verdicts)


# Splits


@pytest.mark.parametrize(
    ("splits", "factor", "parts"),
    [(2, 1, 2), (2, 2, 2), (2, 8, 2), (7, 1, 2), (7, 4, 4), (7, 7, 7), (7, 9, 7)],
)
def test_split_has_the_events_number_of_parts_within_the_factor(
    splits: int, factor: int, parts: int
) -> None:
    found = decided([warm(), hot(splits), warm()], factor=factor)
    (request,) = found.requests
    assert request.action is Action.SPLIT
    assert request.seal == (1,)
    assert len(request.ranges) == parts
    assert request.ranges[0].low == 1 / 3
    assert request.ranges[-1].high == 2 / 3
    widths = [r.high - r.low for r in request.ranges]
    assert widths == pytest.approx([1 / 3 / parts] * parts)
    assert actions(found) == "nsn"


@pytest.mark.parametrize(("age_ms", "counts"), [(599_999, True), (600_000, False)])
def test_scale_up_event_counts_for_10_minutes(age_ms: int, counts: bool) -> None:
    found = decided([hot(age_ms=age_ms)])
    assert len(found.requests) == counts
    assert actions(found) == ("s" if counts else "w")


def test_each_hot_segment_is_split_by_its_own_request() -> None:
    found = decided([hot(), hot()])
    assert [request.seal for request in found.requests] == [(0,), (1,)]


def test_stream_at_the_maximum_of_segments_is_not_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decision, "MAX_SEGMENTS", 4)
    found = decided([hot(), hot(), warm()])
    assert [request.seal for request in found.requests] == [(0,)]
    assert "a stream has at most 4 segments" in found.verdicts[1].reason
    assert found.verdicts[1].action is Action.WAIT
    assert MAX_SEGMENTS == 10_000


def test_too_narrow_range_is_not_split() -> None:
    tiny = 3 * 2.0**-53
    segments = [
        Segment(make_segment_id(0, 0), KeyRange(0.0, tiny)),
        Segment(make_segment_id(1, 0), KeyRange(tiny, 1.0)),
    ]
    rates = rates_of({0: hot(4), 1: warm()})
    found = decide_scale(segments, rates, NOW_MS)
    assert found.requests == ()
    assert "too narrow for 4 parts" in found.verdicts[0].reason
    rates.segments[0] = hot(3)
    (request,) = decide_scale(segments, rates, NOW_MS).requests
    assert [r.high for r in request.ranges] == [2.0**-53, 2 * 2.0**-53, tiny]


# Merges


def test_two_cold_neighbours_merge() -> None:
    found = decided([warm(), cold(), cold(), warm()])
    assert found.requests == (ScaleRequest(Action.MERGE, (1, 2), (KeyRange(0.25, 0.75),)),)
    assert actions(found) == "nmmn"
    assert "with 2#0" in found.verdicts[1].reason


def test_cold_segment_between_warm_ones_is_unchanged() -> None:
    found = decided([warm(), cold(), warm(), cold()])
    assert found.requests == ()
    assert actions(found) == "ncnc"
    assert "no cold neighbour" in found.verdicts[1].reason


def test_three_cold_segments_merge_if_the_middle_one_was_marked_last() -> None:
    found = decided([cold(3), cold(1), cold(2)])
    assert merged(found) == [(0, 1, 2)]
    assert found.requests[0].ranges == (KeyRange(0.0, 1.0),)


def test_first_two_of_three_cold_segments_merge_if_the_minimum_is_two() -> None:
    found = decided([cold(3), cold(1), cold(2)], minimum=2)
    assert merged(found) == [(0, 1)]
    assert actions(found) == "mmc"
    assert "the minimum is 2 segments" in found.verdicts[2].reason


def test_segment_merges_with_neighbours_marked_before_it() -> None:
    assert merged(decided([cold(4), cold(3), cold(2), cold(1)])) == [(0, 1), (2, 3)]
    assert merged(decided([cold(1), cold(2), cold(3), cold(4)])) == [(2, 3), (0, 1)]
    assert merged(decided([cold(2), cold(1), cold(3), cold(4)])) == [(2, 3), (0, 1)]
    assert merged(decided([cold(4), cold(1), cold(3), cold(2)])) == [(2, 3), (0, 1)]
    assert merged(decided([cold(5)] * 5)) == [(0, 1), (2, 3)]


@pytest.mark.parametrize("minimum", [1, 2, 3, 4, 5, 6])
def test_merges_leave_at_least_the_minimum(minimum: int) -> None:
    found = decided([cold()] * 5, minimum=minimum)
    left = 5 - sum(len(request.seal) - 1 for request in found.requests)
    assert left == max(3, minimum) if minimum <= 5 else left == 5


def test_hot_segment_with_a_cold_mark_is_split() -> None:
    both = hot()
    both.mark_cold(NOW_MS - 9, FOREVER)
    found = decided([cold(), both, cold()])
    assert [request.action for request in found.requests] == [Action.SPLIT]
    assert actions(found) == "csc"


def test_split_allows_no_merge_below_the_minimum() -> None:
    found = decided([hot(4), cold(), cold()], minimum=3)
    assert [request.action for request in found.requests] == [Action.SPLIT]


def test_cold_mark_ends_after_10_minutes() -> None:
    assert merged(decided([cold(599_999), cold()])) == [(0, 1)]
    assert merged(decided([cold(600_000), cold()])) == []


def test_idle_segments_merge_without_a_scale_down_event() -> None:
    idle = segment_rates(written_ms=NOW_MS - 1_200_001)
    almost = segment_rates(written_ms=NOW_MS - 1_200_000)
    assert merged(decided([idle, idle])) == [(0, 1)]
    assert merged(decided([idle, almost])) == []
    assert merged(decided([idle, cold()])) == [(0, 1)]
    at_minimum = decided([idle, idle], minimum=2)
    assert merged(at_minimum) == []
    assert actions(at_minimum) == "nn"


def test_segment_that_was_once_idle_is_cold_until_it_is_sealed() -> None:
    once = segment_rates(averages=(60.0, 60.0, 60.0, 60.0))
    once.mark_cold(1, FOREVER)
    found = decided([once, cold()])
    assert merged(found) == [(0, 1)]
    assert "once idle, cold until sealed" in found.verdicts[0].reason


states = st.sampled_from(("hot", "warm", "cold", "idle"))


@given(
    st.lists(st.tuples(states, st.integers(0, 700_000)), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_requests_are_disjoint_tile_the_sealed_ranges_and_leave_the_minimum(
    rolled: list[tuple[str, int]], minimum: int
) -> None:
    made: dict[str, Callable[[int], SegmentRates]] = {
        "hot": lambda age: hot(3, age_ms=age),
        "warm": lambda age: warm(),
        "cold": cold,
        "idle": lambda age: segment_rates(written_ms=NOW_MS - 600_000 - age),
    }
    segments = [made[kind](age) for kind, age in rolled]
    found = decided(segments, minimum)
    assert decided(segments, minimum) == found, "the same rates give the same decision"
    by_id = {s.segment_id: s for s in epoch_of(len(segments)).segments}
    sealed = [segment_id for request in found.requests for segment_id in request.seal]
    assert len(sealed) == len(set(sealed))
    for request in found.requests:
        lows = [by_id[s].key_range.low for s in request.seal]
        highs = [by_id[s].key_range.high for s in request.seal]
        assert lows[1:] == highs[:-1], "merged segments are adjacent"
        assert (request.ranges[0].low, request.ranges[-1].high) == (lows[0], highs[-1])
        kinds = {rolled[segment_id][0] for segment_id in request.seal}
        assert kinds == {"hot"} if request.action is Action.SPLIT else kinds <= {"cold", "idle"}
    merged_away = sum(len(r.seal) - 1 for r in found.requests if r.action is Action.MERGE)
    assert merged_away == 0 or len(segments) - merged_away >= minimum
    for verdict in found.verdicts:
        named = [r.action for r in found.requests if verdict.segment.segment_id in r.seal]
        assert named == ([verdict.action] if verdict.action in (Action.SPLIT, Action.MERGE) else [])


# Reasons


def reason(segment: SegmentRates, policy: ScalingPolicy = BY_EVENTS) -> tuple[Action, str]:
    rates = rates_of({0: segment, 1: warm()}, policy)
    verdict = decide_scale(epoch_of(2).segments, rates, NOW_MS).verdicts[0]
    return verdict.action, verdict.reason


def test_reasons_name_rates_and_limits() -> None:
    by_bytes = ScalingPolicy.by_data_rate(100, 4, 1)
    fast = hot(3)
    assert fast.up is not None
    fast.up = ScaleUpEvent(NOW_MS, 3, 0, 612.5, 100)
    assert reason(fast) == (Action.SPLIT, "r2 was 612.5 > 5 x 100 events/s: 3 even parts")
    assert reason(hot(), by_bytes)[1].startswith("r10 was 9,000,000,000.0 > 100 KiB/s")
    young = segment_rates(averages=(0.0, 201.0, 0.0, 0.0), age_ms=320_000)
    assert reason(young) == (
        Action.WAIT,
        "r5 is 201.0 > 2 x the target; 320 s old, waits until 600 s",
    )
    muted = segment_rates(averages=HIGH, up_ms=NOW_MS - 480_000)
    assert reason(muted)[1].endswith("muted for 120 s more")
    unjudged = segment_rates(averages=HIGH)
    assert reason(unjudged)[1].endswith("judged at writes, every 120 s at most")
    assert reason(warm()) == (Action.NONE, "within the target, 100 events/s")
    assert reason(segment_rates()) == (
        Action.NONE,
        "slow for the target, 100 events/s, but not cold yet",
    )
    assert reason(cold(200_000))[1] == "too slow, cold for 400 s more; no cold neighbour"
    idle = segment_rates(written_ms=NOW_MS - 1_500_000)
    assert reason(idle)[1] == "no event for 1,500 s; no cold neighbour"


def test_averages_are_current_and_in_the_unit_of_the_policy() -> None:
    rates = rates_of({0: segment_rates(averages=(8.0, 8.0, 8.0, 8.0))})
    rates.segments[0].size_bytes = summed((1024.0,) * 4, 7_200_000)
    by_events = decide_scale(epoch_of(1).segments, rates, NOW_MS + 120_000).verdicts[0].averages
    assert by_events == pytest.approx([8 * math.exp(-2 / w) for w in (2, 5, 10, 20)], rel=0.01)
    rates.policy = ScalingPolicy.by_data_rate(5, 2, 1)
    by_bytes = decide_scale(epoch_of(1).segments, rates, NOW_MS).verdicts[0].averages
    assert by_bytes == (1.0, 1.0, 1.0, 1.0)


def test_stream_of_fixed_segments_is_never_scaled() -> None:
    rates: StreamRates = rates_of({0: hot(), 1: cold(), 2: cold()}, ScalingPolicy.fixed(1), PACE)
    found = decide_scale(epoch_of(3).segments, rates, NOW_MS)
    assert found.requests == ()
    assert actions(found) == "nnn"
    assert found.verdicts[0].averages == HIGH
    assert found.verdicts[0].reason == "the number of segments is fixed"
