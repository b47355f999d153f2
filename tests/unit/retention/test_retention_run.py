from __future__ import annotations

from functools import partial

import pytest

from pravega_spark.config.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import publish, subscribe, unsubscribe
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import NoSuchStream, TooBusy, TruncatedData
from pravega_spark.retention import run
from pravega_spark.retention.decision import RetentionRule
from pravega_spark.retention.explanation import RetentionExplanation
from pravega_spark.retention.run import explain_retention, parse_options, run_retention
from pravega_spark.txn import lifecycle as txn_lifecycle
from pravega_spark.txn import sweeper
from pravega_spark.values.segments import SegmentRange, StreamCut
from tests.harness import failpoints
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.simulated_kills import Killed, kill
from tests.harness.small_streams import events_of, make_stream, reopen, scale, write
from tests.harness.small_tables import clean, versions

MINUTE_MS = 60_000
NO_SWEEP = parse_options(sweep=False)


def made(policy: RetentionPolicy | None, commits: int = 10) -> StreamLog:
    """Return a stream with an event of ten bytes every minute, the last one just now."""
    runtime = FakeRuntime()
    stream = StreamLog(memory(runtime), "s/t", runtime)
    stream.log.maintain = None
    lifecycle.create(stream, 1, StreamConfiguration(ScalingPolicy.fixed(1), policy))
    grow(stream, commits)
    return stream


def grow(stream: StreamLog, commits: int) -> None:
    first = stream.view().segment(0).next_offset
    for n in range(first, first + commits):
        stream.runtime.sleep(60)
        write(stream, [(None, b"%010d" % n)])


def at(offset: int) -> StreamCut:
    return StreamCut("s/t", 1, {0: offset})


def head(stream: StreamLog) -> int:
    return stream.view().head.positions[0]


def losses(found: RetentionExplanation) -> dict[str, int]:
    """Return how many events each subscriber loses that is passed."""
    return {passed.subscriber: passed.loses.events for passed in found.passed}


def test_by_time_all_commits_older_than_the_minimum_are_truncated() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    found = explain_retention(stream)
    assert (found.rule, found.cut) == (RetentionRule.MINIMUM, at(7))
    assert (found.goes.events, found.goes.size_bytes, found.goes.seconds) == (7, 70, 540)
    assert (found.stays.events, found.stays.size_bytes, found.stays.seconds) == (3, 30, 120)
    assert found.held_by == "minimum"
    assert head(stream) == 0
    done = run_retention(stream, NO_SWEEP)
    assert done.explanation == found
    assert done.truncated is not None
    assert (done.truncated.events, head(stream)) == (7, 7)
    assert stream.view().truncated_by.startswith(" by retention at version")


def test_maximum_by_size_truncates_inside_a_large_commit() -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="3555 bytes"), commits=0)
    subscribe(stream, "s/slow", 0, protect=True)
    write(stream, [(None, b"x" * (20 + n % 3)) for n in range(300)])
    done = run_retention(stream, NO_SWEEP)
    assert losses(done.explanation) == {"s/slow": 300 - done.explanation.stays.events}
    kept = [len(event) for _, event in events_of(stream, 0)]
    assert sum(kept) == done.explanation.stays.size_bytes <= 3_555
    assert sum(kept) > 3_555 - 22, "no more events than necessary"
    assert run_retention(reopen(stream), NO_SWEEP).truncated is None
    write(stream, [(None, b"y" * 100)])
    run_retention(stream, NO_SWEEP)
    left = [len(event) for _, event in events_of(stream, 0)]
    assert 3_555 - 22 < sum(left) <= 3_555


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (RetentionPolicy.by_consumption(maximum="60 B"), 60),
        (RetentionPolicy.by_consumption(minimum="50 B", maximum="60 B"), 60),
        (RetentionPolicy.by_consumption(minimum="61 B", maximum="69 B"), 70),
        (RetentionPolicy.by_size(50, maximum=60), 60),
    ],
)
def test_limits_by_size_hold_inside_a_commit_of_a_sealed_segment(
    policy: RetentionPolicy, kept: int
) -> None:
    stream = made(policy, commits=0)
    write(stream, [(None, b"x" * 10)] * 10)
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    write(stream, [(None, b"x" * 10)])
    done = run_retention(stream, NO_SWEEP)
    assert done.explanation.stays.size_bytes == kept
    assert head(stream) == (110 - kept) // 10
    assert run_retention(stream, NO_SWEEP).truncated is None


def test_maximum_truncates_consumed_events_first() -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="300 bytes"), commits=0)
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    left, right = stream.view().active.segment_ids
    for n in range(10):
        write(stream, [(f"key{10 * n + m}", b"%010d" % m) for m in range(10)])
    ends = dict(stream.view().tail)
    subscribe(stream, "s/slow", 0, start=StreamCut("s/t", 1, {left: 0, right: ends[right]}))
    assert ends[left] > 30
    run_retention(stream, NO_SWEEP)
    assert stream.view().head.positions == {left: ends[left] - 30, right: ends[right]}


def test_second_run_changes_nothing() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    run_retention(stream, NO_SWEEP)
    version = stream.view().version
    done = run_retention(reopen(stream), NO_SWEEP)
    assert (done.truncated, done.sampled, done.explanation.cut) == (None, False, None)
    assert stream.view().version == version


def test_one_commit_truncates_samples_and_removes_passed_samples() -> None:
    stream = made(RetentionPolicy.by_time("15 min"))
    assert run_retention(stream, NO_SWEEP).sampled
    (first,) = stream.view().samples
    assert (first.tail.positions, first.size_bytes) == ({0: 10}, 100)
    assert first.version == stream.view().version
    grow(stream, 30)
    before = stream.view().version
    done = run_retention(stream, NO_SWEEP)
    assert stream.view().version == before + 1
    assert done.sampled
    assert done.truncated is not None
    assert [s.tail.positions for s in stream.view().samples] == [{0: 40}]
    assert head(stream) == 25


def test_sample_is_taken_at_its_frequency_and_only_of_new_events() -> None:
    stream = made(RetentionPolicy.by_time("10 days"))
    assert run_retention(stream, NO_SWEEP).sampled
    grow(stream, 29)
    assert not run_retention(stream, NO_SWEEP).sampled
    assert run_retention(stream, parse_options(sample_every="20 min", sweep=False)).sampled
    stream.runtime.sleep(7_200)
    assert not run_retention(stream, NO_SWEEP).sampled
    grow(stream, 1)
    assert run_retention(stream, NO_SWEEP).sampled


def test_too_many_samples_are_thinned_in_their_older_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_SAMPLES", 8)
    stream = made(RetentionPolicy.by_time("10 days"), commits=0)
    options = parse_options(sample_every=0, sweep=False)
    for _ in range(9):
        grow(stream, 1)
        run_retention(stream, options)
    found = [sample.tail.positions[0] for sample in stream.view().samples]
    assert found == [1, 3, 5, 6, 7, 8, 9]


def test_samples_replace_versions_that_were_cleaned_up() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    lifecycle.update(stream, StreamConfiguration(retention=RetentionPolicy.by_time("10 days")))
    run_retention(stream, NO_SWEEP)
    grow(stream, 2)
    assert isinstance(stream.runtime, FakeRuntime)
    clean(stream.log, stream.runtime, stream.view().version - 1)
    assert 5 not in versions(stream.log)
    grow(stream, 1)
    age = explain_retention(stream).stays.seconds
    assert age >= 3_600, "the age of the sample, the oldest known entry"
    lifecycle.update(stream, StreamConfiguration(retention=RetentionPolicy.by_time("63 min")))
    found = explain_retention(stream)
    assert (found.rule, found.cut) == (RetentionRule.MINIMUM, at(10))


def test_by_size_the_newest_bytes_stay() -> None:
    stream = made(RetentionPolicy.by_size(35))
    assert explain_retention(stream).cut == at(6)
    run_retention(stream, NO_SWEEP)
    assert [event for _, event in events_of(stream, 0)] == [b"%010d" % n for n in range(6, 10)]


def test_subscribers_hold_unconsumed_data_and_are_named() -> None:
    stream = made(RetentionPolicy.by_consumption())
    assert explain_retention(stream).rule is RetentionRule.NO_SUBSCRIBER
    assert explain_retention(stream).held_by == RetentionRule.NO_SUBSCRIBER.value
    subscribe(stream, "s/slow", 0)
    subscribe(stream, "s/fast", 0)
    assert explain_retention(stream).rule is RetentionRule.NO_SUBSCRIBER, "without a published cut"
    publish(stream, "s/fast", 0, at(8))
    publish(stream, "s/slow", 0, at(2))
    found = explain_retention(stream)
    assert (found.rule, found.cut) == (RetentionRule.CONSUMED, at(2))
    (slow, fast) = found.claims
    assert (slow.holder, slow.holds.events, slow.holds.size_bytes) == ("subscriber s/slow", 8, 80)
    assert (fast.holder, fast.cut, fast.holds.events) == ("subscriber s/fast", at(8), 2)
    assert (round(slow.holds.seconds), round(fast.holds.seconds)) == (7 * 60, 60)
    run_retention(stream, NO_SWEEP)
    assert head(stream) == 2
    unsubscribe(stream, "s/slow", 1)
    run_retention(stream, NO_SWEEP)
    assert head(stream) == 8


def test_protected_subscriber_holds_data_before_it_publishes() -> None:
    stream = made(RetentionPolicy.by_consumption(minimum="3 min"))
    subscribe(stream, "s/new", 0, protect=True)
    found = explain_retention(stream)
    assert (found.rule, found.cut, found.held_by) == (
        RetentionRule.CONSUMED,
        None,
        "subscriber s/new",
    )
    publish(stream, "s/new", 0, at(9))
    assert explain_retention(stream).cut == at(7), "the minimum holds the rest"


def test_maximum_passes_a_slow_subscriber_which_is_named_and_recorded() -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="250 s"))
    subscribe(stream, "s/slow", 0)
    publish(stream, "s/slow", 0, at(2))
    found = explain_retention(stream)
    assert (found.rule, found.cut) == (RetentionRule.MAXIMUM, at(5))
    assert losses(found) == {"s/slow": 3}
    run_retention(stream, NO_SWEEP)
    commit = stream.log.reader.commit(stream.view().version, light=True)
    assert commit is not None
    parameters = commit.info["operationParameters"]
    assert (parameters["pastSubscribers"], parameters["by"]) == ('["s/slow"]', '"retention"')
    assert parameters["reason"] == '"all beyond the maximum"'
    rng = SegmentRange("s/t", 1, 0, 2, 4)
    with pytest.raises(TruncatedData, match="truncated by retention"):
        stream.chunks(rng)


def test_idle_subscriber_expires_only_if_asked_and_is_recorded() -> None:
    stream = made(RetentionPolicy.by_consumption())
    subscribe(stream, "s/idle", 3)
    publish(stream, "s/idle", 3, at(2))
    run_retention(stream, NO_SWEEP)
    stream.runtime.sleep(3_600)
    subscribe(stream, "s/active", 0)
    publish(stream, "s/active", 0, at(6))
    assert explain_retention(stream).idle == ()
    options = parse_options(expire="30 min", sweep=False)
    assert explain_retention(stream, options).idle == ("s/idle",)
    assert head(stream) == 2
    done = run_retention(stream, options)
    assert (done.explanation.idle, head(stream)) == (("s/idle",), 6)
    assert done.truncated is not None
    commit = stream.log.reader.commit(done.truncated.version, light=True)
    assert commit is not None
    parameters = commit.info["operationParameters"]
    assert (parameters["expired"], parameters.get("pastSubscribers")) == ('["s/idle"]', None)
    expired = stream.view().subscriber("s/idle")
    assert expired is not None
    assert (expired.removed, expired.generation, expired.bound) == ("idle", 3, None)
    assert [s.name for s in stream.view().subscribers] == ["s/active"]


def test_caught_up_subscriber_is_not_idle() -> None:
    stream = made(RetentionPolicy.by_consumption())
    subscribe(stream, "s/quiet", 0)
    tail = stream.view().tail
    publish(stream, "s/quiet", 0, tail)
    options = parse_options(expire="30 min", sweep=False)
    stream.runtime.sleep(3_600)
    assert explain_retention(stream, options).idle == ()
    write(stream, [("k", b"unread")])
    stream.runtime.sleep(60)
    assert explain_retention(stream, options).idle == (), "its event has waited for only a minute"
    stream.runtime.sleep(3_600)
    assert explain_retention(stream, options).idle == ("s/quiet",)


def test_idle_subscriber_expires_without_a_truncation() -> None:
    stream = made(RetentionPolicy.by_consumption())
    subscribe(stream, "s/idle", 0)
    stream.runtime.sleep(3_600)
    done = run_retention(stream, parse_options(expire="1 ms", sweep=False))
    assert (done.truncated, done.explanation.idle) == (None, ("s/idle",))
    assert stream.view().subscribers == []


def test_head_does_not_move_to_another_cut_of_the_same_position() -> None:
    stream = made(RetentionPolicy.by_consumption())
    subscribe(stream, "s/g", 0)
    publish(stream, "s/g", 0, at(10))
    assert run_retention(stream, NO_SWEEP).truncated is not None
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    version = stream.view().version
    done = run_retention(stream, parse_options(sample_every=0, sweep=False))
    assert (done.truncated, done.sampled, done.explanation.cut) == (None, False, None)
    assert stream.view().version == version


def test_stream_without_a_policy_or_in_sealing_is_unchanged_and_a_deleted_one_is_refused() -> None:
    stream = made(None)
    version = stream.view().version
    assert run_retention(stream, NO_SWEEP).explanation.rule is RetentionRule.NO_POLICY
    other = made(RetentionPolicy.by_time("1 min"))
    txn_lifecycle.begin(other, 1, lease_ms=60_000, execution_ms=60_000)

    def during() -> None:
        before = other.view()
        assert before.record.state is StreamState.SEALING
        assert run_retention(other, NO_SWEEP).explanation.rule is RetentionRule.SEALING
        assert other.view().version == before.version

    with at_failpoint("seal.sealing", during):
        lifecycle.seal(other, sweeper.end_all_transactions)
    assert stream.view().version == version
    lifecycle.delete(other)
    with pytest.raises(NoSuchStream):
        run_retention(other, NO_SWEEP)


def test_sealed_stream_is_truncated_up_to_its_end() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    lifecycle.seal(stream)
    assert run_retention(stream, NO_SWEEP).truncated is not None
    assert head(stream) == 7
    stream.runtime.sleep(600)
    done = run_retention(stream, NO_SWEEP)
    assert done.truncated is not None
    assert (done.truncated.events, stream.view().head) == (3, stream.view().tail)
    assert run_retention(reopen(stream), NO_SWEEP).truncated is None


def test_sealed_stream_keeps_the_data_of_its_subscribers() -> None:
    stream = made(RetentionPolicy.by_consumption(minimum="2 min"))
    subscribe(stream, "s/g", 0, protect=True)
    lifecycle.seal(stream)
    stream.runtime.sleep(600)
    assert run_retention(stream, NO_SWEEP).truncated is None
    publish(stream, "s/g", 0, at(4))
    run_retention(stream, NO_SWEEP)
    assert head(stream) == 4
    publish(stream, "s/g", 0, StreamCut.LATEST)
    run_retention(stream, NO_SWEEP)
    assert stream.view().head == stream.view().tail


def test_sealed_stream_is_truncated_to_its_maximum_by_size() -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="45 bytes"), commits=0)
    subscribe(stream, "s/slow", 0, protect=True)
    write(stream, [(None, b"%010d" % n) for n in range(10)])
    lifecycle.seal(stream)
    run_retention(stream, NO_SWEEP)
    assert head(stream) == 6
    shorter = StreamConfiguration(ScalingPolicy.fixed(1), RetentionPolicy.by_size("20 bytes"))
    lifecycle.update(stream, shorter)
    publish(stream, "s/slow", 0, StreamCut.LATEST)
    run_retention(stream, NO_SWEEP)
    assert head(stream) == 6, "the only entries are before the first and after the last event"


def test_published_cuts_stay_valid_when_the_policy_changes() -> None:
    stream = made(None)
    subscribe(stream, "s/g", 0)
    publish(stream, "s/g", 0, at(4))

    def cut_with(policy: RetentionPolicy | None) -> StreamCut | None:
        lifecycle.update(stream, StreamConfiguration(ScalingPolicy.fixed(1), policy))
        return explain_retention(stream).cut

    assert cut_with(RetentionPolicy.by_consumption()) == at(4)
    assert cut_with(None) is None
    assert cut_with(RetentionPolicy.by_size(80)) == at(2)
    assert cut_with(RetentionPolicy.by_time("1 min")) == at(9)
    assert cut_with(RetentionPolicy.by_consumption("8 minutes")) == at(2)


def test_subscriber_that_joins_during_a_decision_is_not_passed() -> None:
    stream = made(RetentionPolicy.by_consumption(minimum="3 min"))
    subscribe(stream, "s/fast", 0, start=StreamCut.LATEST)
    other = reopen(stream)
    for point in ("retention.decided", "truncate.history"):
        name = f"s/{point}"
        join = partial(subscribe, other, name, 0, protect=True)
        with at_failpoint(point, join):
            done = run_retention(stream, NO_SWEEP)
        assert (head(stream), done.truncated) == (0, None)
        assert done.explanation.held_by == f"subscriber {name}"
        unsubscribe(other, name, 1)
    run_retention(stream, NO_SWEEP)
    assert head(stream) == 7


def test_two_runs_at_once_truncate_once() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    other = reopen(stream)
    version = stream.view().version
    for point in ("retention.decided", "truncate.history"):
        with at_failpoint(point, lambda: run_retention(other, NO_SWEEP)):
            run_retention(stream, NO_SWEEP)
    assert (head(stream), stream.view().version) == (7, version + 1)


def test_event_written_during_a_decision_does_not_change_it() -> None:
    stream = made(RetentionPolicy.by_size(30))
    other = reopen(stream)
    with at_failpoint("truncate.history", lambda: write(other, [(None, b"late")])):
        done = run_retention(stream, NO_SWEEP)
    assert done.explanation.cut == at(7)
    assert head(stream) == 7
    (sample,) = stream.view().samples
    assert sample.tail.positions == {0: 10}, "the tail that the decision was made on"


def test_subscriber_that_publishes_during_a_run_does_not_delay_it() -> None:
    stream = made(RetentionPolicy.by_consumption())
    for name in ("s/g", "s/h"):
        subscribe(stream, name, 0, protect=True)
        publish(stream, name, 0, at(4))
    other = reopen(stream)
    with at_failpoint("retention.decided", lambda: publish(other, "s/g", 0, at(5))):
        done = run_retention(stream, NO_SWEEP)
    assert done.explanation.cut == at(4)
    assert head(stream) == 4


@pytest.mark.parametrize("goes_back", [True, False])
def test_run_decides_again_if_an_idle_or_passed_subscriber_returns(*, goes_back: bool) -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="5 min"))
    subscribe(stream, "s/g", 0, start=at(2))
    subscribe(stream, "s/h", 0, start=at(8))
    other = reopen(stream)

    def return_late() -> None:
        if goes_back:
            subscribe(other, "s/h", 1, start=at(1))
        else:
            publish(other, "s/h", 0, at(9))

    options = parse_options(expire="1 min", sweep=False)
    stream.runtime.sleep(61)
    with at_failpoint("truncate.history", return_late):
        done = run_retention(stream, options)
    assert done.explanation.idle == ("s/g",)
    assert [s.name for s in stream.view().subscribers] == ["s/h"]
    assert head(stream) == (6 if goes_back else 9)


def test_run_gives_up_if_subscribers_change_at_every_attempt() -> None:
    stream = made(RetentionPolicy.by_consumption())
    other, generation = reopen(stream), iter(range(100))
    failpoints.register(
        "retention.decided", lambda: subscribe(other, "s/g", next(generation), protect=True)
    )
    try:
        with pytest.raises(TooBusy, match="Try again"):
            run_retention(stream, NO_SWEEP)
    finally:
        failpoints.register("retention.decided", None)


@pytest.mark.parametrize(
    "point",
    ["retention.decided", "truncate.history", "commit.before", "retention.truncated",
     "sweep.history", "sweep.delete"],
)  # fmt: skip
def test_killed_run_is_finished_by_the_next(point: str) -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    options = parse_options(grace=0, retain=0)

    with at_failpoint(point, kill, own=True) as hit, pytest.raises(Killed):
        run_retention(reopen(stream), options)
    assert hit.hits == 1
    stream = reopen(stream)
    run_retention(stream, options)
    assert head(stream) == 7
    assert [event for _, event in events_of(stream, 0)] == [b"%010d" % n for n in (7, 8, 9)]


def test_runs_sweep_truncated_files_when_no_version_retains_them() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    options = parse_options(grace=0, retain=0)
    first = run_retention(stream, options).swept
    assert first is not None
    swept = first.files
    for _ in range(4):
        stream.runtime.sleep(4_000)
        grow(stream, 1)
        found = run_retention(stream, options).swept
        assert found is not None
        swept += found.files
    assert swept >= 10
    assert len(stream.store.list(f"{stream.path}/data")) <= 4


def test_scaled_stream_is_truncated_at_the_lower_bound_of_all_keys() -> None:
    stream = made(RetentionPolicy.by_consumption())
    view = scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    left, right = view.active.segment_ids
    write(stream, [(f"key{n}", b"x") for n in range(40)])
    for name, cut in (("a", {left: 3, right: 1}), ("b", {left: 1, right: 5})):
        subscribe(stream, f"s/{name}", 0)
        publish(stream, f"s/{name}", 0, StreamCut("s/t", 1, cut))
    run_retention(stream, NO_SWEEP)
    assert stream.view().head.positions == {left: 1, right: 1}
    subscribe(stream, "s/late", 0)
    publish(stream, "s/late", 0, at(4))
    assert explain_retention(stream).cut is None


def test_explanation_as_text_and_as_a_row() -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="250 s"))
    subscribe(stream, "s/slow", 0)
    publish(stream, "s/slow", 0, at(2))
    text = str(explain_retention(stream))
    assert text.splitlines() == [
        f"s/t at version {stream.view().version}: by consumption, at most 4.2 minutes",
        "  goes:  5 events, 50 B, 9.0 minutes (all beyond the maximum)",
        "  stays: 5 events, 50 B, 4.0 minutes",
        "  held by subscriber s/slow: 5 events, 50 B, 4.0 minutes",
        "  loses unread data because of the maximum: "
        "subscriber s/slow: 3 events, 30 B, 7.0 minutes",
    ]
    done = run_retention(stream, NO_SWEEP)
    assert done.row()["passed"]
    assert "nothing (all beyond the maximum)" not in str(explain_retention(stream))


def test_truncation_by_hand_during_a_run_wins() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    other = reopen(stream)
    with at_failpoint("retention.decided", lambda: truncate(other, at(8))):
        done = run_retention(stream, NO_SWEEP)
    assert (done.truncated, head(stream)) == (None, 8)


def test_commit_of_a_clock_that_is_ahead_has_no_age_below_zero() -> None:
    runtime, ahead = FakeRuntime(), FakeRuntime()
    store = memory(runtime)
    store.has_clock = False
    ahead.wall_ms += 40
    stream = make_stream(store, runtime)
    write(StreamLog(store, "s/t", ahead), [(None, b"x")])
    found = explain_retention(stream, now_ms=runtime.now_ms())
    assert (found.stays.events, found.stays.seconds) == (1, 0)
    assert "-0.0" not in str(found)
