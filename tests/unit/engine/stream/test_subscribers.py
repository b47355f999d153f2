from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark import StreamManager
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import SubscriberRecord
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.engine.stream.subscribers import publish, subscribe, unsubscribe
from pravega_spark.engine.stream.truncation import truncate
from pravega_spark.errors import (
    GenerationMismatch,
    HeldBySubscriber,
    InvalidName,
    InvalidStreamCut,
    NoSuchStream,
    NoSuchSubscriber,
)
from pravega_spark.values.segments import StreamCut
from tests.harness.failpoints import at_failpoint
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.spy_store import Spy

GROUP = "s/readers"


def filled(chunks: int = 4, rows: int = 3) -> StreamLog:
    """A stream of one segment with chunks of events of two bytes."""
    runtime = FakeRuntime()
    stream = make_stream(memory(runtime), runtime)
    for n in range(chunks):
        write(stream, [(None, b"%02d" % (n * rows + i)) for i in range(rows)])
    return stream


def at(offset: int) -> StreamCut:
    return StreamCut("s/t", 1, {0: offset})


def record(stream: StreamLog) -> SubscriberRecord:
    found = stream.view().subscriber(GROUP)
    assert found is not None
    return found


def operation(stream: StreamLog) -> str:
    commit = stream.log.reader.commit(stream.view().version, light=True)
    assert commit is not None
    return commit.operation


def test_subscribing_publishing_and_leaving_are_one_commit_each() -> None:
    stream = filled()
    version = stream.view().version
    assert subscribe(stream, GROUP, 0) == 0
    assert (operation(stream), record(stream).bound) == ("SUBSCRIBE", None)
    assert publish(stream, GROUP, 0, at(7))
    found = record(stream)
    assert operation(stream) == "PUBLISH"
    assert found.published is not None
    assert (found.published.positions, found.published.sizes) == ({0: 7}, {0: 14})
    assert found.published_ms == stream.runtime.now_ms()
    assert [s.name for s in stream.view().subscribers] == [GROUP]
    assert unsubscribe(stream, GROUP, 1)
    assert operation(stream) == "UNSUBSCRIBE"
    assert stream.view().subscribers == []
    assert stream.view().version == version + 3


def test_generation_that_is_not_newer_adds_and_removes_nothing() -> None:
    stream = filled()
    assert subscribe(stream, GROUP, 3) == 3
    version = stream.view().version
    assert subscribe(stream, GROUP, 3) == 3
    assert subscribe(stream, GROUP, 2) == 3
    assert not unsubscribe(stream, GROUP, 3)
    assert stream.view().version == version
    assert unsubscribe(stream, GROUP, 4)
    assert subscribe(stream, GROUP, 4) == 4
    assert not record(stream).bound
    assert subscribe(stream, GROUP, 5) == 5
    assert record(stream).removed == ""


def test_removal_before_the_addition_it_belongs_to_is_remembered() -> None:
    stream = filled()
    assert unsubscribe(stream, GROUP, 1)
    assert subscribe(stream, GROUP, 0, protect=True) == 1
    with pytest.raises(NoSuchSubscriber):
        publish(stream, GROUP, 0, at(1))


def test_renewed_subscriber_keeps_its_published_cut_unless_it_has_a_start() -> None:
    stream = filled()
    subscribe(stream, GROUP, 0)
    publish(stream, GROUP, 0, at(7))
    subscribe(stream, GROUP, 1)
    bound = record(stream).bound
    assert bound is not None
    assert bound.positions == {0: 7}
    subscribe(stream, GROUP, 2, start=at(5))
    bound = record(stream).bound
    assert bound is not None
    assert bound.positions == {0: 5}
    truncate(stream, at(4))
    subscribe(stream, GROUP, 3, start=at(3))
    bound = record(stream).bound
    assert bound is not None
    assert bound.positions == {0: 4}, "truncated events cannot be held"


def test_publishing_needs_a_subscriber_of_that_generation_and_does_not_go_back() -> None:
    stream = filled()
    with pytest.raises(NoSuchSubscriber, match="s/readers is not a subscriber of stream s/t"):
        publish(stream, GROUP, 0, at(1))
    subscribe(stream, GROUP, 1)
    for generation in (0, 2):
        with pytest.raises(GenerationMismatch, match="is in generation 1"):
            publish(stream, GROUP, generation, at(1))
    with pytest.raises(InvalidStreamCut, match="offset 99"):
        publish(stream, GROUP, 1, at(99))
    publish(stream, GROUP, 1, at(7))
    with pytest.raises(InvalidStreamCut, match="subscribers do not go back"):
        publish(stream, GROUP, 1, at(6))
    version = stream.view().version
    assert not publish(stream, GROUP, 1, str(at(7)))
    assert stream.view().version == version
    unsubscribe(stream, GROUP, 2)
    with pytest.raises(NoSuchSubscriber):
        publish(stream, GROUP, 1, at(8))


def test_protection_begins_at_the_present_head() -> None:
    stream = filled()
    truncate(stream, at(4))
    subscribe(stream, GROUP, 0, protect=True)
    hold = record(stream).hold
    assert hold is not None
    assert (hold.positions, hold.sizes) == ({0: 4}, {0: 8})
    with pytest.raises(HeldBySubscriber, match=r"s/readers is protected from s/t@1:0#0=4"):
        truncate(stream, at(5))
    publish(stream, GROUP, 0, at(6))
    assert truncate(stream, at(6)).events == 2


def test_cut_behind_the_head_may_be_published_by_who_was_passed() -> None:
    stream = filled()
    subscribe(stream, GROUP, 0)
    publish(stream, GROUP, 0, at(2))
    truncate(stream, at(7), past_subscribers=True)
    assert publish(stream, GROUP, 0, at(4))
    assert record(stream).bound.sizes == {}  # type: ignore[union-attr]


def test_lost_answer_publishes_once() -> None:
    stream = filled()
    subscribe(stream, GROUP, 0)
    spy = Spy(stream.store)
    other = reopen(stream, spy)
    other.view()
    spy.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1))
    publish(other, GROUP, 0, at(4))
    assert stream.view().version == other.view().version == 6


def test_concurrent_truncation_does_not_pass_a_subscriber() -> None:
    stream = filled()
    other = reopen(stream)
    subscribe(stream, GROUP, 0)

    def race() -> None:
        publish(other, GROUP, 0, at(3))

    with at_failpoint("truncate.history", race), pytest.raises(HeldBySubscriber):
        truncate(stream, at(7))
    assert stream.view().head == at(0)


def test_truncation_passes_a_subscriber_only_by_option_and_history_records_it() -> None:
    stream = filled()
    subscribe(stream, GROUP, 0)
    publish(stream, GROUP, 0, at(5))
    with pytest.raises(
        HeldBySubscriber, match=r"subscriber s/readers published s/t@1:0#0=5 .*past_subscribers"
    ):
        truncate(stream, at(6))
    truncate(stream, at(6), past_subscribers=True)
    commit = stream.log.reader.commit(stream.view().version, light=True)
    assert commit is not None
    assert commit.info["operationParameters"]["pastSubscribers"] == '["s/readers"]'


def test_names_are_checked_and_a_deleted_stream_has_no_subscribers() -> None:
    stream = filled()
    for wrong in ("s/t/readers", "s/", "", "a_b"):
        with pytest.raises(InvalidName):
            subscribe(stream, wrong, 0)
    subscribe(stream, GROUP, 0, protect=True)
    configuration = stream.view().record.configuration
    lifecycle.seal(stream)
    publish(stream, GROUP, 0, StreamCut.LATEST)
    lifecycle.delete(stream)
    with pytest.raises(NoSuchStream):
        publish(stream, GROUP, 0, at(12))
    lifecycle.create(stream, 2, configuration)
    assert stream.view().subscribers == []


def test_manager_lists_subscribers_and_truncates_past_them_only_by_option(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        for n in range(5):
            writer.write_event(b"%d" % n)
    stream = open_stream(manager.root, "s/t")
    subscribe(stream, GROUP, 0)
    (known,) = manager.list_subscribers("s/t")
    assert (known.name, known.cut, known.published_ms) == (GROUP, None, None)
    publish(stream, GROUP, 0, at(3))
    (known,) = manager.list_subscribers("s/t")
    assert (known.generation, known.cut) == (0, at(3))
    with pytest.raises(HeldBySubscriber):
        manager.truncate_stream("s/t", at(4))
    assert manager.truncate_stream("s/t", at(4), past_subscribers=True).events == 4
