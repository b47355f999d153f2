"""Conditional appends and fencing tokens: what holds, and what a refusal leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream import lifecycle, truncation
from pravega_spark.engine.stream.fencing import fence
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.group_commit import group_of
from pravega_spark.errors import (
    ConditionFailed,
    EventTooLarge,
    FencingTokenMismatch,
    InvalidInput,
    InvalidStreamCut,
    StaleIdentity,
    StreamSealed,
    WriterFenced,
)
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.manager import StreamManager
from pravega_spark.values.limits import MAX_EVENT_BYTES
from pravega_spark.values.segments import EventPointer, StreamCut
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.offering import contended, offer
from tests.harness.small_streams import all_events, events_of, make_stream, reopen, scale, write
from tests.harness.spy_store import Spy

WAIT = 30.0


@pytest.fixture
def store() -> Spy:
    return Spy()


@pytest.fixture
def stream(store: Spy) -> StreamLog:
    return make_stream(store, SYSTEM)


@pytest.fixture
def writer(stream: StreamLog) -> Iterator[EventStreamWriter]:
    with EventStreamWriter(stream, "w") as opened:
        yield opened


def at(offset: int, segment_id: int = 0, life: int = 1) -> EventPointer:
    return EventPointer("s/t", life, segment_id, offset)


def data(stream: StreamLog) -> list[bytes]:
    return [event for _, event in all_events(reopen(stream))]


def waited(predicate: Callable[[], bool]) -> bool:
    """Wait for threads of the package until something holds."""
    return any(predicate() or threading.Event().wait(0.005) for _ in range(4_000))


def refusal(writer: EventStreamWriter, expected: StreamCut | EventPointer | int) -> ConditionFailed:
    with pytest.raises(ConditionFailed) as caught:
        writer.write_event(b"refused", "k", expected=expected).result(WAIT)
    assert caught.value.expected == expected
    assert caught.value.stream == "s/t"
    return caught.value


# ---------------------------------------------------------------------------- a segment's position


def test_event_gets_the_pointer_that_was_expected(writer: EventStreamWriter) -> None:
    for n in range(3):
        assert writer.write_event(b"%d" % n, "k", expected=at(n)).result(WAIT) == at(n)
    group = writer.write_events([b"3", b"4"], expected=at(3)).result(WAIT)
    assert group == (at(3), at(4))
    table = pa.table({"event": [b"5", b"6"]})
    assert [*writer.write_table(table, expected=at(5)).result(WAIT)] == [at(5), at(6)]
    assert writer.last_event_number == 7


@pytest.mark.parametrize("wrong", [0, 1, 3, 100])
def test_refusal_names_the_actual_position_and_the_writer_goes_on(
    stream: StreamLog, writer: EventStreamWriter, wrong: int
) -> None:
    writer.write_events([b"a", b"b"], "k").result(WAIT)
    version = stream.view().version
    error = refusal(writer, at(wrong))
    assert error.actual == at(2)
    assert stream.view().version == version
    assert writer.write_event(b"c", "k", expected=error.actual).result(WAIT) == at(2)
    writer.write_event(b"d")
    writer.flush()
    assert data(stream) == [b"a", b"b", b"c", b"d"]
    assert writer.last_event_number == 4


def test_refusal_that_the_writer_can_see_stores_no_object(
    store: Spy, writer: EventStreamWriter
) -> None:
    writer.write_event(b"a", "k").result(WAIT)
    store.calls.clear()
    refusal(writer, at(0))
    assert {operation for operation, _ in store.calls} <= {"get", "list", "make_durable", "exists"}


def test_position_is_compared_on_the_newest_version(
    stream: StreamLog, writer: EventStreamWriter
) -> None:
    """The writer's own view is old: it neither refuses nor accepts by it."""
    other = reopen(stream)
    write(other, [("k", b"theirs")])
    assert writer.write_event(b"mine", "k", expected=at(1)).result(WAIT) == at(1)
    write(other, [("k", b"theirs again")])
    assert refusal(writer, at(2)).actual == at(3)


def test_race_between_the_decision_and_the_commit_is_refused(
    store: Spy, stream: StreamLog, writer: EventStreamWriter
) -> None:
    other = reopen(stream, store.inner)

    def overtake(operation: str, key: str) -> None:
        if operation == "put_if_absent":
            store.hook = None
            write(other, [("k", b"first")])

    store.hook = overtake
    assert refusal(writer, at(0)).actual == at(1)
    assert data(stream) == [b"first"]


def test_truncation_and_other_segments_do_not_matter_to_a_segment(store: Spy) -> None:
    stream = make_stream(store, SYSTEM, 2)
    write(stream, [("b", b"other segment")])
    with EventStreamWriter(stream) as writer:
        (mine,) = {0, 1} - {s for s in (0, 1) if events_of(stream, s)}
        assert writer.write_event(b"x", expected=at(0, mine)).result(WAIT) == at(0, mine)
        truncation.truncate(stream, StreamCut.LATEST, life=1)
        assert writer.write_event(b"y", expected=at(1, mine)).result(WAIT) == at(1, mine)


def test_routing_key_of_another_segment_is_refused_and_no_key_follows_the_position() -> None:
    stream = make_stream(Spy(), SYSTEM, 2)
    with EventStreamWriter(stream) as writer:
        lands = writer.write_event(b"0", "k").result(WAIT).segment_id
        error = refusal(writer, at(0, 1 - lands))
        assert error.actual == StreamCut("s/t", 1, {lands: 1, 1 - lands: 0})
        assert "routing key 'k'" in str(error)
        rows = pa.table({"event": [b"1", b"2"], "routing_key": ["k", None]})
        pointers = [*writer.write_table(rows, expected=at(1, lands)).result(WAIT)]
        assert pointers == [at(1, lands), at(2, lands)]
        with pytest.raises(ConditionFailed):
            writer.write_table(rows, expected=at(0, 1 - lands)).result(WAIT)
        write(reopen(stream), [("k", b"of another process")])
        assert refusal(writer, at(0, 1 - lands)).actual == reopen(stream).view().tail


@pytest.mark.parametrize("written_before", [0, 2])
def test_segment_that_a_scale_sealed_refuses_and_the_tail_is_the_way_on(
    stream: StreamLog, writer: EventStreamWriter, written_before: int
) -> None:
    for n in range(written_before):
        writer.write_event(b"%d" % n, "k")
    writer.flush()
    scale(reopen(stream), [0], [(0.0, 0.5), (0.5, 1.0)])
    error = refusal(writer, at(written_before))
    tail = reopen(stream).view().tail
    assert error.actual == tail
    assert "0#0" in str(error)
    assert "was sealed by a scale; 1#1, 2#1 followed it" in str(error)
    pointer = writer.write_event(b"after", "k", expected=tail).result(WAIT)
    assert pointer.segment_id in dict(tail)


def test_scale_between_the_decision_and_the_commit_is_refused(
    store: Spy, stream: StreamLog, writer: EventStreamWriter
) -> None:
    other = reopen(stream, store.inner)

    def overtake(operation: str, key: str) -> None:
        if operation == "put_if_absent":
            store.hook = None
            scale(other, [0], [(0.0, 0.5), (0.5, 1.0)])

    store.hook = overtake
    with pytest.raises(ConditionFailed, match="was sealed by a scale") as caught:
        writer.write_event(b"x", expected=at(0)).result(WAIT)
    assert caught.value.actual == reopen(stream).view().tail


def test_segment_that_was_truncated_away_refuses(
    stream: StreamLog, writer: EventStreamWriter
) -> None:
    writer.write_event(b"a", "k").result(WAIT)
    scale(reopen(stream), [0], [(0.0, 1.0)])
    truncation.truncate(reopen(stream), StreamCut.LATEST, life=1)
    assert refusal(writer, at(1)).actual == reopen(stream).view().tail
    assert "truncated" in str(refusal(writer, at(0, segment_id=12345)))


# ------------------------------------------------------------------------------ the stream's tail


def test_tail_is_compared_in_all_segments() -> None:
    stream = make_stream(Spy(), SYSTEM, 3)
    with EventStreamWriter(stream) as writer:
        tail = stream.view().tail
        writer.write_event(b"a", "k", expected=tail).result(WAIT)
        assert refusal(writer, tail).actual == stream.view().tail
        keys = [f"k{n}" for n in range(20)]
        rows = pa.table({"event": [key.encode() for key in keys], "routing_key": keys})
        pointers = writer.write_table(rows, expected=stream.view().tail).result(WAIT)
        assert len({pointer.segment_id for pointer in pointers}) == 3
        assert stream.view().version == 2, "all rows are in one commit"


def test_scale_writes_no_event_so_the_tail_before_it_still_holds(
    stream: StreamLog, writer: EventStreamWriter
) -> None:
    writer.write_event(b"a", "k").result(WAIT)
    tail = stream.view().tail
    scale(reopen(stream), [0], [(0.0, 0.5), (0.5, 1.0)])
    writer.write_event(b"b", "k", expected=tail).result(WAIT)
    assert refusal(writer, tail).actual == reopen(stream).view().tail


@pytest.mark.parametrize("positions", [{0: 7}, {12345: 0}])
def test_cut_that_no_reader_can_have_is_refused_with_the_reason(
    writer: EventStreamWriter, positions: dict[int, int]
) -> None:
    assert refusal(writer, StreamCut("s/t", 1, positions)).actual == StreamCut("s/t", 1, {0: 0})


def test_cut_below_a_truncation_is_refused(stream: StreamLog, writer: EventStreamWriter) -> None:
    tail = stream.view().tail
    writer.write_events([b"a", b"b"], "k").result(WAIT)
    scale(reopen(stream), [0], [(0.0, 1.0)])
    truncation.truncate(reopen(stream), StreamCut.LATEST, life=1)
    assert refusal(writer, tail).actual == reopen(stream).view().tail


# ---------------------------------------------------------------------------- the writer's number


def test_number_of_the_writer_makes_a_write_depend_on_the_one_before(
    stream: StreamLog, writer: EventStreamWriter
) -> None:
    first = writer.write_event(b"a", "k", expected=at(0))
    second = writer.write_event(b"b", "k", expected=1)
    lost = writer.write_event(b"lost", "k", expected=at(0))
    dependent = writer.write_event(b"needs the one before", "k", expected=3)
    last = writer.write_event(b"c", "k")
    assert first.result(WAIT) == at(0)
    assert second.result(WAIT) == at(1)
    assert isinstance(lost.exception(WAIT), ConditionFailed)
    error = dependent.exception(WAIT)
    assert isinstance(error, ConditionFailed)
    assert error.actual == 2
    assert last.result(WAIT) == at(2)
    assert data(stream) == [b"a", b"b", b"c"]


def test_reopened_writer_knows_by_its_number_that_its_conditional_write_landed(
    store: Spy, stream: StreamLog
) -> None:
    writer = EventStreamWriter(stream, "w")
    writer.write_event(b"a", "k", expected=0).result(WAIT)
    with EventStreamWriter(reopen(stream), "w") as again:
        assert again.last_event_number == 1
        assert refusal(again, 0).actual == 1
        again.write_event(b"b", "k", expected=1).result(WAIT)
    with pytest.raises(WriterFenced):
        writer.write_event(b"old session", "k", expected=at(2)).result(WAIT)
    assert data(stream) == [b"a", b"b"]


# ---------------------------------------------------------------- order with other writes, sharing


def test_writes_before_and_after_keep_their_order_around_a_refused_one(
    stream: StreamLog, writer: EventStreamWriter
) -> None:
    futures = []
    for n in range(30):
        futures += [writer.write_event(b"%d" % n, "k") for _ in range(3)]
        futures.append(writer.write_event(b"never", "k", expected=at(0)))
        futures.append(writer.write_event(b"%d" % n, "k", expected=at(4 * n + 3)))
    writer.flush()
    assert data(stream) == [b"%d" % n for n in range(30) for _ in range(4)]
    assert sum(future.exception(WAIT) is not None for future in futures) == 30
    assert writer.last_event_number == 120


def test_batches_of_one_commit_are_compared_in_their_order(store: Spy) -> None:
    """Five writers of one process wait for one commit: exactly one of them is first."""
    stream = make_stream(store, SYSTEM, 2)
    paused, go = threading.Event(), threading.Event()

    def pause(operation: str, key: str) -> None:
        if operation == "put_if_absent":
            store.hook = None
            paused.set()
            assert go.wait(WAIT)

    writers = [EventStreamWriter(stream) for _ in range(6)]
    store.hook = pause
    first = writers[0].write_event(b"first", expected=at(0, 1))
    assert paused.wait(WAIT)
    futures = [writer.write_event(b"x", expected=at(0)) for writer in writers[1:]]
    group = group_of(stream)
    assert waited(lambda: len(group._waiting) == 6)
    go.set()
    assert first.result(WAIT) == at(0, 1)
    errors = [future.exception(WAIT) for future in futures]
    assert errors.count(None) == 1
    assert {error.actual for error in errors if isinstance(error, ConditionFailed)} == {at(1)}
    assert stream.view().version == 2, "one commit was enough for all of them"
    assert data(stream) == [b"x", b"first"]
    for writer in writers:
        writer.close()


def test_conditional_batch_is_never_offered_and_its_owner_commits_it_with_the_offers_of_others(
    store: Spy,
) -> None:
    stream = make_stream(store, SYSTEM)
    theirs = offer(reopen(stream), [("k", b"offered")])
    contended(stream)
    with EventStreamWriter(stream) as writer:
        pointer = writer.write_event(b"mine", "k", expected=at(0)).result(WAIT)
        assert pointer == at(0)
        offered = [key for op, key in store.calls if op == "put" and "/o0" in key]
        assert len(offered) == len(theirs.chunks)
    assert data(stream) == [b"mine", b"offered"]


def test_unconditional_writes_make_the_calls_that_they_made(store: Spy) -> None:
    stream = make_stream(store, SYSTEM)
    fence(stream, 1, "leader")
    for expected, token in ((False, None), (True, None), (True, "leader")):
        with EventStreamWriter(stream, fencing_token=token) as writer:
            writer.write_event(b"a", "k").result(WAIT)
            store.calls.clear()
            for _ in range(5):
                where = stream.view(refresh=False).tail if expected else None
                writer.write_event(b"b", "k", expected=where).result(WAIT)
            assert [operation for operation, _ in store.calls] == ["put", "put_if_absent"] * 5


def test_write_after_a_refused_one_is_stored_once(store: Spy, writer: EventStreamWriter) -> None:
    writer.write_event(b"a", "k").result(WAIT)
    refusal(writer, at(0))
    store.calls.clear()
    writer.write_event(b"b", "k").result(WAIT)
    assert [operation for operation, _ in store.calls] == ["put", "put_if_absent"]


# --------------------------------------------------------------------------------- unclear answers


@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.LOSE_REQUEST, Fault.RESEND])
def test_lost_answer_of_the_commit_is_resolved_and_no_refusal(
    store: Spy, stream: StreamLog, fault: Fault
) -> None:
    with EventStreamWriter(stream) as writer:
        writer.write_event(b"a", "k").result(WAIT)
        store.rules.add(Rule(fault, "put_if_absent", nth=1))
        assert writer.write_event(b"b", "k", expected=at(1)).result(WAIT) == at(1)
    assert data(stream) == [b"a", b"b"]


def test_batch_that_landed_is_a_success_though_its_condition_does_not_hold_any_more() -> None:
    """The same batch twice, as after an answer that was lost: the log knows it by its identity."""
    from pravega_spark.engine.writing.append import AppendCondition, StagedBatch
    from pravega_spark.engine.writing.identity import SessionBatch
    from tests.harness.small_streams import staged

    stream = make_stream(Spy(), SYSTEM)
    identity = SessionBatch("_0.000000000000000000000001", 0, 0, 1)
    chunks = tuple(staged(stream, [("k", b"once")]))
    fence(stream, 1, "old")
    batch = StagedBatch(
        1, 0, chunks, identity, can_be_offered=False, condition=AppendCondition(at(0), "old")
    )
    first = group_of(stream).append(batch)
    fence(stream, 1, "new")
    again = group_of(reopen(stream)).append(batch)
    assert again.ranges == first.ranges
    assert data(stream) == [b"once"]


# -------------------------------------------------------------------------------- wrong arguments


def test_expectations_that_can_never_hold_are_refused_at_once(
    stream: StreamLog, writer: EventStreamWriter
) -> None:
    for wrong in (True, -1, 0.5, "s/t@1:0#0=0", StreamCut.EARLIEST, StreamCut.LATEST):
        with pytest.raises(InvalidInput):
            writer.write_event(b"x", "k", expected=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidStreamCut):
        writer.write_event(b"x", expected=EventPointer("s/other", 1, 0, 0))
    with pytest.raises(StaleIdentity):
        writer.write_event(b"x", expected=at(0, life=2))
    with pytest.raises(InvalidInput, match="needs an event"):
        writer.write_events([], expected=at(0))
    rows = pa.table({"event": [b"x" * MAX_EVENT_BYTES] * 6})
    with pytest.raises(EventTooLarge, match="commit takes"):
        writer.write_table(rows, expected=at(0))
    writer.flush()
    assert data(stream) == []


def test_sealed_stream_ends_the_writer_also_in_a_conditional_write(
    stream: StreamLog, writer: EventStreamWriter
) -> None:
    lifecycle.seal(reopen(stream))
    with pytest.raises(StreamSealed):
        writer.write_event(b"x", "k", expected=at(0)).result(WAIT)


# ---------------------------------------------------------------------------------- fencing tokens


def test_newest_token_refuses_older_ones_and_no_token_passes(stream: StreamLog) -> None:
    with pytest.raises(FencingTokenMismatch):
        EventStreamWriter(stream, fencing_token="a")
    assert fence(stream, 1, "a")
    assert not fence(reopen(stream), 1, "a")
    old, free = EventStreamWriter(stream, fencing_token="a"), EventStreamWriter(stream)
    old.write_event(b"by a", "k").result(WAIT)
    assert fence(reopen(stream), 1, "b", expected="a")
    with pytest.raises(FencingTokenMismatch) as caught:
        old.write_event(b"late", "k").result(WAIT)
    assert (caught.value.fencing_token, caught.value.newest_token) == ("a", "b")
    with pytest.raises(FencingTokenMismatch):
        old.write_event(b"later", "k").result(WAIT)
    with pytest.raises(FencingTokenMismatch):
        EventStreamWriter(stream, "w", fencing_token="a")
    free.write_event(b"without", "k").result(WAIT)
    with EventStreamWriter(stream, "w", fencing_token="b") as new:
        new.write_event(b"by b", "k").result(WAIT)
    assert data(stream) == [b"by a", b"without", b"by b"]


def test_token_that_is_set_between_the_decision_and_the_commit_refuses(
    store: Spy, stream: StreamLog
) -> None:
    fence(stream, 1, "a")
    writer = EventStreamWriter(stream, fencing_token="a")
    other = reopen(stream, store.inner)

    def overtake(operation: str, key: str) -> None:
        if operation == "put_if_absent":
            store.hook = None
            fence(other, 1, "b")

    store.hook = overtake
    with pytest.raises(FencingTokenMismatch):
        writer.write_event(b"late", "k").result(WAIT)
    assert data(stream) == []


def test_conditional_fence_changes_nothing_unless_the_token_is_the_expected_one(
    stream: StreamLog,
) -> None:
    assert fence(stream, 1, "a", expected="")
    with pytest.raises(ConditionFailed) as caught:
        fence(stream, 1, "c", expected="")
    assert (caught.value.expected, caught.value.actual) == ("", "a")
    assert not fence(stream, 1, "a", expected="other"), "a repetition of what landed"
    assert fence(stream, 1, "", expected="a")
    assert stream.view().fence.token == ""
    with EventStreamWriter(stream, fencing_token="") as writer:
        writer.write_event(b"none is set", "k").result(WAIT)


def test_offers_of_others_pass_while_the_own_batch_of_an_old_token_is_refused(store: Spy) -> None:
    stream = make_stream(store, SYSTEM)
    fence(stream, 1, "a")
    writer = EventStreamWriter(stream, fencing_token="a")
    fence(reopen(stream), 1, "b")
    offer(reopen(stream), [("k", b"offered")])
    contended(stream)
    with pytest.raises(FencingTokenMismatch):
        writer.write_event(b"late", "k").result(WAIT)
    assert b"late" not in data(stream)


@pytest.mark.parametrize("token", [None, 7, "x" * 37, "\ud800", "é" * 19])
def test_tokens_are_short_texts(token: object) -> None:
    manager = StreamManager("memory://fencing-tokens")
    with pytest.raises(InvalidInput):
        manager.fence("s/t", token)  # type: ignore[arg-type]


def test_tokens_through_the_manager_and_their_end_with_the_life() -> None:
    manager = StreamManager("memory://fencing-lives")
    manager.create_scope("s")
    manager.create_stream("s/t")
    assert manager.fencing_token("s/t") == ""
    assert manager.fence("s/t", "é" * 18)
    assert manager.fencing_token("s/t") == "é" * 18
    with manager.create_writer("s/t", fencing_token="é" * 18) as writer:
        writer.write_event(b"x").result(WAIT)
    manager.seal_stream("s/t")
    with pytest.raises(StreamSealed):
        manager.fence("s/t", "late")
    manager.delete_stream("s/t")
    manager.create_stream("s/t")
    assert manager.fencing_token("s/t") == ""
