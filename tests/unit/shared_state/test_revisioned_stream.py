"""RevisionedStream: values at known revisions, the mark, and truncation."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import (
    CommitUnknown,
    HeldBySubscriber,
    IllegalState,
    InvalidInput,
    NoSuchStream,
    ObjectClosed,
    SegmentSealed,
    StaleIdentity,
    StreamSealed,
    TruncatedData,
)
from pravega_spark.manager import StreamManager
from pravega_spark.shared_state.revisioned_stream import Revision, RevisionedStream
from tests.harness.drawn_lives import DRAWN
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import all_events, make_stream, reopen, scale, write
from tests.harness.spy_store import Spy


@pytest.fixture
def store() -> Spy:
    return Spy()


@pytest.fixture
def stream(store: Spy) -> StreamLog:
    return make_stream(store, SYSTEM)


@pytest.fixture
def log(stream: StreamLog) -> Iterator[RevisionedStream]:
    with RevisionedStream(stream) as opened:
        yield opened


def at(offset: int, life: int = 1) -> Revision:
    return Revision("s/t", life, 0, offset)


def values(log: RevisionedStream, start: Revision | None = None) -> list[Any]:
    return [found.value for found in log.read_from(start or log.fetch_oldest_revision())]


# ------------------------------------------------------------------------------ writing, reading


def test_conditional_write_returns_the_next_revision_or_none(
    stream: StreamLog, log: RevisionedStream
) -> None:
    first = log.fetch_latest_revision()
    assert first == log.fetch_oldest_revision() == at(0)
    second = log.write_conditionally(first, b"a")
    assert second == log.fetch_latest_revision() == at(1)
    assert log.write_conditionally(first, b"lost") is None
    assert log.write_conditionally(at(5), b"too early") is None
    assert log.write_conditionally(str(second), "text") == at(2)
    with RevisionedStream(reopen(stream)) as other:
        assert other.write_unconditionally(b"b") == at(3)
    assert log.write_conditionally(at(2), b"lost") is None
    assert values(log) == [b"a", b"text", b"b"]


def test_read_is_a_snapshot_and_each_value_comes_with_the_revision_after_it(
    log: RevisionedStream,
) -> None:
    for n in range(5):
        log.write_unconditionally(b"%d" % n)
    reading = log.read_from(at(1))
    log.write_unconditionally(b"later")
    assert [(r.offset, v) for r, v in reading] == [(2, b"1"), (3, b"2"), (4, b"3"), (5, b"4")]
    assert [v for _, v in log.read_range(at(1), at(3))] == [b"1", b"2"]
    assert [*log.read_range(at(3), at(3))] == []
    assert [*log.read_from(log.fetch_latest_revision())] == []
    for start, end in ((3, 1), (0, 7)):
        with pytest.raises(InvalidInput, match="not a range"):
            log.read_range(at(start), at(end))


def test_values_pass_through_the_users_functions(stream: StreamLog) -> None:
    def encode(value: object) -> bytes:
        return json.dumps(value).encode()

    with RevisionedStream(stream, serializer=encode, deserializer=json.loads) as log:
        log.write_unconditionally({"a": 1})
        assert values(log) == [{"a": 1}]
    assert all_events(stream) == [(None, b'{"a": 1}')]


def test_threads_that_add_one_lose_no_number(stream: StreamLog) -> None:
    logs = [RevisionedStream(reopen(stream)) for _ in range(2)]

    def add(log: RevisionedStream) -> None:
        done = 0
        while done < 6:
            latest = log.fetch_latest_revision()
            done += log.write_conditionally(latest, b"%d" % latest.offset) is not None

    threads = [threading.Thread(target=add, args=(log,)) for log in logs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values(logs[0]) == [b"%d" % n for n in range(24)]
    for log in logs:
        log.close()


def test_calls_of_each_verb(store: Spy, log: RevisionedStream) -> None:
    """A conditional write is a lone append; a look is one call."""
    log.write_unconditionally(b"a")
    store.calls.clear()
    assert log.write_conditionally(at(1), b"b")
    assert [operation for operation, _ in store.calls] == ["put", "put_if_absent"]
    store.calls.clear()
    log.write_unconditionally(b"c")
    assert [operation for operation, _ in store.calls] == ["put", "put_if_absent"]
    store.calls.clear()
    log.fetch_latest_revision()
    log.get_mark()
    assert [operation for operation, _ in store.calls] == ["get", "get"]


def test_after_an_unknown_outcome_the_next_call_works(
    store: Spy, log: RevisionedStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pravega_spark.engine.log.commit.COMMIT_DEADLINE_SECONDS", 0.0)
    log.write_unconditionally(b"a")
    store.rules.add(Rule(Fault.DELAY, "put_if_absent", nth=1))
    with pytest.raises(CommitUnknown):
        log.write_conditionally(at(1), b"perhaps")
    store.deliver()
    assert log.fetch_latest_revision() == at(2)
    assert log.write_conditionally(at(1), b"no") is None
    assert log.write_conditionally(at(2), b"c") == at(3)
    assert values(log) == [b"a", b"perhaps", b"c"]


# ----------------------------------------------------------------------------- mark, truncation


def test_mark_moves_by_compare_and_set_also_back_and_away(
    stream: StreamLog, log: RevisionedStream
) -> None:
    for _ in range(3):
        log.write_unconditionally(b"x")
    other = RevisionedStream(reopen(stream))
    assert log.get_mark() is None
    assert log.compare_and_set_mark(None, at(2))
    assert not other.compare_and_set_mark(None, at(1))
    assert other.get_mark() == at(2)
    assert other.compare_and_set_mark(at(2), at(1)), "back"
    version = stream.view().version
    assert log.compare_and_set_mark(at(1), at(1))
    assert stream.view().version == version, "nothing to do is no commit"
    assert log.compare_and_set_mark(at(1), None)
    assert not log.compare_and_set_mark(at(1), at(2))
    assert other.get_mark() is None
    with pytest.raises(InvalidInput, match="latest revision"):
        log.compare_and_set_mark(None, at(4))
    other.close()


def test_truncation_moves_forward_only_and_readers_below_are_told(
    stream: StreamLog, log: RevisionedStream
) -> None:
    for n in range(4):
        log.write_unconditionally(b"%d" % n)
    reading = log.read_from(at(0))
    log.truncate_to_revision(at(2))
    log.truncate_to_revision(at(1))
    log.truncate_to_revision(at(2))
    assert log.fetch_oldest_revision() == at(2)
    with pytest.raises(TruncatedData):
        log.read_from(at(1))
    with pytest.raises(TruncatedData):
        log.read_range(at(0), at(4))
    with pytest.raises(TruncatedData):
        list(reading)
    assert values(log) == [b"2", b"3"]
    with pytest.raises(InvalidInput, match="latest revision"):
        log.truncate_to_revision(at(9))
    assert log.write_conditionally(at(4), b"4") == at(5), "a truncation changes no revision"
    log.truncate_to_revision(log.fetch_latest_revision())
    assert values(log) == []


def test_truncation_that_another_one_overtakes_does_nothing(
    store: Spy, stream: StreamLog, log: RevisionedStream
) -> None:
    for n in range(4):
        log.write_unconditionally(b"%d" % n)
    other = RevisionedStream(reopen(stream, store.inner))

    def overtake(operation: str, key: str) -> None:
        if operation == "put_if_absent":
            store.hook = None
            other.truncate_to_revision(at(3))

    store.hook = overtake
    log.truncate_to_revision(at(2))
    assert log.fetch_oldest_revision() == at(3)
    other.close()


def test_subscriber_holds_what_it_has_not_read() -> None:
    manager = StreamManager("memory://held-revisions")
    manager.create_scope("s")
    manager.create_stream("s/t")
    manager.subscribe("s/t", "nightly", "earliest")
    with manager.revisioned_stream("s/t") as log:
        revision = log.write_unconditionally(b"a")
        with pytest.raises(HeldBySubscriber):
            log.truncate_to_revision(revision)


# ---------------------------------------------------------------------------- lives, seals, scales


def test_streams_without_a_single_open_segment_are_refused(stream: StreamLog) -> None:
    with pytest.raises(IllegalState, match="2 segments"):
        RevisionedStream(make_stream(Spy(), SYSTEM, 2))
    lifecycle.seal(stream)
    with pytest.raises(StreamSealed):
        RevisionedStream(reopen(stream))
    with pytest.raises(NoSuchStream):
        RevisionedStream(StreamLog(Spy(), "s/none"))


def test_seal_and_scale_end_the_writing(stream: StreamLog, log: RevisionedStream) -> None:
    log.write_unconditionally(b"a")
    sealed = make_stream(Spy(), SYSTEM)
    with RevisionedStream(sealed) as other:
        lifecycle.seal(reopen(sealed))
        for _ in range(2):
            with pytest.raises(StreamSealed):
                other.write_unconditionally(b"x")
        with pytest.raises(StreamSealed):
            other.compare_and_set_mark(None, at(0))
    known = make_stream(Spy(), SYSTEM)
    with RevisionedStream(known) as same:
        assert same.write_unconditionally(b"a") == at(1)
        lifecycle.seal(known)  # this process knows it before it writes
        for latest in (at(1), at(0)):
            with pytest.raises(StreamSealed, match="s/t was sealed"):
                same.write_conditionally(latest, b"x")
        with pytest.raises(StreamSealed):
            same.write_unconditionally(b"x")
        assert values(same) == [b"a"]
    scale(reopen(stream), [0], [(0.0, 1.0)])
    for call in (
        lambda: log.write_conditionally(at(1), b"x"),
        lambda: log.write_unconditionally(b"x"),
        log.fetch_latest_revision,
        log.get_mark,
    ):
        with pytest.raises(SegmentSealed, match="0#0"):
            call()
    assert all_events(stream) == [(None, b"a")]


def test_next_life_is_another_log() -> None:
    manager = StreamManager("memory://revisioned-lives")
    manager.create_scope("s")
    manager.create_stream("s/t")
    log = manager.revisioned_stream("s/t")
    log.write_unconditionally(b"a")
    log.compare_and_set_mark(None, at(1))
    manager.seal_stream("s/t")
    manager.delete_stream("s/t")
    manager.create_stream("s/t")
    with pytest.raises(StaleIdentity):
        log.write_unconditionally(b"b")
    with pytest.raises(StaleIdentity):
        log.fetch_latest_revision()
    with manager.revisioned_stream("s/t") as again:
        assert again.get_mark() is None
        with pytest.raises(StaleIdentity):
            again.write_conditionally(at(1), b"b")
        first = again.fetch_latest_revision()
        assert (first.life > DRAWN, first.offset) == (True, 0)


def test_closed_one_writes_no_more(stream: StreamLog) -> None:
    log = RevisionedStream(stream)
    log.write_unconditionally(b"a")
    log.close()
    log.close()
    with pytest.raises(ObjectClosed):
        log.write_unconditionally(b"b")
    assert values(log) == [b"a"]
    with pytest.raises(TypeError, match="where it is used"):
        pickle.dumps(log)


# -------------------------------------------------------------------------------------- revisions


def test_revisions_are_ordered_and_travel(log: RevisionedStream) -> None:
    assert at(1) < at(2) <= at(2)
    assert max(at(3), at(1)) == at(3)
    assert str(at(7)) == "s/t@1:0#0=7"
    assert Revision.of(str(at(7))) == pickle.loads(pickle.dumps(at(7))) == at(7)
    for other in (Revision("s/u", 1, 0, 7), at(7, life=2), Revision("s/t", 1, 1, 7)):
        with pytest.raises(InvalidInput, match="no order"):
            assert at(1) < other
    for wrong in ("s/t", 7, None):
        with pytest.raises(InvalidInput):
            Revision.of(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        log.read_from(Revision("s/u", 1, 0, 0))
    with pytest.raises(InvalidInput):
        log.write_conditionally(at(-1), b"x")


def test_events_of_ordinary_writers_are_values_too(
    stream: StreamLog, log: RevisionedStream
) -> None:
    write(reopen(stream), [("k", b"by a writer")])
    assert log.write_conditionally(at(0), b"x") is None
    assert values(log) == [b"by a writer"]
