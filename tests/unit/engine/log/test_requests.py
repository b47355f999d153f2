"""Requests for the next version: a verb that loses races gets its turn, and nobody waits long."""

from __future__ import annotations

import pytest

from pravega_spark.engine.log.actions import REQUEST, Body
from pravega_spark.engine.log.commit import Log, Proposal
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.identity import SessionBatch, open_session
from pravega_spark.values.limits import REQUEST_AFTER, REQUEST_LOCAL_SECONDS
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.spy_store import Spy


def body(snapshot: Snapshot | None) -> Proposal[None]:
    return Body("VERB", domains={"test.verb": "1"}), None


def operations(stream: StreamLog) -> list[str]:
    view = reopen(stream).view()
    return [commit.operation for commit in stream.log.reader.span(0, view.version)]


def test_verb_that_loses_races_requests_the_next_version_and_gets_it() -> None:
    stream = make_stream()
    other = reopen(stream)
    lost = 0

    def decide(snapshot: Snapshot | None) -> Proposal[None]:
        """Decide slowly: another process commits in between, unless the version is requested."""
        nonlocal lost
        other.log.refresh()
        if other.log._follower.request is None:
            lost += 1
            write(other, [("k", b"x")])
        return body(snapshot)

    before = stream.runtime.monotonic()
    stream.log.commit(decide)
    assert lost == REQUEST_AFTER
    assert stream.runtime.monotonic() - before < REQUEST_LOCAL_SECONDS, "it waits for itself"
    assert operations(stream) == [*["APPEND"] * lost, REQUEST, "VERB"]


def test_commit_that_wins_requests_nothing() -> None:
    stream = make_stream()
    for _ in range(5):
        write(reopen(stream), [("k", b"x")])
        stream.log.commit(body)
    assert REQUEST not in operations(stream)


def test_others_leave_the_next_version_to_a_requester_until_it_has_committed() -> None:
    store = Spy()
    stream = make_stream(store, FakeRuntime())
    requester = reopen(stream, store.inner)
    requester.log.refresh()
    token = requester.log.request()
    stream.log.refresh()
    before = stream.runtime.monotonic()

    def commit_later(operation: str, key: str) -> None:
        if operation == "get" and stream.runtime.monotonic() - before > 0.01:
            store.hook = None
            assert requester.log.attempt(body, request=token) is not None

    store.hook = commit_later
    write(stream, [("k", b"x")])
    assert operations(stream)[-3:] == [REQUEST, "VERB", "APPEND"]
    assert stream.runtime.monotonic() - before < REQUEST_LOCAL_SECONDS


def test_dead_requester_delays_others_for_a_bounded_time_and_only_once() -> None:
    stream = make_stream(runtime=FakeRuntime())
    dead = reopen(stream)
    dead.log.refresh()
    dead.log.request()
    stream.log.refresh()
    before = stream.runtime.monotonic()
    write(stream, [("k", b"x")])
    waited = stream.runtime.monotonic() - before
    assert REQUEST_LOCAL_SECONDS * 0.9 < waited < REQUEST_LOCAL_SECONDS * 1.1
    before = stream.runtime.monotonic()
    write(stream, [("k", b"y")])
    assert stream.runtime.monotonic() == before
    assert operations(stream)[-3:] == [REQUEST, "APPEND", "APPEND"]


def test_request_changes_no_state() -> None:
    stream = make_stream()
    session = open_session(stream, 1, "w").session
    write(stream, [("k", b"x")], SessionBatch("w", session, 0, 1))
    before = stream.view()
    stream.log.request()
    after = reopen(stream).view()
    assert after.version == before.version + 1
    assert after.snapshot.domains == before.snapshot.domains
    assert write(stream, [("k", b"y")], SessionBatch("w", session, 1, 2)).version == 4


@pytest.mark.parametrize("losses", [1, 2])
def test_reading_one_version_costs_one_call(losses: int) -> None:
    store = Spy()
    stream = make_stream(store)
    other = reopen(stream)
    log: Log = stream.log
    store.calls.clear()
    assert log.read_next() is None
    assert [op for op, _ in store.calls] == ["get"]
    for _ in range(losses):
        write(other, [("k", b"x")])
    store.calls.clear()
    found = [log.read_next() for _ in range(losses)]
    assert None not in found
    assert len(store.calls) == losses
    assert log.snapshot == other.log.snapshot
