from __future__ import annotations

from dataclasses import replace

import pytest

from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import publish, subscribe, unsubscribe
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import NoSuchStream, TooBusy, TruncatedData
from pravega_spark.model import SegmentRange, StreamCut
from pravega_spark.policies import RetentionPolicy, ScalingPolicy, StreamConfiguration
from pravega_spark.retention import retention_run
from pravega_spark.retention.retention_run import RetentionOptions, act, decide
from pravega_spark.retention.truncation_decision import RetentionRule
from pravega_spark.transactions import sweeper, transaction_lifecycle
from tests.harness import failpoints
from tests.harness.engine import (
    FakeRuntime,
    again,
    clean,
    events_of,
    memory,
    scale,
    versions,
    write,
)
from tests.harness.failpoints import at_failpoint

MINUTE_MS = 60_000
NO_SWEEP = RetentionOptions(sweep=False)


def made(policy: RetentionPolicy | None, commits: int = 10) -> StreamLog:
    """A stream that got an event of ten bytes every minute, the last one just now."""
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


def test_by_time_what_is_older_than_the_minimum_goes_to_the_commit() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    found = decide(stream)
    assert (found.rule, found.cut) == (RetentionRule.MINIMUM, at(7))
    assert (found.goes.events, found.goes.size_bytes, found.goes.seconds) == (7, 70, 540)
    assert (found.stays.events, found.stays.size_bytes, found.stays.seconds) == (3, 30, 120)
    assert found.held_by == "minimum"
    assert head(stream) == 0
    done = act(stream, NO_SWEEP)
    assert done.explanation == found
    assert done.truncated is not None
    assert (done.truncated.events, head(stream)) == (7, 7)
    assert stream.view().truncated_by.startswith(" by retention at version")


def test_the_maximum_by_size_is_kept_to_the_event_inside_a_large_commit() -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="3555 bytes"), commits=0)
    subscribe(stream, "s/slow", 0, protect=True)
    write(stream, [(None, b"x" * (20 + n % 3)) for n in range(300)])
    done = act(stream, NO_SWEEP)
    assert done.explanation.passed == ("s/slow",)
    kept = [len(event) for _, event in events_of(stream, 0)]
    assert sum(kept) == done.explanation.stays.size_bytes <= 3_555
    assert sum(kept) > 3_555 - 22, "not an event more than it must"
    assert act(again(stream), NO_SWEEP).truncated is None
    write(stream, [(None, b"y" * 100)])
    act(stream, NO_SWEEP)
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
def test_limits_by_size_hold_inside_a_commit_whose_segment_has_been_sealed(
    policy: RetentionPolicy, kept: int
) -> None:
    stream = made(policy, commits=0)
    write(stream, [(None, b"x" * 10)] * 10)
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    write(stream, [(None, b"x" * 10)])
    done = act(stream, NO_SWEEP)
    assert done.explanation.stays.size_bytes == kept
    assert head(stream) == (110 - kept) // 10
    assert act(stream, NO_SWEEP).truncated is None


def test_what_is_consumed_goes_before_what_is_not() -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="300 bytes"), commits=0)
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    left, right = stream.view().active.segment_ids
    for n in range(10):
        write(stream, [(f"key{10 * n + m}", b"%010d" % m) for m in range(10)])
    ends = dict(stream.view().tail)
    subscribe(stream, "s/slow", 0, start=StreamCut("s/t", 1, {left: 0, right: ends[right]}))
    assert ends[left] > 30
    act(stream, NO_SWEEP)
    assert stream.view().head.positions == {left: ends[left] - 30, right: ends[right]}


def test_a_run_after_a_run_has_nothing_to_do() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    act(stream, NO_SWEEP)
    version = stream.view().version
    done = act(again(stream), NO_SWEEP)
    assert (done.truncated, done.sampled, done.explanation.cut) == (None, False, None)
    assert stream.view().version == version


def test_truncation_and_sample_are_one_commit_and_passed_samples_go_in_it() -> None:
    stream = made(RetentionPolicy.by_time("15 min"))
    assert act(stream, NO_SWEEP).sampled
    (first,) = stream.view().samples
    assert (first.tail.positions, first.size_bytes) == ({0: 10}, 100)
    assert first.version == stream.view().version
    grow(stream, 30)
    before = stream.view().version
    done = act(stream, NO_SWEEP)
    assert stream.view().version == before + 1
    assert done.sampled
    assert done.truncated is not None
    assert [s.tail.positions for s in stream.view().samples] == [{0: 40}]
    assert head(stream) == 25


def test_samples_come_at_their_frequency_and_only_for_news() -> None:
    stream = made(RetentionPolicy.by_time("10 days"))
    assert act(stream, NO_SWEEP).sampled
    grow(stream, 29)
    assert not act(stream, NO_SWEEP).sampled
    assert act(stream, replace(NO_SWEEP, sample_every_ms=20 * MINUTE_MS)).sampled
    stream.runtime.sleep(7_200)
    assert not act(stream, NO_SWEEP).sampled
    grow(stream, 1)
    assert act(stream, NO_SWEEP).sampled


def test_too_many_samples_are_thinned_where_they_are_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_run, "MAX_SAMPLES", 8)
    stream = made(RetentionPolicy.by_time("10 days"), commits=0)
    options = replace(NO_SWEEP, sample_every_ms=0)
    for _ in range(9):
        grow(stream, 1)
        act(stream, options)
    found = [sample.tail.positions[0] for sample in stream.view().samples]
    assert found == [1, 3, 5, 6, 7, 8, 9]


def test_samples_stand_for_what_the_log_has_forgotten() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    lifecycle.update(stream, StreamConfiguration(retention=RetentionPolicy.by_time("10 days")))
    act(stream, NO_SWEEP)
    grow(stream, 2)
    clean(stream.log, stream.runtime, stream.view().version - 1)  # type: ignore[arg-type]
    assert 5 not in versions(stream.log)
    grow(stream, 1)
    age = decide(stream).stays.seconds
    assert age >= 3_600, "the oldest known place, the sample, is so old"
    lifecycle.update(stream, StreamConfiguration(retention=RetentionPolicy.by_time("63 min")))
    found = decide(stream)
    assert (found.rule, found.cut) == (RetentionRule.MINIMUM, at(10))


def test_by_size_the_newest_bytes_stay() -> None:
    stream = made(RetentionPolicy.by_size(35))
    assert decide(stream).cut == at(6)
    act(stream, NO_SWEEP)
    assert [event for _, event in events_of(stream, 0)] == [b"%010d" % n for n in range(6, 10)]


def test_subscribers_hold_what_they_have_not_consumed_and_are_named() -> None:
    stream = made(RetentionPolicy.by_consumption())
    assert decide(stream).rule is RetentionRule.NO_SUBSCRIBER
    assert decide(stream).held_by == RetentionRule.NO_SUBSCRIBER.value
    subscribe(stream, "s/slow", 0)
    subscribe(stream, "s/fast", 0)
    assert decide(stream).rule is RetentionRule.NO_SUBSCRIBER, "who has not published is ignored"
    publish(stream, "s/fast", 0, at(8))
    publish(stream, "s/slow", 0, at(2))
    found = decide(stream)
    assert (found.rule, found.cut) == (RetentionRule.CONSUMED, at(2))
    (slow, fast) = found.claims
    assert (slow.holder, slow.holds.events, slow.holds.size_bytes) == ("subscriber s/slow", 8, 80)
    assert (fast.holder, fast.cut, fast.holds.events) == ("subscriber s/fast", at(8), 2)
    assert (round(slow.holds.seconds), round(fast.holds.seconds)) == (7 * 60, 60)
    act(stream, NO_SWEEP)
    assert head(stream) == 2
    unsubscribe(stream, "s/slow", 1)
    act(stream, NO_SWEEP)
    assert head(stream) == 8


def test_a_protected_subscriber_holds_data_before_it_publishes() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    subscribe(stream, "s/new", 0, protect=True)
    found = decide(stream)
    assert (found.rule, found.cut, found.held_by) == (
        RetentionRule.CONSUMED,
        None,
        "subscriber s/new",
    )
    publish(stream, "s/new", 0, at(9))
    assert decide(stream).cut == at(7), "the minimum holds the rest"


def test_the_maximum_beats_a_slow_subscriber_who_is_named_and_told() -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="250 s"))
    subscribe(stream, "s/slow", 0)
    publish(stream, "s/slow", 0, at(2))
    found = decide(stream)
    assert (found.rule, found.cut, found.passed) == (RetentionRule.MAXIMUM, at(5), ("s/slow",))
    act(stream, NO_SWEEP)
    commit = stream.log.reader.commit(stream.view().version, light=True)
    assert commit is not None
    told = commit.info["operationParameters"]
    assert (told["pastSubscribers"], told["by"]) == ('["s/slow"]', '"retention"')
    assert told["reason"] == '"all beyond the maximum"'
    rng = SegmentRange("s/t", 1, 0, 2, 4)
    with pytest.raises(TruncatedData, match="truncated by retention"):
        stream.chunks(rng)


def test_idle_subscribers_expire_only_if_asked_and_it_is_told_and_recorded() -> None:
    stream = made(RetentionPolicy.by_consumption())
    subscribe(stream, "s/gone", 3)
    publish(stream, "s/gone", 3, at(2))
    act(stream, NO_SWEEP)
    stream.runtime.sleep(3_600)
    subscribe(stream, "s/here", 0)
    publish(stream, "s/here", 0, at(6))
    assert decide(stream).idle == ()
    options = replace(NO_SWEEP, expire_ms=30 * MINUTE_MS)
    assert decide(stream, options).idle == ("s/gone",)
    assert head(stream) == 2
    done = act(stream, options)
    assert (done.explanation.idle, head(stream)) == (("s/gone",), 6)
    assert done.truncated is not None
    commit = stream.log.reader.commit(done.truncated.version, light=True)
    assert commit is not None
    told = commit.info["operationParameters"]
    assert (told["expired"], told.get("pastSubscribers")) == ('["s/gone"]', None)
    gone = stream.view().subscriber("s/gone")
    assert gone is not None
    assert (gone.removed, gone.generation, gone.bound) == ("idle", 3, None)
    assert [s.group for s in stream.view().subscribers] == ["s/here"]


def test_a_subscriber_that_has_read_everything_is_not_idle() -> None:
    stream = made(RetentionPolicy.by_consumption())
    subscribe(stream, "s/quiet", 0)
    tail = stream.view().tail
    publish(stream, "s/quiet", 0, tail)
    options = replace(NO_SWEEP, expire_ms=30 * MINUTE_MS)
    stream.runtime.sleep(3_600)
    assert decide(stream, options).idle == ()
    write(stream, [("k", b"unread")])
    stream.runtime.sleep(60)
    assert decide(stream, options).idle == (), "an event has waited for a minute only"
    stream.runtime.sleep(3_600)
    assert decide(stream, options).idle == ("s/quiet",)


def test_an_idle_subscriber_alone_expires_without_a_truncation() -> None:
    stream = made(RetentionPolicy.by_consumption())
    subscribe(stream, "s/gone", 0)
    stream.runtime.sleep(3_600)
    done = act(stream, replace(NO_SWEEP, expire_ms=1))
    assert (done.truncated, done.explanation.idle) == (None, ("s/gone",))
    assert stream.view().subscribers == []


def test_a_head_that_is_only_said_in_other_words_after_a_scale_is_not_moved() -> None:
    stream = made(RetentionPolicy.by_consumption())
    subscribe(stream, "s/g", 0)
    publish(stream, "s/g", 0, at(10))
    assert act(stream, NO_SWEEP).truncated is not None
    scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    version = stream.view().version
    done = act(stream, replace(NO_SWEEP, sample_every_ms=0))
    assert (done.truncated, done.sampled, done.explanation.cut) == (None, False, None)
    assert stream.view().version == version


def test_a_stream_without_a_policy_or_being_sealed_is_left_alone_and_a_deleted_one_refused() -> (
    None
):
    stream = made(None)
    version = stream.view().version
    assert act(stream, NO_SWEEP).explanation.rule is RetentionRule.NO_POLICY
    other = made(RetentionPolicy.by_time("1 min"))
    transaction_lifecycle.begin(other, 1, lease_ms=60_000, execution_ms=60_000)

    def during() -> None:
        before = other.view()
        assert before.record.state is StreamState.SEALING
        assert act(other, NO_SWEEP).explanation.rule is RetentionRule.SEALING
        assert other.view().version == before.version

    with at_failpoint("seal.sealing", during):
        lifecycle.seal(other, sweeper.end_all_transactions)
    assert stream.view().version == version
    lifecycle.delete(other)
    with pytest.raises(NoSuchStream):
        act(other, NO_SWEEP)


def test_retention_of_a_sealed_stream_goes_on_to_its_end() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    lifecycle.seal(stream)
    assert act(stream, NO_SWEEP).truncated is not None
    assert head(stream) == 7
    stream.runtime.sleep(600)
    done = act(stream, NO_SWEEP)
    assert done.truncated is not None
    assert (done.truncated.events, stream.view().head) == (3, stream.view().tail)
    assert act(again(stream), NO_SWEEP).truncated is None


def test_a_sealed_stream_keeps_what_its_subscribers_need() -> None:
    stream = made(RetentionPolicy.by_consumption(minimum="2 min"))
    subscribe(stream, "s/g", 0, protect=True)
    lifecycle.seal(stream)
    stream.runtime.sleep(600)
    assert act(stream, NO_SWEEP).truncated is None
    publish(stream, "s/g", 0, at(4))
    act(stream, NO_SWEEP)
    assert head(stream) == 4
    publish(stream, "s/g", 0, StreamCut.LATEST)
    act(stream, NO_SWEEP)
    assert stream.view().head == stream.view().tail


def test_a_sealed_stream_keeps_its_maximum_by_size_to_the_event() -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="45 bytes"), commits=0)
    subscribe(stream, "s/slow", 0, protect=True)
    write(stream, [(None, b"%010d" % n) for n in range(10)])
    lifecycle.seal(stream)
    act(stream, NO_SWEEP)
    assert head(stream) == 6
    shorter = StreamConfiguration(ScalingPolicy.fixed(1), RetentionPolicy.by_size("20 bytes"))
    lifecycle.update(stream, shorter)
    publish(stream, "s/slow", 0, StreamCut.LATEST)
    act(stream, NO_SWEEP)
    assert head(stream) == 6, "the only entries are none of the events and all of them"


def test_policies_may_change_and_what_was_published_stays_valid() -> None:
    stream = made(None)
    subscribe(stream, "s/g", 0)
    publish(stream, "s/g", 0, at(4))

    def now(policy: RetentionPolicy | None) -> StreamCut | None:
        lifecycle.update(stream, StreamConfiguration(ScalingPolicy.fixed(1), policy))
        return decide(stream).cut

    assert now(RetentionPolicy.by_consumption()) == at(4)
    assert now(None) is None
    assert now(RetentionPolicy.by_size(80)) == at(2)
    assert now(RetentionPolicy.by_time("1 min")) == at(4)
    assert now(RetentionPolicy.by_consumption("8 minutes")) == at(2)


def test_a_subscriber_that_comes_while_it_is_decided_is_not_passed() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    other = again(stream)
    for point in ("retention.decided", "truncate.history"):
        name = f"s/{point}"
        with at_failpoint(point, lambda name=name: subscribe(other, name, 0, protect=True)):
            done = act(stream, NO_SWEEP)
        assert (head(stream), done.truncated) == (0, None)
        assert done.explanation.held_by == f"subscriber {name}"
        unsubscribe(other, name, 1)
    act(stream, NO_SWEEP)
    assert head(stream) == 7


def test_two_runs_at_once_truncate_once() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    other = again(stream)
    version = stream.view().version
    for point in ("retention.decided", "truncate.history"):
        with at_failpoint(point, lambda: act(other, NO_SWEEP)):
            act(stream, NO_SWEEP)
    assert (head(stream), stream.view().version) == (7, version + 1)


def test_events_that_come_meanwhile_change_nothing_that_was_decided() -> None:
    stream = made(RetentionPolicy.by_size(30))
    other = again(stream)
    with at_failpoint("truncate.history", lambda: write(other, [(None, b"late")])):
        done = act(stream, NO_SWEEP)
    assert done.explanation.cut == at(7)
    assert head(stream) == 7
    (sample,) = stream.view().samples
    assert sample.tail.positions == {0: 10}, "the tail at the time that was asked for"


def test_who_consumes_more_meanwhile_does_not_hold_up_a_run() -> None:
    stream = made(RetentionPolicy.by_consumption())
    for name in ("s/g", "s/h"):
        subscribe(stream, name, 0, protect=True)
        publish(stream, name, 0, at(4))
    other = again(stream)
    with at_failpoint("retention.decided", lambda: publish(other, "s/g", 0, at(5))):
        done = act(stream, NO_SWEEP)
    assert done.explanation.cut == at(4)
    assert head(stream) == 4


@pytest.mark.parametrize("goes_back", [True, False])
def test_who_is_idle_or_passed_and_comes_back_meanwhile_is_decided_on_anew(
    *, goes_back: bool
) -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="5 min"))
    subscribe(stream, "s/g", 0, start=at(2))
    subscribe(stream, "s/h", 0, start=at(8))
    other = again(stream)

    def comes_back() -> None:
        if goes_back:
            subscribe(other, "s/h", 1, start=at(1))
        else:
            publish(other, "s/h", 0, at(9))

    options = replace(NO_SWEEP, expire_ms=60_000)
    stream.runtime.sleep(61)
    with at_failpoint("truncate.history", comes_back):
        done = act(stream, options)
    assert done.explanation.idle == ("s/g",)
    assert [s.group for s in stream.view().subscribers] == ["s/h"]
    assert head(stream) == (6 if goes_back else 9)


def test_a_run_whose_ground_never_stands_still_gives_up() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    other, generation = again(stream), iter(range(100))
    failpoints.register(
        "retention.decided", lambda: subscribe(other, "s/g", next(generation), protect=True)
    )
    try:
        with pytest.raises(TooBusy, match="try again"):
            act(stream, NO_SWEEP)
    finally:
        failpoints.register("retention.decided", None)


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize(
    "point",
    ["retention.decided", "truncate.history", "commit.before", "retention.truncated",
     "sweep.history", "sweep.delete"],
)  # fmt: skip
def test_a_run_that_was_killed_is_finished_by_the_next(point: str) -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    options = replace(RetentionOptions(), grace_ms=0, retain_ms=0)

    def die() -> None:
        raise Killed

    with at_failpoint(point, die) as hit:
        try:
            act(again(stream), options)
        except Killed:
            assert hit.hits == 1
    stream = again(stream)
    act(stream, options)
    assert head(stream) == 7
    assert [event for _, event in events_of(stream, 0)] == [b"%010d" % n for n in (7, 8, 9)]


def test_a_run_sweeps_what_it_truncated_when_that_can_be_read_no_more() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    options = replace(RetentionOptions(), grace_ms=0, retain_ms=0)
    first = act(stream, options).swept
    assert first is not None
    swept = first.files
    for _ in range(4):
        stream.runtime.sleep(4_000)
        grow(stream, 1)
        found = act(stream, options).swept
        assert found is not None
        swept += found.files
    assert swept >= 10
    assert len(stream.store.list(f"{stream.path}/data")) <= 4


def test_a_scaled_stream_is_truncated_by_what_all_its_keys_allow() -> None:
    stream = made(RetentionPolicy.by_consumption())
    view = scale(stream, [0], [(0.0, 0.5), (0.5, 1.0)])
    left, right = view.active.segment_ids
    write(stream, [(f"key{n}", b"x") for n in range(40)])
    for name, cut in (("a", {left: 3, right: 1}), ("b", {left: 1, right: 5})):
        subscribe(stream, f"s/{name}", 0)
        publish(stream, f"s/{name}", 0, StreamCut("s/t", 1, cut))
    act(stream, NO_SWEEP)
    assert stream.view().head.positions == {left: 1, right: 1}
    subscribe(stream, "s/late", 0)
    publish(stream, "s/late", 0, at(4))
    assert decide(stream).cut is None


def test_the_explanation_is_told_in_lines_and_as_a_row() -> None:
    stream = made(RetentionPolicy.by_consumption(maximum="250 s"))
    subscribe(stream, "s/slow", 0)
    publish(stream, "s/slow", 0, at(2))
    text = str(decide(stream))
    assert text.splitlines() == [
        f"s/t at version {stream.view().version}: by consumption, at most 4.2 minutes",
        "  goes:  5 events, 50 B, 9.0 minutes (all beyond the maximum)",
        "  stays: 5 events, 50 B, 4.0 minutes",
        "  held by subscriber s/slow: 5 events, 50 B, 4.0 minutes",
        "  loses data to the maximum: subscriber s/slow",
    ]
    done = act(stream, NO_SWEEP)
    assert set(done.row()) == set(retention_run.ROW_SCHEMA.names)
    assert "nothing (all beyond the maximum)" not in str(decide(stream))


def test_who_truncates_by_hand_meanwhile_goes_first() -> None:
    stream = made(RetentionPolicy.by_time("3 min"))
    other = again(stream)
    with at_failpoint("retention.decided", lambda: truncate(other, at(8))):
        done = act(stream, NO_SWEEP)
    assert (done.truncated, head(stream)) == (None, 8)
