from __future__ import annotations

import pytest

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.chunks.routing import position
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import NoSuchStream
from pravega_spark.scaling.auto import explain_scaling, run_scaling
from pravega_spark.scaling.commit import scale_stream
from pravega_spark.scaling.rates import rates_key
from pravega_spark.txn import lifecycle as txn_lifecycle
from pravega_spark.txn.transaction import Transaction
from pravega_spark.values.segments import KeyRange
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.loads import PACE, load, stream_with
from tests.harness.small_streams import all_events, make_stream, reopen, write
from tests.harness.spy_store import Spy

POLICY = ScalingPolicy.by_event_rate(2, 4, 1)
HALVES = [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)]


def busy(minutes: float = 12, rate: float = 5) -> StreamLog:
    """Return a stream of one segment after some minutes of writes at a steady rate."""
    runtime = FakeRuntime()
    stream = stream_with(POLICY, Spy(memory(runtime)), runtime)
    load(stream, seconds=60 * minutes, rate=rate)
    return stream


def segments(stream: StreamLog) -> list[str]:
    return [str(segment) for segment in stream.view().active.segments]


def actions(stream: StreamLog) -> list[tuple[str, str]]:
    """Run scaling; return each segment with the action on it."""
    return [(row["segment"], row["action"]) for row in run_scaling(stream).rows()]


def test_steady_load_above_the_target_splits_only_after_the_cool_down() -> None:
    stream = busy(minutes=10)
    assert actions(stream) == [("0#0", "wait")]
    load(stream, seconds=120, rate=5)
    assert actions(stream) == [("0#0", "split")]
    assert segments(stream) == ["1#1", "2#1"]
    load(stream, seconds=240, rate=5)
    assert {action for _, action in actions(stream)} <= {"none", "wait"}
    assert len(all_events(stream)) == 16 * 60 * 5


def test_raised_target_splits_nothing_by_the_old_one() -> None:
    stream = busy()
    assert [row["action"] for row in explain_scaling(stream).rows()] == ["split"]
    raised = StreamConfiguration(ScalingPolicy.by_event_rate(200, 4, 1))
    lifecycle.update(stream, raised)
    assert actions(stream) == [("0#0", "none")]
    load(stream, seconds=120, rate=5)
    assert actions(stream) == [("0#0", "none")]


@pytest.mark.medium
def test_lowered_target_splits_what_the_old_one_found_slow() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(200, 4, 1))
    scale_stream(stream, [0], HALVES)
    load(stream, seconds=22 * 60, rate=8)
    lifecycle.update(stream, StreamConfiguration(ScalingPolicy.by_event_rate(1, 4, 1)))
    assert "merge" not in {action for _, action in actions(stream)}
    load(stream, seconds=300, rate=8)
    assert "split" in {action for _, action in actions(stream)}


def test_host_that_is_an_hour_ahead_merges_no_busy_segments() -> None:
    stream = busy(minutes=5, rate=3)
    scale_stream(stream, [0], HALVES)
    load(stream, seconds=300, rate=3)
    ahead = FakeRuntime()
    ahead.wall_ms = stream.runtime.now_ms() + 3_600_000
    late = StreamLog(stream.store, stream.name, ahead)
    late.view()
    assert actions(late) == [("1#1", "none"), ("2#1", "none")]


def test_segments_without_writes_for_20_minutes_merge_down_to_the_minimum() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(2, 4, 3))
    scale_stream(stream, [0], [KeyRange(0.0, 0.125), KeyRange(0.125, 1 / 3)])
    stream.runtime.sleep(1_200)
    assert {action for _, action in actions(stream)} == {"none"}
    stream.runtime.sleep(1)
    assert actions(stream) == [("3#1", "cold"), ("4#1", "cold"), ("1#0", "merge"), ("2#0", "merge")]
    assert segments(stream) == ["3#1", "4#1", "5#2"]
    stream.runtime.sleep(10_000)
    assert actions(stream) == [("3#1", "cold"), ("4#1", "cold"), ("5#2", "none")]
    assert len(segments(stream)) == 3


def test_slow_segments_merge_while_they_are_written() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(1_000, 4, 1))
    scale_stream(stream, [0], [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)])
    load(stream, seconds=22 * 60, rate=1)
    found = run_scaling(stream)
    assert [row["action"] for row in found.rows()] == ["merge", "merge"]
    assert [row["epoch"] for row in found.rows()] == [2, 2]
    assert "too slow" in found.rows()[0]["reason"]
    assert segments(stream) == ["3#2"]


def test_explain_changes_nothing_and_can_be_repeated() -> None:
    stream = busy()
    before = stream.log.refresh()
    first = explain_scaling(stream)
    assert [r.action.value for r in first.decision.requests] == ["split"]
    assert explain_scaling(reopen(stream)) == first
    assert stream.log.refresh() == before
    assert not stream.store.exists(rates_key(stream.path))
    assert first.outcomes == ()
    assert [row["epoch"] for row in first.rows()] == [None]


def test_frequent_runs_decide_like_a_single_one() -> None:
    often, once = busy(minutes=0), busy(minutes=0)
    for _ in range(10):
        load(often, seconds=60, rate=5)
        load(once, seconds=60, rate=5)
        assert {row["action"] for row in run_scaling(often).rows()} <= {"none", "wait"}
    load(often, seconds=120, rate=5)
    load(once, seconds=120, rate=5)
    assert run_scaling(often).rows() == run_scaling(once).rows()
    assert segments(often) == segments(once) == ["1#1", "2#1"]


def test_run_stores_the_rates_and_a_dry_run_reads_them() -> None:
    stream = busy(minutes=5)
    run_scaling(stream)
    assert isinstance(stream.store, Spy)
    stream.store.calls.clear()
    assert explain_scaling(reopen(stream)).rows() == explain_scaling(stream).rows()
    assert stream.store.count("get", "rates.json") == 2
    assert stream.store.count("put") == 0


def test_concurrent_runs_scale_once() -> None:
    stream = busy()
    other = reopen(stream)
    assert len(explain_scaling(other).decision.requests) == 1
    with at_failpoint("commit.before", lambda: run_scaling(other)):
        found = run_scaling(stream)
    assert found.outcomes[0].epoch == 1, "the other run's epoch"
    assert segments(stream) == ["1#1", "2#1"]


def test_request_after_another_scale_is_dropped_and_reported() -> None:
    stream = busy()
    other = reopen(stream)
    halves = [KeyRange(0.0, 0.125), KeyRange(0.125, 1.0)]
    with at_failpoint("commit.before", lambda: scale_stream(other, [0], halves)):
        found = run_scaling(stream)
    (row,) = found.rows()
    assert row["action"] == "split"
    assert row["epoch"] is None
    assert "another scale came first" in row["dropped"]
    assert segments(stream) == ["1#1", "2#1"]


def test_merge_below_a_newly_raised_minimum_is_dropped() -> None:
    stream = stream_with(POLICY)
    scale_stream(stream, [0], [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)])
    stream.runtime.sleep(1_201)
    other = reopen(stream)
    raised = StreamConfiguration(ScalingPolicy.by_event_rate(2, 4, 2))
    with at_failpoint("commit.before", lambda: lifecycle.update(other, raised)):
        found = run_scaling(stream)
    assert "at least 2" in str(found.outcomes[0].dropped)
    assert len(segments(stream)) == 2


def test_dropped_request_does_not_stop_the_others() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(2, 4, 2))
    load(stream, seconds=12 * 60, rate=10)
    assert len(explain_scaling(stream).decision.requests) == 2
    other = reopen(stream)
    ranges = [KeyRange(0.0, 0.1), KeyRange(0.1, 0.5)]
    with at_failpoint("commit.before", lambda: scale_stream(other, [0], ranges)):
        found = run_scaling(stream)
    assert [outcome.epoch for outcome in found.outcomes] == [None, 2]
    assert segments(stream) == ["2#1", "3#1", "4#2", "5#2"]


def test_stream_that_is_sealed_during_a_run_is_not_scaled() -> None:
    stream = busy()
    other = reopen(stream)
    with at_failpoint("commit.before", lambda: lifecycle.seal(other)):
        assert "was sealed" in str(run_scaling(stream).outcomes[0].dropped)
    for found in (run_scaling(stream), explain_scaling(stream)):
        assert [row["reason"] for row in found.rows()] == ["the stream is SEALED"]


def test_run_on_a_stream_of_fixed_segments_neither_scales_nor_reads_its_log() -> None:
    stream = make_stream(Spy(), segments=2)
    load(stream, seconds=60, rate=9)
    assert isinstance(stream.store, Spy)
    stream.store.calls.clear()
    found = run_scaling(stream).rows()
    assert stream.store.count("get") <= 1
    assert [row["action"] for row in found] == ["none", "none"]
    assert [row["r2"] for row in found] == [None, None]
    shown = explain_scaling(stream).rows()
    assert shown == found
    assert stream.store.count("get") <= 2
    assert not stream.store.exists(rates_key(stream.path))


def test_stream_that_does_not_exist_is_an_error() -> None:
    stream = busy(minutes=0)
    lifecycle.seal(stream)
    lifecycle.delete(stream)
    for run in (run_scaling, explain_scaling):
        with pytest.raises(NoSuchStream):
            run(stream)


def begun(stream: StreamLog) -> Transaction:
    life = stream.view().life
    opened = txn_lifecycle.begin(stream, life, lease_ms=600_000, execution_ms=86_400_000)
    return Transaction(stream, opened.transaction_id)


def test_transactions_count_evenly_over_their_lives() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(2, 4, 2))
    for minute in range(14):
        txn = begun(stream)
        for i in range(60 * 10):
            txn.write_event(b"e" * 100, f"key-{i % 64}")
        stream.runtime.sleep(60)
        txn.commit()
        if minute < 9:
            assert {row["action"] for row in explain_scaling(stream).rows()} == {"wait"}
    rows = explain_scaling(stream).rows()
    assert sum(row["r10"] for row in rows) == pytest.approx(10, rel=0.01)
    assert [row["action"] for row in rows] == ["split", "split"]


def test_rolling_transaction_changes_neither_rates_nor_decisions() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(2, 4, 2))
    load(stream, seconds=12 * 60, rate=10)
    txn = begun(stream)
    txn.write_event(b"late", "key-1")
    first, second = stream.view().active.segments
    halves = [KeyRange(0.0, 0.25), KeyRange(0.25, 0.5)]
    scale_stream(stream, [first.segment_id], halves)
    before = {row["segment"]: row for row in explain_scaling(stream).rows()}
    assert before[str(second)]["action"] == "split"
    txn.commit()
    rolled = stream.view().active
    assert rolled.reference == 1, "the same layout under a newer epoch"
    assert second.segment_id not in rolled.segment_ids
    after = explain_scaling(stream).rows()
    assert [row["action"] for row in after] == [before[s]["action"] for s in ("2#1", "3#1", "1#0")]
    assert after[-1]["reason"] == before[str(second)]["reason"]
    assert run_scaling(stream).outcomes[0].epoch == rolled.number + 1


def skewed() -> StreamLog:
    """Return a busy stream whose keys are all in the first tenth of the key space."""
    stream = stream_with(POLICY)
    low = [key for key in map(str, range(2_000)) if position(key) < 0.1][:64]
    assert isinstance(stream.runtime, FakeRuntime)
    for _ in range(72):
        stream.runtime.sleep(10)
        write(stream, [(key, b"e") for key in low])
    return stream


def test_split_by_keys_balances_a_skewed_load() -> None:
    halves, keys = explain_scaling(skewed()), explain_scaling(skewed(), use_keys=True)
    (even,), (cut,) = halves.decision.requests, keys.decision.requests
    assert [r.high for r in even.ranges] == pytest.approx([1 / 3, 2 / 3, 1])
    assert [r.high < 0.1 for r in cut.ranges] == [True, True, False]
    assert "34% instead of 100%" in keys.rows()[0]["reason"]


def test_segment_under_a_policy_by_bytes_is_not_split_by_keys() -> None:
    stream = skewed()
    lifecycle.update(stream, StreamConfiguration(ScalingPolicy.by_data_rate(1, 2, 1)))
    stream.runtime.sleep(1)
    write(stream, [(None, b"e" * 1_000)] * 5_000)
    load(stream, seconds=300, rate=100)
    (request,) = explain_scaling(stream, use_keys=True).decision.requests
    assert [r.high for r in request.ranges] == [0.5, 1.0]


def test_shorter_pace_splits_earlier() -> None:
    stream = busy(minutes=0)
    load(stream, seconds=12, rate=5, every=0.2)
    assert explain_scaling(stream).decision.requests == ()
    quick = explain_scaling(stream, PACE.scaled(1 / 60))
    assert [r.action.value for r in quick.decision.requests] == ["split"]


def test_decision_by_a_clock_behind_the_log_is_the_same() -> None:
    stream = busy()
    assert explain_scaling(stream, now_ms=0) == explain_scaling(
        stream, now_ms=stream.view().timestamp_ms
    )


# Wrong clocks

HOUR_MS = 3_600_000


@pytest.mark.parametrize("wrong_ms", [-24 * HOUR_MS, -HOUR_MS, HOUR_MS, 87_600 * HOUR_MS])
@pytest.mark.parametrize("stored", [True, False])
def test_commit_of_a_host_with_a_wrong_clock_does_not_hide_later_load(
    wrong_ms: int, stored: bool
) -> None:
    stream = busy(minutes=2)
    wrong = FakeRuntime()
    wrong.wall_ms = stream.runtime.now_ms() + wrong_ms
    other = StreamLog(stream.store, stream.name, wrong)
    other.log.maintain = None
    write(other, [("key", b"e")])
    if stored:
        run_scaling(stream)
    load(stream, seconds=60 * 12, rate=5)
    assert actions(reopen(stream)) == [("0#0", "split")]


def test_commit_of_a_host_that_was_ahead_makes_no_busy_segment_cold() -> None:
    stream = stream_with(ScalingPolicy.by_event_rate(2, 4, 1))
    scale_stream(stream, [0], [KeyRange(0.0, 0.5), KeyRange(0.5, 1.0)])
    load(stream, seconds=60 * 5, rate=4)
    wrong = FakeRuntime()
    wrong.wall_ms = stream.runtime.now_ms() + 24 * HOUR_MS
    other = StreamLog(stream.store, stream.name, wrong)
    other.log.maintain = None
    write(other, [("key", b"e")])
    load(stream, seconds=60 * 5, rate=4)
    assert "merge" not in {action for _, action in actions(stream)}
