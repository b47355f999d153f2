from __future__ import annotations

import pytest

from pravega_spark.engine.log.checkpointing import maintain
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.scaling import rate_store
from pravega_spark.scaling.rate_file import decode_rates, encode_rates, rates_key
from pravega_spark.scaling.rate_store import keep_rates, read_rates
from pravega_spark.scaling.segment_rates import Rates
from tests.harness.engine import FakeRuntime, Spy, again, clean, memory, put, write
from tests.harness.loads import PACE, load, stream_with

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


def read(stream: StreamLog, **at: int) -> tuple[Rates, bool]:
    return read_rates(stream, stream.view(), PACE, at.get("now_ms", stream.runtime.now_ms()))


def commits_read(store: Spy) -> int:
    """How many commits were read since the last call."""
    found = sum("_delta_log/" in key for operation, key in store.calls if operation == "get")
    store.calls.clear()
    return found


def kept(stream: StreamLog) -> Rates:
    found = decode_rates(stream.store.get(rates_key(stream.path)))
    assert found is not None
    return found


def test_the_next_run_reads_only_new_commits_and_finds_the_same(
    stream: StreamLog, store: Spy
) -> None:
    rates, news = read(stream)
    assert news
    keep_rates(stream, rates)
    load(stream, seconds=50, rate=1)
    other = again(stream)
    other.view()
    commits_read(store)
    found, news = read(other)
    assert news
    assert commits_read(store) <= 8, "five commits, the head, and the one whose token counts"
    store.delete([rates_key(stream.path)])
    assert found == read(again(stream))[0]


def test_nothing_new_is_nothing_to_keep(stream: StreamLog, store: Spy) -> None:
    keep_rates(stream, read(stream)[0])
    commits_read(store)
    found, news = read(stream)
    assert not news
    assert found == kept(stream)
    assert commits_read(store) <= 1


@pytest.mark.parametrize("damage", ["torn", "token", "old token", "pace", "ahead", "life"])
def test_what_another_log_or_pace_or_a_torn_write_left_is_not_used(
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


def test_what_is_whole_and_of_this_version_is_used(stream: StreamLog) -> None:
    marked, _ = read(stream)
    marked.segments[0].events = (9.0, 9.0, 9.0, 9.0)
    keep_rates(stream, marked)
    assert read(stream)[0] == marked


def stream_time(stream: StreamLog, version: int) -> int:
    commit = stream.log.reader.commit(version, light=True)
    assert commit is not None
    return commit.timestamp_ms


def state_file(stream: StreamLog) -> int:
    """Leave a state file at the head, from which a reader can begin; its version."""
    version = stream.view().version
    maintain(stream.log.reader, version)
    return version


def test_without_a_memory_the_log_is_read_back_an_hour(stream: StreamLog) -> None:
    state_file(stream)
    load(stream, seconds=600, rate=1, every=60)
    begun = state_file(stream)
    load(stream, seconds=1_800, rate=1, every=60)
    state_file(stream)
    load(stream, seconds=1_800, rate=1, every=60)
    found, _ = read(again(stream))
    assert found.version == stream.view().version
    assert found.segments[0].since_ms == stream_time(stream, begun)


def test_a_long_log_is_read_back_so_many_commits_only(
    stream: StreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_store, "RATES_COMMITS", 20)
    begun = state_file(stream)
    keep_rates(stream, read(stream)[0])
    load(stream, seconds=15, rate=1, every=1)
    middle = state_file(stream)
    load(stream, seconds=5, rate=1, every=1)
    before, _ = read(stream)
    assert before.segments[0].since_ms < stream_time(stream, begun), "it went on from the memory"
    load(stream, seconds=15, rate=1, every=1)
    found, _ = read(stream)
    assert found.version == stream.view().version
    assert found.segments[0].since_ms == stream_time(stream, middle)


def test_what_was_kept_below_the_clean_up_mark_is_not_used(stream: StreamLog) -> None:
    keep_rates(stream, read(stream)[0])
    runtime = stream.runtime
    load(stream, seconds=100, rate=1)
    mark = stream.view().version
    put(stream.log, "x")
    clean(stream.log, runtime, mark)  # type: ignore[arg-type]
    found, _ = read(again(stream))
    assert found.version == stream.view().version
    assert found.segments[0].since_ms >= stream_time(stream, mark)


def test_an_earlier_life_is_forgotten(stream: StreamLog) -> None:
    keep_rates(stream, read(stream)[0])
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    lifecycle.create(stream, 2, StreamConfiguration(POLICY))
    write(stream, [("a", b"e")])
    found, _ = read(stream)
    assert found.life == 2
    assert list(found.segments) == [1]
