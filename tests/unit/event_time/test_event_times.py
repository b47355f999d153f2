"""Writers that note the times of their events: which time, when, and in which commit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark import json_serializer
from pravega_spark.config.descriptions import WriterMark
from pravega_spark.engine.stream.watermarks import marks_of
from pravega_spark.engine.writing import noted_times
from pravega_spark.engine.writing.encode import EventTimes
from pravega_spark.errors import (
    IllegalState,
    InvalidConfiguration,
    InvalidInput,
    PravegaSparkError,
    StoreError,
)
from pravega_spark.event_writer import queue_of
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.txn import transaction as txn_transaction
from pravega_spark.txn.writer import TransactionalWriter
from pravega_spark.values.limits import EVENT_TIME_NOTE_SECONDS
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.fault_plans import Rule
from tests.harness.transaction_world import World

S = "s/t"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def at(time: int) -> datetime:
    return EPOCH + timedelta(milliseconds=time)


@pytest.fixture
def manager() -> Iterator[StreamManager]:
    made = manager_of(FakeRuntime())
    made.create_scope("s")
    made.create_stream(S)
    yield made
    made.close()


def runtime_of(manager: StreamManager) -> FakeRuntime:
    runtime = root_of(manager).runtime
    assert isinstance(runtime, FakeRuntime)
    return runtime


def mark(manager: StreamManager) -> WriterMark | None:
    return next(iter(manager.event_time(S).marks()), None)


def noted(manager: StreamManager) -> int | None:
    found = mark(manager)
    return None if found is None else found.time_us // 1_000


def version(manager: StreamManager) -> int:
    return root_of(manager).stream(S).view().version


def test_the_latest_time_of_the_events_less_the_delay_is_noted(manager: StreamManager) -> None:
    with manager.create_writer(
        S, "w", serializer=json_serializer, event_time=lambda e: e["at"], event_time_delay="5 ms"
    ) as writer:
        for moment in (100, 130, 127):
            writer.write_event({"at": moment}, "k")
        writer.flush()
        assert noted(manager) == 125
        writer.write_event({"at": 110}, "k")
    assert [event.data for event in manager.read(S)][-1] == b'{"at":110}'
    found = mark(manager)
    assert found is not None
    assert (found.time_us, found.is_alive) == (125_000, False), "a late event takes nothing back"


@pytest.mark.parametrize(
    "time", [7, at(7), datetime(1970, 1, 1, 1, 0, 0, 7_000, timezone(timedelta(hours=1)))]
)
def test_the_function_returns_milliseconds_or_a_datetime(
    manager: StreamManager, time: int | datetime
) -> None:
    with manager.create_writer(S, event_time=lambda event: time) as writer:
        writer.write_event(b"plain")
    assert noted(manager) == 7


def test_a_note_shares_the_commit_of_its_event(manager: StreamManager) -> None:
    with manager.create_writer(S, "w", event_time=int) as writer:
        before = version(manager)
        writer._encoder.accept(5_000)
        assert queue_of(writer).is_idle, "the note waits for its event"
        assert queue_of(writer).has_work
        writer.write_event(b"10", "k").result()
        assert version(manager) == before + 1
        writer.flush()
        found = mark(manager)
        assert found is not None
        assert (found.time_us, found.cut) == (10_000, manager.tail(S))


def test_events_are_noted_once_a_second_and_all_by_flush_and_close(manager: StreamManager) -> None:
    writer = manager.create_writer(S, "w", event_time=int)
    for moment in (10, 20):
        writer.write_event(b"%d" % moment, "k").result()
    assert noted(manager) == 10
    runtime_of(manager).sleep(EVENT_TIME_NOTE_SECONDS)
    writer.write_event(b"30", "k").result()
    assert noted(manager) == 30
    writer.write_event(b"40", "k").result()
    assert noted(manager) == 30
    writer.flush()
    assert noted(manager) == 40
    before = version(manager)
    writer.flush()
    assert version(manager) == before, "nothing is new"
    writer.write_event(b"50", "k")
    writer.close()
    assert noted(manager) == 50


def test_what_is_left_is_noted_after_a_while(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noted_times, "AUTOMATIC_NOTE_SECONDS", 0.01)
    with manager.create_writer(S, "w", event_time=int) as writer:
        for event in (b"10", b"20"):
            writer.write_event(event, "k").result()
        deadline = time.monotonic() + 120.0
        while noted(manager) != 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_busy_writer_without_later_events_is_not_silent(manager: StreamManager) -> None:
    with manager.create_writer(S, "w", event_time=int) as writer:
        writer.write_event(b"10", "k").result()
        first = mark(manager)
        runtime_of(manager).sleep(2.0)
        writer.write_event(b"9", "k").result()
        again = mark(manager)
    assert first is not None
    assert again is not None
    assert (again.time_us, again.version) == (10_000, first.version + 1)


def test_a_restarted_writer_goes_on_behind_its_last_note(manager: StreamManager) -> None:
    for moment, shown in ((10, 10), (5, 10), (12, 12)):
        with manager.create_writer(S, "w", event_time=int) as writer:
            writer.write_event(b"%d" % moment, "k")
        assert noted(manager) == shown


WRITES: list[Callable[[Any], object]] = [
    lambda writer: writer.write_event(b"10", "k"),
    lambda writer: writer.write_events([b"3", b"10", b"7"], "k"),
    lambda writer: writer.write_event(b"10", "k", expected=writer.last_event_number),
    lambda writer: writer.write_table(table([3, 10, 7])),
    lambda writer: writer.write_table(table([3, 10]), expected=writer.last_event_number),
]


def table(times: list[int]) -> pa.Table:
    stamps = pa.array([at(time) for time in times], pa.timestamp("ms", "UTC"))
    return pa.table({"event": pa.array([b"row"] * len(times), pa.binary()), "timestamp": stamps})


@pytest.mark.parametrize("write", WRITES)
def test_every_kind_of_write_is_noted(
    manager: StreamManager, write: Callable[[Any], object]
) -> None:
    with manager.create_writer(S, "w", event_time=int) as writer:
        write(writer)
        writer.flush()
        assert noted(manager) == 10


def test_a_large_event_is_noted(manager: StreamManager) -> None:
    with manager.create_writer(S, "w", event_time=len, large_events=True) as writer:
        writer.write_event(bytes(9 << 20)).result()
        writer.flush()
        assert noted(manager) == 9 << 20


def test_an_event_that_is_refused_is_not_written_and_breaks_nothing(manager: StreamManager) -> None:
    with manager.create_writer(S, "w", event_time=int) as writer:
        with pytest.raises(ValueError, match="invalid literal"):
            writer.write_event(b"no number", "k")
        with pytest.raises(InvalidInput, match="event_time of an event"):
            manager.create_writer(S, event_time=lambda event: 1.5).write_event(b"1")  # type: ignore
        with pytest.raises(InvalidInput, match="a routing key"):
            writer.write_event(b"10", 5)  # type: ignore[arg-type]
        writer.flush()
        assert noted(manager) is None
    assert list(manager.read(S)) == []


def encoded(event: dict[str, Any]) -> bytes:
    if "bad" in event:
        raise ValueError("not for this stream")
    return bytes(event.get("size", 1))


LATE = {"at": 90_000}
REFUSED: dict[str, Callable[[Any], object]] = {
    "a batch with a bad time": lambda w: w.write_events([LATE, {"at": None}], "k"),
    "a batch with a bad event": lambda w: w.write_events([LATE, {"at": 1, "bad": 1}], "k"),
    "an event with a bad key": lambda w: w.write_event(LATE, 5),
    "a batch with a bad key": lambda w: w.write_events([LATE], 5),
    "a bad event": lambda w: w.write_event({**LATE, "bad": 1}, "k"),
    "an event that is too large": lambda w: w.write_event({**LATE, "size": 9 << 20}, "k"),
    "a batch that is no list": lambda w: w.write_events(LATE, "k"),
}
REFUSED_BY_A_WRITER: dict[str, Callable[[Any], object]] = {
    **REFUSED,
    "a batch that is too large": lambda w: w.write_events([{**LATE, "size": 8 << 20}] * 5, "k"),
    "a table with a null": lambda w: w.write_table(
        pa.table({"event": [b"1", None], "timestamp": table([90_000, 1])["timestamp"]})
    ),
    "a bad condition": lambda w: w.write_event(LATE, "k", expected="tail"),
    "a batch on a bad condition": lambda w: w.write_events([LATE], "k", expected=-1),
}


def time_at(event: dict[str, Any]) -> Any:
    return event["at"]


@pytest.mark.parametrize("name", REFUSED_BY_A_WRITER)
def test_what_is_refused_tells_no_time(manager: StreamManager, name: str) -> None:
    with manager.create_writer(S, "w", serializer=encoded, event_time=time_at) as writer:
        with pytest.raises((PravegaSparkError, ValueError)):
            REFUSED_BY_A_WRITER[name](writer)
        writer.write_event({"at": 10}, "k").result()
        writer.flush()
        assert noted(manager) == 10
    assert len(list(manager.read(S))) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_transaction_refuses_tells_no_time(manager: StreamManager, name: str) -> None:
    with manager.create_transactional_writer(
        S, "tx", serializer=encoded, event_time=time_at
    ) as writer:
        with writer.begin_transaction() as transaction:
            with pytest.raises((PravegaSparkError, ValueError)):
                REFUSED[name](transaction)
            transaction.write_event({"at": 10}, "k")
        assert noted(manager) == 10
    assert len(list(manager.read(S))) == 1


def test_times_of_a_table_are_stored(manager: StreamManager) -> None:
    with manager.create_writer(S) as writer:
        writer.write_table(table([3, 10, 7]))
    assert [event.timestamp for event in manager.read(S)] == [at(3), at(10), at(7)]
    assert noted(manager) is None, "this writer notes nothing"


TIMES = [
    (pa.array([1, 2]), "must be a timestamp with a time zone, not int64"),
    (pa.array([1, 2], pa.timestamp("us")), "must be a timestamp with a time zone"),
    (pa.array([1, None], pa.timestamp("us", "UTC")), "timestamp of row 1 is null"),
    (pa.array([1, 2**62], pa.timestamp("us", "UTC")), "row 1 is beyond the years"),
    (pa.array([1, 2**62], pa.timestamp("s", "UTC")), "microseconds cannot"),
]


@pytest.mark.parametrize(("times", "message"), TIMES)
def test_wrong_times_of_a_table_are_refused(
    manager: StreamManager, times: pa.Array, message: str
) -> None:
    with manager.create_writer(S) as writer:
        with pytest.raises(InvalidInput, match=message):
            writer.write_table(pa.table({"event": [b"1", b"2"], "timestamp": times}))
        writer.write_table(table([]))


def test_a_table_without_times_is_refused_by_a_writer_that_notes_them(
    manager: StreamManager,
) -> None:
    writer = manager.create_writer(S, event_time=int)
    with pytest.raises(InvalidInput, match="needs the column timestamp"):
        writer.write_table(pa.table({"event": [b"1"]}))


def test_times_by_hand_and_by_events_exclude_each_other(manager: StreamManager) -> None:
    writer = manager.create_writer(S, event_time=int)
    with pytest.raises(IllegalState, match="event_time"):
        writer.note_time(5)
    wrong: list[tuple[dict[str, Any], type[PravegaSparkError], str]] = [
        ({"event_time": 5}, InvalidInput, "event_time must be a function"),
        ({"event_time_delay": "5 s"}, InvalidInput, "needs event_time"),
        ({"event_time": int, "event_time_delay": "soon"}, InvalidConfiguration, "event_time_delay"),
        ({"event_time": int, "automatically_note_time": True}, InvalidInput, "one of"),
    ]
    for arguments, kind, message in wrong:
        with pytest.raises(kind, match=message):
            manager.create_writer(S, **arguments)


# ---------------------------------------------------------------------------------- transactions


def test_a_commit_notes_the_time_of_its_events(manager: StreamManager) -> None:
    with manager.create_transactional_writer(
        S,
        "tx",
        serializer=json_serializer,
        event_time=lambda event: event["at"],
        event_time_delay=0.002,
    ) as writer:
        with writer.begin_transaction() as transaction:
            transaction.write_event({"at": 10})
            transaction.write_events([{"at": 12}, {"at": 11}], "k")
            transaction.flush()
        assert noted(manager) == 10
        with writer.begin_transaction() as empty:
            assert empty.is_open
        assert noted(manager) == 10
        with writer.begin_transaction() as transaction:
            transaction.write_event({"at": 30})
            transaction.commit(timestamp=at(20))
        assert noted(manager) == 20, "the timestamp of a commit wins"
        with writer.begin_transaction() as transaction:
            transaction.write_event({"at": 15})
        assert noted(manager) == 20, "each transaction has its own events, and no time goes back"
    assert json.loads(next(iter(manager.read(S))).data) == {"at": 10}


def test_a_write_that_the_storage_failed_tells_a_transaction_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    with TransactionalWriter(world.stream, "tx", times=EventTimes(int, 0)) as writer:
        transaction = writer.begin_transaction()
        transaction.write_event(b"10", "k")
        monkeypatch.setattr(txn_transaction, "TRANSACTION_BATCH_BYTES", 1)
        monkeypatch.setattr(txn_transaction, "TRANSACTION_BUFFER_BYTES", 1)
        world.store.rules.add(Rule(StoreError("the disk is full"), "put*", "*/data/*"))
        with pytest.raises(StoreError):
            transaction.write_event(b"90", "k")
        with pytest.raises(StoreError):
            transaction.write_events([b"90", b"11"], "k")
        with pytest.raises(StoreError):
            transaction.flush()
        world.store.rules.clear()
        transaction.commit()
    assert world.events() == [b"10"]
    assert [found.time_us for found in marks_of(world.process().view())] == [10_000]
