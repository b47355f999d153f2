from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.limits import MAX_SEGMENTS
from pravega_spark.model import KeyRange, Segment, make_segment_id
from pravega_spark.policies import ScalingPolicy
from pravega_spark.scaling import scale_decision
from pravega_spark.scaling.scale_decision import Action, ScaleDecision, ScaleRequest, decide
from pravega_spark.scaling.segment_rates import FOR_EVER, Averages, Rates, ScaleUp, SegmentRates
from tests.harness.engine import NOW_MS
from tests.harness.loads import BY_EVENTS, PACE, epoch_of, rates_of, segment_rates, summed

HIGH: Averages = (9e9, 9e9, 9e9, 9e9)


def hot(splits: int = 2, *, age_ms: int = 0) -> SegmentRates:
    """A segment with an up event of some time ago."""
    made = segment_rates(averages=HIGH)
    made.up = ScaleUp(NOW_MS - age_ms, splits, 2, 9e9, 100)
    return made


def cold(marked_ms: int = 1) -> SegmentRates:
    """A segment marked cold by an event so many ms ago."""
    made = segment_rates()
    made.mark(NOW_MS - marked_ms, NOW_MS - marked_ms + 600_000)
    return made


def warm() -> SegmentRates:
    return segment_rates(averages=(60.0, 60.0, 60.0, 60.0))


def decided(segments: Sequence[SegmentRates], minimum: int = 1, factor: int = 4) -> ScaleDecision:
    policy = ScalingPolicy.by_event_rate(100, factor, minimum)
    rates = rates_of(dict(enumerate(segments)), policy)
    return decide(epoch_of(len(segments)).segments, rates, NOW_MS)


def merged(found: ScaleDecision) -> list[tuple[int, ...]]:
    return [request.seal for request in found.requests]


def actions(found: ScaleDecision) -> str:
    """One letter a segment."""
    return "".join(verdict.action.value[0] for verdict in found.verdicts)


# -------------------------------------------------------------------------------------- splits


@pytest.mark.parametrize(
    ("splits", "factor", "parts"),
    [(2, 1, 2), (2, 2, 2), (2, 8, 2), (7, 1, 2), (7, 4, 4), (7, 7, 7), (7, 9, 7)],
)
def test_a_split_has_as_many_parts_as_the_event_says_within_the_factor(
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
def test_an_up_event_counts_for_10_minutes(age_ms: int, counts: bool) -> None:
    found = decided([hot(age_ms=age_ms)])
    assert len(found.requests) == counts
    assert actions(found) == ("s" if counts else "w")


def test_every_hot_segment_is_split_on_its_own() -> None:
    found = decided([hot(), hot()])
    assert [request.seal for request in found.requests] == [(0,), (1,)]


def test_a_stream_with_all_the_segments_it_may_have_is_not_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale_decision, "MAX_SEGMENTS", 4)
    found = decided([hot(), hot(), warm()])
    assert [request.seal for request in found.requests] == [(0,)]
    assert "a stream has at most 4 segments" in found.verdicts[1].reason
    assert found.verdicts[1].action is Action.WAIT
    assert MAX_SEGMENTS == 10_000


def test_a_range_that_is_too_narrow_is_not_split() -> None:
    tiny = 3 * 2.0**-53
    segments = [
        Segment(make_segment_id(0, 0), KeyRange(0.0, tiny)),
        Segment(make_segment_id(1, 0), KeyRange(tiny, 1.0)),
    ]
    rates = rates_of({0: hot(4), 1: warm()})
    found = decide(segments, rates, NOW_MS)
    assert found.requests == ()
    assert "too narrow for 4 parts" in found.verdicts[0].reason
    rates.segments[0] = hot(3)
    (request,) = decide(segments, rates, NOW_MS).requests
    assert [r.high for r in request.ranges] == [2.0**-53, 2 * 2.0**-53, tiny]


# -------------------------------------------------------------------------------------- merges


def test_two_cold_neighbours_become_one() -> None:
    found = decided([warm(), cold(), cold(), warm()])
    assert found.requests == (ScaleRequest(Action.MERGE, (1, 2), (KeyRange(0.25, 0.75),)),)
    assert actions(found) == "nmmn"
    assert "with 2#0" in found.verdicts[1].reason


def test_a_cold_segment_between_warm_ones_is_left() -> None:
    found = decided([warm(), cold(), warm(), cold()])
    assert found.requests == ()
    assert actions(found) == "ncnc"
    assert "no cold neighbour" in found.verdicts[1].reason


def test_three_become_one_if_the_middle_one_was_marked_last() -> None:
    found = decided([cold(3), cold(1), cold(2)])
    assert merged(found) == [(0, 1, 2)]
    assert found.requests[0].ranges == (KeyRange(0.0, 1.0),)


def test_of_three_the_first_two_are_merged_if_only_one_can_be_spared() -> None:
    found = decided([cold(3), cold(1), cold(2)], minimum=2)
    assert merged(found) == [(0, 1)]
    assert actions(found) == "mmc"
    assert "the minimum is 2 segments" in found.verdicts[2].reason


def test_each_mark_sees_those_before_it() -> None:
    assert merged(decided([cold(4), cold(3), cold(2), cold(1)])) == [(0, 1), (2, 3)]
    assert merged(decided([cold(1), cold(2), cold(3), cold(4)])) == [(2, 3), (0, 1)]
    assert merged(decided([cold(2), cold(1), cold(3), cold(4)])) == [(2, 3), (0, 1)]
    assert merged(decided([cold(4), cold(1), cold(3), cold(2)])) == [(2, 3), (0, 1)]
    assert merged(decided([cold(5)] * 5)) == [(0, 1), (2, 3)]


@pytest.mark.parametrize("minimum", [1, 2, 3, 4, 5, 6])
def test_merges_never_go_below_the_minimum(minimum: int) -> None:
    found = decided([cold()] * 5, minimum=minimum)
    left = 5 - sum(len(request.seal) - 1 for request in found.requests)
    assert left == max(3, minimum) if minimum <= 5 else left == 5


def test_a_hot_segment_with_an_old_mark_is_split_and_merges_with_nobody() -> None:
    both = hot()
    both.mark(NOW_MS - 9, FOR_EVER)
    found = decided([cold(), both, cold()])
    assert [request.action for request in found.requests] == [Action.SPLIT]
    assert actions(found) == "csc"


def test_a_split_does_not_make_room_for_a_merge_below_the_minimum() -> None:
    found = decided([hot(4), cold(), cold()], minimum=3)
    assert [request.action for request in found.requests] == [Action.SPLIT]


def test_a_mark_ends_after_10_minutes() -> None:
    assert merged(decided([cold(599_999), cold()])) == [(0, 1)]
    assert merged(decided([cold(600_000), cold()])) == []


def test_idle_segments_merge_without_an_event() -> None:
    idle = segment_rates(written_ms=NOW_MS - 1_200_001)
    almost = segment_rates(written_ms=NOW_MS - 1_200_000)
    assert merged(decided([idle, idle])) == [(0, 1)]
    assert merged(decided([idle, almost])) == []
    assert merged(decided([idle, cold()])) == [(0, 1)]
    at_minimum = decided([idle, idle], minimum=2)
    assert merged(at_minimum) == []
    assert actions(at_minimum) == "nn"


def test_one_that_was_idle_once_is_cold_until_it_is_sealed() -> None:
    once = segment_rates(averages=(60.0, 60.0, 60.0, 60.0))
    once.mark(1, FOR_EVER)
    found = decided([once, cold()])
    assert merged(found) == [(0, 1)]
    assert "once idle, cold until sealed" in found.verdicts[0].reason


states = st.sampled_from(("hot", "warm", "cold", "idle"))


@given(
    st.lists(st.tuples(states, st.integers(0, 700_000)), min_size=1, max_size=12),
    st.integers(1, 12),
)
def test_requests_are_disjoint_tile_what_they_seal_and_keep_the_minimum(
    rolled: list[tuple[str, int]], minimum: int
) -> None:
    made = {
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
        assert lows[1:] == highs[:-1], "what is merged is adjacent"
        assert (request.ranges[0].low, request.ranges[-1].high) == (lows[0], highs[-1])
        kinds = {rolled[segment_id][0] for segment_id in request.seal}
        assert kinds == {"hot"} if request.action is Action.SPLIT else kinds <= {"cold", "idle"}
    gone = sum(len(r.seal) - 1 for r in found.requests if r.action is Action.MERGE)
    assert gone == 0 or len(segments) - gone >= minimum
    for verdict in found.verdicts:
        named = [r.action for r in found.requests if verdict.segment.segment_id in r.seal]
        assert named == ([verdict.action] if verdict.action in (Action.SPLIT, Action.MERGE) else [])


# ------------------------------------------------------------------------------------- reasons


def reason(segment: SegmentRates, policy: ScalingPolicy = BY_EVENTS) -> tuple[Action, str]:
    rates = rates_of({0: segment, 1: warm()}, policy)
    verdict = decide(epoch_of(2).segments, rates, NOW_MS).verdicts[0]
    return verdict.action, verdict.reason


def test_a_verdict_tells_rates_and_numbers() -> None:
    by_bytes = ScalingPolicy.by_data_rate(100, 4, 1)
    fast = hot(3)
    assert fast.up is not None
    fast.up = ScaleUp(NOW_MS, 3, 0, 612.5, 100)
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


def test_averages_are_those_of_now_in_the_policy_s_unit() -> None:
    rates = rates_of({0: segment_rates(averages=(8.0, 8.0, 8.0, 8.0))})
    rates.segments[0].size_bytes = summed((1024.0,) * 4, 7_200_000)
    by_events = decide(epoch_of(1).segments, rates, NOW_MS + 120_000).verdicts[0].averages
    assert by_events == pytest.approx([8 * math.exp(-2 / w) for w in (2, 5, 10, 20)], rel=0.01)
    rates.policy = ScalingPolicy.by_data_rate(5, 2, 1)
    by_bytes = decide(epoch_of(1).segments, rates, NOW_MS).verdicts[0].averages
    assert by_bytes == (1.0, 1.0, 1.0, 1.0)


def test_a_fixed_stream_is_left_alone_whatever_its_load() -> None:
    rates: Rates = rates_of({0: hot(), 1: cold(), 2: cold()}, ScalingPolicy.fixed(1), PACE)
    found = decide(epoch_of(3).segments, rates, NOW_MS)
    assert found.requests == ()
    assert actions(found) == "nnn"
    assert found.verdicts[0].averages == HIGH
    assert found.verdicts[0].reason == "the number of segments is fixed"
