from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.policies import ScalingPace, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.scaling import rates as scaling_rates
from pravega_spark.scaling.rates import (
    FOREVER,
    ScaleUpEvent,
    SegmentRates,
    StreamRates,
    Traffic,
    decode_rates,
    encode_rates,
    rates_key,
    read_rates,
    store_rates,
)
from tests.harness.fake_runtime import NOW_MS, FakeRuntime, memory
from tests.harness.loads import BY_EVENTS, PACE, load, rates_of, segment_rates, stream_with
from tests.harness.small_streams import reopen, write
from tests.harness.small_tables import clean, put
from tests.harness.spy_store import Spy

POLICY = ScalingPolicy.by_event_rate(100, 4, 1)


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def store(runtime: FakeRuntime) -> Spy:
    return Spy(memory(runtime))


@pytest.fixture
def stream(store: Spy, runtime: FakeRuntime) -> StreamLog:
    made = stream_with(POLICY, store, runtime)
    load(made, seconds=100, rate=1)
    return made


def read(stream: StreamLog) -> tuple[StreamRates, bool]:
    return read_rates(stream, stream.view(), PACE, stream.runtime.now_ms())


def commits_read(store: Spy) -> int:
    """Return how many commits were read since the last call."""
    found = sum("_delta_log/" in key for operation, key in store.calls if operation == "get")
    store.calls.clear()
    return found


def stored(stream: StreamLog) -> StreamRates:
    found = decode_rates(stream.store.get(rates_key(stream.path)))
    assert found is not None
    return found


def test_next_run_reads_only_new_commits_and_gets_the_same_rates(
    stream: StreamLog, store: Spy
) -> None:
    rates, is_worth_storing = read(stream)
    assert is_worth_storing
    store_rates(stream, rates)
    load(stream, seconds=50, rate=1)
    other = reopen(stream)
    other.view()
    commits_read(store)
    found, is_worth_storing = read(other)
    assert is_worth_storing
    assert commits_read(store) <= 8, "five commits, the newest one, and the stored one"
    store.delete([rates_key(stream.path)])
    assert found == read(reopen(stream))[0]


def test_rates_without_new_commits_are_not_worth_storing(stream: StreamLog, store: Spy) -> None:
    store_rates(stream, read(stream)[0])
    commits_read(store)
    found, is_worth_storing = read(stream)
    assert not is_worth_storing
    assert found == stored(stream)
    assert commits_read(store) <= 1


@pytest.mark.parametrize("damage", ["torn", "token", "old token", "pace", "ahead", "life"])
def test_stored_rates_that_are_torn_or_of_another_log_or_pace_are_ignored(
    stream: StreamLog, damage: str
) -> None:
    right, _ = read(stream)
    wrong, _ = read(stream)
    wrong.segments[0].events = (9.0, 9.0, 9.0, 9.0)
    if damage == "token":
        wrong.token = "foreign"
    if damage == "old token":
        wrong.version -= 1
    if damage == "pace":
        wrong.pace = PACE.scaled(2)
    if damage == "ahead":
        wrong.version += 1
    if damage == "life":
        wrong.life = 2
    data = encode_rates(wrong)
    stream.store.put(rates_key(stream.path), data[:-9] if damage == "torn" else data)
    assert read(stream)[0] == right


def test_stored_rates_of_this_version_are_used(stream: StreamLog) -> None:
    marked, _ = read(stream)
    marked.segments[0].events = (9.0, 9.0, 9.0, 9.0)
    store_rates(stream, marked)
    assert read(stream)[0] == marked


def stream_time(stream: StreamLog, version: int) -> int:
    commit = stream.log.reader.commit(version, light=True)
    assert commit is not None
    return commit.timestamp_ms


def state_file(stream: StreamLog) -> int:
    """Write a state file of the newest version; return the version."""
    version = stream.view().version
    maintain(stream.log.reader, version)
    return version


def test_without_stored_rates_the_last_hour_of_the_log_is_read(stream: StreamLog) -> None:
    state_file(stream)
    load(stream, seconds=600, rate=1, every=60)
    begun = state_file(stream)
    load(stream, seconds=1_800, rate=1, every=60)
    state_file(stream)
    load(stream, seconds=1_800, rate=1, every=60)
    found, _ = read(reopen(stream))
    assert found.version == stream.view().version
    assert found.segments[0].since_ms == stream_time(stream, begun)


def test_number_of_commits_read_is_limited(
    stream: StreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling_rates, "RATES_COMMITS", 20)
    begun = state_file(stream)
    store_rates(stream, read(stream)[0])
    load(stream, seconds=15, rate=1, every=1)
    middle = state_file(stream)
    load(stream, seconds=5, rate=1, every=1)
    before, _ = read(stream)
    assert before.segments[0].since_ms < stream_time(stream, begun), "it continued the stored rates"
    load(stream, seconds=15, rate=1, every=1)
    found, _ = read(stream)
    assert found.version == stream.view().version
    assert found.segments[0].since_ms == stream_time(stream, middle)


def test_stored_rates_below_the_commit_deletion_mark_are_ignored(stream: StreamLog) -> None:
    store_rates(stream, read(stream)[0])
    load(stream, seconds=100, rate=1)
    mark = stream.view().version
    put(stream.log, "x")
    assert isinstance(stream.runtime, FakeRuntime)
    clean(stream.log, stream.runtime, mark)
    found, _ = read(reopen(stream))
    assert found.version == stream.view().version
    assert found.segments[0].since_ms >= stream_time(stream, mark)


def test_rates_of_an_earlier_life_are_ignored(stream: StreamLog) -> None:
    store_rates(stream, read(stream)[0])
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    lifecycle.create(stream, 2, StreamConfiguration(POLICY))
    write(stream, [("a", b"e")])
    found, _ = read(stream)
    assert found.life == 2
    assert list(found.segments) == [1]


# The stored object

times = st.integers(0, 1 << 45)
numbers = st.floats(0, 1e15) | st.integers(0, 1 << 60)
averages = st.tuples(numbers, numbers, numbers, numbers)
scale_up_events = st.builds(
    ScaleUpEvent, times, st.integers(2, 99), st.integers(0, 2), numbers, st.integers(1)
)
segments = st.builds(
    SegmentRates,
    since_ms=times,
    ticked_ms=times,
    written_ms=times,
    reported_ms=times,
    up_ms=times,
    down_ms=times,
    pending=st.builds(Traffic, numbers, numbers),
    events=averages,
    size_bytes=averages,
    up=st.none()
    | st.builds(
        ScaleUpEvent, times, st.integers(2, 99), st.integers(0, 2), numbers, st.integers(1)
    ),
    cold_until_ms=times | st.just(FOREVER),
    cold_since_ms=times,
)
all_rates = st.builds(
    StreamRates,
    st.sampled_from((ScalingPace(), ScalingPace().scaled(1 / 60), ScalingPace.of_cooldown("7 s"))),
    st.integers(0, 1 << 40),
    st.text("0123456789abcdef", min_size=1),
    times,
    st.integers(1, 99),
    st.integers(0, 1 << 20),
    st.sampled_from((BY_EVENTS, ScalingPolicy.fixed(3), ScalingPolicy.by_data_rate(5, 2, 2))),
    st.dictionaries(st.integers(0, 1 << 30), segments, max_size=4),
)


def test_key_of_the_object() -> None:
    assert rates_key("s/t/events") == "s/t/events/_pravega/rates.json"


@given(all_rates)
def test_decoded_rates_equal_the_encoded_ones(rates: StreamRates) -> None:
    assert decode_rates(encode_rates(rates)) == rates


def test_torn_or_changed_object_is_ignored() -> None:
    data = encode_rates(rates_of({0: segment_rates()}))
    for cut in range(len(data) - 1):
        assert decode_rates(data[:cut]) is None, cut
    for at in range(len(data) - 1):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        assert decode_rates(changed) is None, at


def test_object_of_another_format_or_kind_is_ignored() -> None:
    first, rest = encode_rates(rates_of({0: segment_rates()})).split(b"\n", 1)
    header = json.dumps({**json.loads(first), "format": 2}).encode()
    assert decode_rates(header + b"\n" + rest) is None
    for data in (b"", b"[]\n[]\n", b"\xff", b"null\n", b"{}\n{}\n"):
        assert decode_rates(data) is None


def test_object_with_invalid_content_is_ignored() -> None:
    rates = rates_of({0: segment_rates()}, time_ms=NOW_MS)
    rates.policy = ScalingPolicy.fixed(1)
    object.__setattr__(rates.policy, "minimum", 0)  # no valid policy has it
    assert decode_rates(encode_rates(rates)) is None
