from __future__ import annotations

import pytest

from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.records import anonymous_id, is_anonymous, opened_at
from pravega_spark.engine.writing.identity import SessionBatch, open_session
from pravega_spark.errors import (
    CommitUnknown,
    InvalidName,
    NoSuchStream,
    StaleIdentity,
    StreamSealed,
)
from pravega_spark.values.names import check_name
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.spy_store import Spy


def test_each_opening_increments_the_session_in_one_commit() -> None:
    stream = make_stream()
    sessions = [open_session(reopen(stream), 1, "w").session for _ in range(3)]
    assert sessions == [1, 2, 3]
    assert open_session(stream, 1, "other").session == 1
    assert stream.view().version == 4


def test_opening_with_a_lost_answer_increments_the_session_once() -> None:
    store = Spy()
    stream = make_stream(store)
    store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1))
    assert open_session(stream, 1, "w").session == 1
    assert open_session(stream, 1, "w").session == 2


def test_opening_decides_a_commit_with_an_unknown_outcome() -> None:
    store = Spy()
    stream = make_stream(store)
    session = open_session(stream, 1, "w").session
    store.rules.add(Rule(Fault.DELAY, "put_if_absent", nth=1))
    store.rules.add(Rule(Fault.LOSE_REQUEST, "put_if_absent"))
    with pytest.raises(CommitUnknown):
        write(stream, [("k", b"x")], SessionBatch("w", session, 0, 1))
    store.rules.clear()

    opened = open_session(reopen(stream), 1, "w")
    store.deliver()  # too late: its version is taken
    assert opened.last == 0
    assert open_session(reopen(stream), 1, "w").last == 0


def test_no_session_is_opened_on_a_sealed_stream_a_deleted_one_or_another_life() -> None:
    stream = make_stream()
    with pytest.raises(StaleIdentity):
        open_session(stream, 2, "w")
    lifecycle.seal(stream)
    with pytest.raises(StreamSealed, match="no writer can be opened"):
        open_session(stream, 1, "w")
    lifecycle.delete(stream)
    with pytest.raises(NoSuchStream):
        open_session(stream, 1, "w")


def test_random_id_carries_its_version_and_no_user_can_choose_it() -> None:
    name = anonymous_id(42, "ab12")
    assert is_anonymous(name)
    assert opened_at(name) == 42
    with pytest.raises(InvalidName):
        check_name("writer", name)
    assert not is_anonymous("w-1.x")
