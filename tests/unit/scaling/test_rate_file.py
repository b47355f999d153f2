from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.policies import ScalingPace, ScalingPolicy
from pravega_spark.scaling.commit_traffic import SegmentTraffic
from pravega_spark.scaling.rate_file import decode_rates, encode_rates, rates_key
from pravega_spark.scaling.segment_rates import FOR_EVER, Rates, ScaleUp, SegmentRates
from tests.harness.engine import NOW_MS
from tests.harness.loads import BY_EVENTS, rates_of, segment_rates

times = st.integers(0, 1 << 45)
numbers = st.floats(0, 1e15) | st.integers(0, 1 << 60)
averages = st.tuples(numbers, numbers, numbers, numbers)
segments = st.builds(
    SegmentRates,
    *[times] * 6,
    pending=st.builds(SegmentTraffic, numbers, numbers),
    events=averages,
    size_bytes=averages,
    up=st.none()
    | st.builds(ScaleUp, times, st.integers(2, 99), st.integers(0, 2), numbers, st.integers(1)),
    cold_until_ms=times | st.just(FOR_EVER),
    cold_since_ms=times,
)
all_rates = st.builds(
    Rates,
    st.sampled_from((ScalingPace(), ScalingPace().scaled(1 / 60), ScalingPace.of_cooldown("7 s"))),
    st.integers(0, 1 << 40),
    st.text("0123456789abcdef", min_size=1),
    times,
    st.integers(1, 99),
    st.integers(0, 1 << 20),
    st.sampled_from((BY_EVENTS, ScalingPolicy.fixed(3), ScalingPolicy.by_data_rate(5, 2, 2))),
    st.dictionaries(st.integers(0, 1 << 30), segments, max_size=4),
)


def test_the_object_lies_beside_the_stream_s_log() -> None:
    assert rates_key("s/t/events") == "s/t/events/_pravega/rates.json"


@given(all_rates)
def test_what_is_written_is_read_exactly(rates: Rates) -> None:
    assert decode_rates(encode_rates(rates)) == rates


def test_a_torn_or_changed_object_is_not_read() -> None:
    data = encode_rates(rates_of({0: segment_rates()}))
    for cut in range(len(data) - 1):
        assert decode_rates(data[:cut]) is None, cut
    for place in range(len(data) - 1):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        assert decode_rates(changed) is None, place


def test_another_format_or_another_kind_of_object_is_not_read() -> None:
    first, rest = encode_rates(rates_of({0: segment_rates()})).split(b"\n", 1)
    header = json.dumps({**json.loads(first), "format": 2}).encode()
    assert decode_rates(header + b"\n" + rest) is None
    for data in (b"", b"[]\n[]\n", b"\xff", b"null\n", b"{}\n{}\n"):
        assert decode_rates(data) is None


def test_a_whole_object_of_wrong_content_is_not_read() -> None:
    rates = rates_of({0: segment_rates()}, time_ms=NOW_MS)
    rates.policy = ScalingPolicy.fixed(1)
    object.__setattr__(rates.policy, "minimum", 0)  # no policy may have this
    assert decode_rates(encode_rates(rates)) is None
