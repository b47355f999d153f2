"""Only a policy by consumption waits for subscribers; the others say whom they pass."""

from __future__ import annotations

import logging

import pytest

from pravega_spark.config.policies import RetentionPolicy, StreamConfiguration
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.subscribers import publish, subscribe
from pravega_spark.errors import HeldBySubscriber, TruncatedData
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.retention.decision import RetentionRule
from pravega_spark.retention.explanation import policy_text
from pravega_spark.retention.run import explain_retention, parse_options, run_retention
from pravega_spark.values.segments import StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, manager_of, memory
from tests.harness.small_streams import reopen, write

NO_SWEEP = parse_options(sweep=False)
TIME, SIZE = RetentionPolicy.by_time("3 min"), RetentionPolicy.by_size(30)
CONSUMPTION = RetentionPolicy.by_consumption()
LIMITED = RetentionPolicy.by_consumption(maximum="3 min")


def made(policy: RetentionPolicy) -> StreamLog:
    """Return a stream with ten events of ten bytes, one a minute, and two subscribers."""
    runtime = FakeRuntime()
    stream = StreamLog(memory(runtime), "s/t", runtime)
    stream.log.maintain = None
    lifecycle.create(stream, 1, StreamConfiguration(retention=policy))
    subscribe(stream, "slow", protect=True)
    subscribe(stream, "s/fast", 0, protect=True)
    for n in range(10):
        runtime.sleep(60)
        write(stream, [(None, b"%010d" % n)])
    publish(stream, "slow", None, at(2))
    publish(stream, "s/fast", None, at(9))
    return stream


def at(offset: int) -> StreamCut:
    return StreamCut("s/t", 1, {0: offset})


def losses(stream: StreamLog, policy: RetentionPolicy | None = None) -> dict[str, tuple[int, int]]:
    found = explain_retention(stream, policy=policy).passed
    return {lost.subscriber: (lost.loses.events, lost.loses.size_bytes) for lost in found}


@pytest.mark.parametrize("policy", [TIME, SIZE])
def test_policy_by_time_or_size_waits_for_no_subscriber_and_names_whom_it_passes(
    policy: RetentionPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pravega_spark.retention")
    stream = made(policy)
    found = explain_retention(stream)
    assert (found.rule, found.cut) == (RetentionRule.MINIMUM, at(7))
    assert [claim.holder for claim in found.claims] == ["minimum"]
    assert losses(stream) == {"slow": (5, 50)}
    assert found.passed[0].cut == at(2)
    lines = str(found).splitlines()
    assert "  loses unread data: subscriber slow: 5 events, 50 B, 7.0 minutes" in lines
    assert lines[-1] == "  only a policy by consumption waits for subscribers"

    done = run_retention(stream, NO_SWEEP)
    assert done.explanation == found
    assert done.truncated is not None
    assert (done.truncated.passed, stream.view().head) == (("slow",), at(7))
    assert done.row()["passed"] == "slow: 5 events, 50 B, 7.0 minutes"
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert "deleted unread data of slow: 5 events, 50 B, 7.0 minutes (all beyond" in record.message
    assert run_retention(stream, NO_SWEEP).explanation.passed == ()


def test_maximum_of_a_policy_by_consumption_warns(caplog: pytest.LogCaptureFixture) -> None:
    stream = made(LIMITED)
    done = run_retention(stream, NO_SWEEP)
    assert [str(lost) for lost in done.explanation.passed] == ["slow: 4 events, 40 B, 7.0 minutes"]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "slow: 4 events" in record.message


def test_idle_subscriber_is_reported_as_expired_and_not_as_passed() -> None:
    stream = made(TIME)
    stream.runtime.sleep(3_600)
    publish(stream, "s/fast", None, at(10))
    done = run_retention(stream, parse_options(sweep=False, expire="10 min"))
    assert (done.explanation.idle, done.explanation.passed) == (("slow",), ())


def test_switch_of_the_policy_is_explained_before_it_is_made() -> None:
    stream = made(CONSUMPTION)
    version = stream.view().version
    assert losses(stream) == {}
    assert losses(stream, TIME) == {"slow": (5, 50)}
    assert losses(stream, RetentionPolicy.by_size(5)) == {"slow": (7, 70)}
    assert losses(stream, LIMITED) == {"slow": (4, 40)}
    tried = explain_retention(stream, policy=TIME)
    assert (tried.policy, tried.cut) == (TIME, at(7))
    assert stream.view().version == version
    lifecycle.update(stream, StreamConfiguration(retention=TIME))
    assert run_retention(stream, NO_SWEEP).explanation.cut == tried.cut


def test_policy_can_be_tried_on_a_stream_without_one() -> None:
    runtime = FakeRuntime()
    manager = manager_of(runtime)
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        writer.write_event(b"x" * 10).result()
    retention = manager.retention("s/t")
    assert retention.explain().cut is None
    runtime.sleep(60)
    assert retention.explain(policy=RetentionPolicy.by_time("30 s")).goes.events == 1
    assert retention.explain(policy=RetentionPolicy.by_time("90 s")).goes.events == 0


@pytest.mark.parametrize("policy", [TIME, SIZE])
@pytest.mark.parametrize("point", ["retention.decided", "truncate.history"])
def test_subscribers_that_move_during_a_run_do_not_delay_it_and_are_named(
    policy: RetentionPolicy, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = made(policy)
    other = reopen(stream)
    monkeypatch.setattr("pravega_spark.retention.run.RETENTION_ATTEMPTS", 1)

    def move() -> None:
        subscribe(other, "joined", protect=True)
        publish(other, "slow", None, at(6))

    with at_failpoint(point, move):
        done = run_retention(stream, NO_SWEEP)
    assert stream.view().head == at(7)
    assert {lost.subscriber: lost.loses.events for lost in done.explanation.passed} == {
        "joined": 7,
        "slow": 1,
    }
    commit = stream.log.reader.commit(stream.view().version, light=True)
    assert commit is not None
    assert commit.info["operationParameters"]["pastSubscribers"] == '["joined","slow"]'


def test_passed_group_gets_truncated_data_once_and_continues() -> None:
    runtime = FakeRuntime()
    manager = manager_of(runtime)
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration(retention=TIME))
    group = manager.create_reader_group("s/g", ["s/t"], retention="automatic")
    with manager.create_writer("s/t") as writer:
        for n in range(6):
            runtime.sleep(60)
            writer.write_event(b"%010d" % n).result()
    reader = group.create_reader("r")
    with pytest.raises(HeldBySubscriber):
        manager.truncate_stream("s/t", at(3))  # by hand, every policy protects subscribers
    done = manager.retention("s/t").run()
    assert [str(lost) for lost in done.explanation.passed] == ["s/g: 3 events, 30 B, 5.0 minutes"]
    with pytest.raises(TruncatedData) as lost:
        reader.read_next_event(0)
    assert lost.value.head == at(3)
    read = [reader.read_next_event(0).event for _ in range(4)]
    assert [event.data for event in read if event] == [b"%010d" % n for n in (3, 4, 5)]
    assert manager.retention("s/t").run().explanation.passed == ()


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (RetentionPolicy.by_time("1 h"), "by time, at least 1.0 hours"),
        (
            RetentionPolicy.by_time("1 h", "2 h"),
            "by time, at least 1.0 hours (the maximum of 2.0 hours has no effect)",
        ),
        (RetentionPolicy.by_size("1 KiB", "2 KiB"), "by size, 1.0 KiB to 2.0 KiB"),
        (RetentionPolicy.by_consumption(maximum="2 h"), "by consumption, at most 2.0 hours"),
    ],
)
def test_text_of_a_policy_says_which_limits_count(policy: RetentionPolicy, text: str) -> None:
    assert policy_text(policy) == text


def test_dead_subscriber_keeps_no_data_under_a_policy_by_time() -> None:
    runtime = FakeRuntime()
    manager: StreamManager = manager_of(runtime)
    manager.create_scope("s")
    manager.create_stream("s/t", StreamConfiguration(retention=RetentionPolicy.by_time("7 days")))
    manager.subscribe("s/t", "dead")
    for _ in range(4):
        with manager.create_writer("s/t") as writer:
            writer.write_event(b"x" * 10).result()
        runtime.sleep(3 * 86_400)
        manager.retention("s/t").run()
    stream = open_stream(root_of(manager).store, "s/t", runtime)
    assert stream.view().head == at(2), "the two events of the last seven days stay"
