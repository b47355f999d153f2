"""Tables in transactions: their rows become visible with all other events, or never."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager, TransactionStatus
from pravega_spark.errors import (
    EventTooLarge,
    InvalidInput,
    PravegaSparkError,
    SchemaMismatch,
    StoreError,
    TxnFailed,
)
from pravega_spark.manager import root_of
from pravega_spark.txn.transaction import Transaction
from pravega_spark.values.limits import MAX_EVENT_BYTES
from tests.harness.fake_runtime import FakeRuntime, manager_of
from tests.harness.fault_plans import Rule
from tests.harness.small_streams import events_of, scale
from tests.harness.transaction_world import World, begun, decide_abort

S, RAW = "nyc/flights", "nyc/raw"
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
COLUMNS = pa.schema([pa.field("carrier", pa.string(), False), ("delay", pa.int32())])


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def manager() -> StreamManager:
    manager = manager_of(FakeRuntime())
    manager.create_scope("nyc")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2), schema=COLUMNS))
    manager.create_stream(RAW, StreamConfiguration(ScalingPolicy.fixed(2)))
    return manager


def small_buffer(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(f"pravega_spark.txn.transaction.{name}", value)


def table(first: int, count: int, key: str | None = "k") -> pa.Table:
    """Return raw events that are numbers."""
    events = [b"%03d" % n for n in range(first, first + count)]
    return pa.table(
        {
            "event": pa.array(events, pa.binary()),
            "routing_key": pa.array([key] * count, pa.string()),
        }
    )


@pytest.mark.parametrize("limit", [1, 1_000, 1 << 20])
def test_rows_are_in_order_among_the_other_events_of_their_keys(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    small_buffer(
        monkeypatch, TRANSACTION_BUFFER_BYTES=limit, CHUNK_EVENTS=60, TRANSACTION_BATCH_BYTES=500
    )
    txn = begun(world.stream)
    expected: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
    for n in range(4):
        rows: dict[str, list[Any]] = {"event": [], "routing_key": []}
        for i in range(100):
            key = "abc"[i % 3]
            rows["event"].append(b"%d %03d" % (n, i))
            rows["routing_key"].append(key)
            expected[key].append(rows["event"][-1])
        txn.write_table(pa.table(rows))
        for key, events in expected.items():
            txn.write_event(b"single %d" % n, key)
            events.append(b"single %d" % n)
        if n == 1:
            txn.flush()
    assert world.events() == []
    txn.commit()
    found = [pair for s in (0, 1) for pair in events_of(world.process(), s)]
    for key, events in expected.items():
        assert [event for k, event in found if k == key] == events
    assert len(found) == 412


def test_rows_without_a_key_share_one_segment_and_batches_are_tables(world: World) -> None:
    txn = begun(world.stream)
    txn.write_table(table(0, 50, None).to_batches()[0])
    txn.write_table(pa.table({"event": [b"050"]}))
    txn.commit()
    by_segment = [events_of(world.process(), s) for s in (0, 1)]
    assert sorted(map(len, by_segment)) == [0, 51]
    assert [event for part in by_segment for _, event in part] == [b"%03d" % n for n in range(51)]


def test_rows_have_their_own_times_or_that_of_the_call(manager: StreamManager) -> None:
    timed = pa.table({"event": [b"x"], "timestamp": pa.array([NOON], pa.timestamp("us", "UTC"))})
    with manager.create_transactional_writer(RAW) as writer, writer.begin_transaction() as txn:
        txn.write_table(timed)
        txn.write_table(pa.table({"event": [b"y"]}))
    times = {event.data: event.timestamp_us for event in manager.read(RAW)}
    assert times[b"x"] == int(NOON.timestamp()) * 1_000_000
    assert times[b"y"] == root_of(manager).runtime.now_us()


@pytest.mark.parametrize("failure", ["column", "row", "size", "storage", "storage at the end"])
def test_a_table_that_is_refused_leaves_the_transaction_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    small_buffer(monkeypatch, CHUNK_EVENTS=30, TRANSACTION_BATCH_BYTES=500)
    txn = begun(world.stream)
    txn.write_event(b"before", "k")
    rows = table(0, 100)
    if failure == "column":
        rows = rows.rename_columns(["data", "routing_key"])
    elif failure == "row":
        rows = pa.table({"event": [*rows["event"].to_pylist(), None]})
    elif failure == "size":
        rows = pa.table({"event": [b"x", bytes(MAX_EVENT_BYTES + 1)]})
    elif failure == "storage":
        world.store.rules.add(Rule(StoreError("the disk is full"), "put*", "*/data/*"))
    else:  # when the older event is staged, after the rows were
        world.store.rules.add(Rule(StoreError("the disk is full"), "put*", "*/data/*", nth=4))
    with pytest.raises((InvalidInput, EventTooLarge, StoreError)):
        txn.write_table(rows)
    world.store.rules.clear()
    txn.write_event(b"after", "k")
    txn.commit()
    assert world.events() == [b"before", b"after"]


def test_a_table_without_rows_adds_nothing_and_one_for_an_ended_transaction_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = begun(world.stream)
    txn.write_table(table(0, 0))
    txn.commit()
    assert world.events() == []
    with pytest.raises(TxnFailed, match="was committed"):
        txn.write_table(table(0, 1))
    small_buffer(monkeypatch, CHUNK_EVENTS=30, TRANSACTION_BATCH_BYTES=500)
    ended = begun(world.stream)
    decide_abort(world.process(), ended.id)
    with pytest.raises(TxnFailed, match="ABORTING"):  # after the first chunks of many
        ended.write_table(table(0, 200))
    assert world.chunks(ended) < 6


def test_rows_are_routed_by_the_epoch_of_the_begin_and_a_scale_keeps_their_order(
    world: World,
) -> None:
    txn = begun(world.stream)
    txn.write_table(table(0, 5))
    active = scale(world.process(), [0, 1], [(0.0, 0.3), (0.3, 0.6), (0.6, 1.0)]).active
    txn.write_table(table(5, 5))
    txn.flush()
    scale(world.process(), active.segment_ids, [(0.0, 1.0)])
    txn.write_table(table(10, 5))
    txn.commit()
    after = begun(world.process())
    after.write_table(table(15, 1))
    after.commit()
    assert world.events() == [b"%03d" % n for n in range(16)]


# ------------------------------------------------------------------------------- typed streams


def data(manager: StreamManager, stream: str = S) -> list[Any]:
    return [event.data for event in manager.read(stream)]


@pytest.mark.parametrize("made", [pa.table, pd.DataFrame, pl.DataFrame])
def test_tables_of_columns_are_written_by_key_and_time(manager: StreamManager, made: Any) -> None:
    rows = made({"carrier": ["UA", "AA", "UA"], "delay": [1, 2, 3]})
    with manager.create_transactional_writer(S) as writer, writer.begin_transaction() as txn:
        txn.write_event({"carrier": "UA", "delay": 0}, "UA")
        if made is pa.table:
            rows = rows.set_column(1, "delay", rows["delay"].cast(pa.int32()))
        txn.write_table(rows, routing_key="carrier")
        assert data(manager) == []
    found = list(manager.read(S))
    assert {event.data["carrier"] for event in found} == {event.routing_key for event in found}
    assert [e.data["delay"] for e in found if e.routing_key == "UA"] == [0, 1, 3]


def test_a_row_that_does_not_fit_is_named_and_nothing_of_its_table_is_written(
    manager: StreamManager,
) -> None:
    with manager.create_transactional_writer(S) as writer, writer.begin_transaction() as txn:
        txn.write_table(pa.table({"carrier": ["UA"]}))
        with pytest.raises(SchemaMismatch) as refused:
            txn.write_table(pa.table({"carrier": ["AA", None]}))
        assert (refused.value.row, refused.value.column) == (1, "carrier")
        with pytest.raises(InvalidInput, match=r"routing_key names the column 'fare'"):
            txn.write_table(pa.table({"carrier": ["AA"]}), routing_key="fare")
        with pytest.raises(PravegaSparkError, match="a table or batch of Arrow"):
            txn.write_table([{"carrier": "AA"}])
    assert data(manager) == [{"carrier": "UA", "delay": None}]


def test_a_table_of_a_newer_schema_follows_rows_of_the_older_one_over_a_scale(
    manager: StreamManager,
) -> None:
    with manager.create_transactional_writer(S) as writer:
        txn = writer.begin_transaction()
        txn.write_table(pa.table({"carrier": ["UA"]}), routing_key="carrier")
        manager.update_stream(S, schema=COLUMNS.append(pa.field("tail", pa.string())))
        manager.scale_stream(S, ["0#0", "1#0"], [(0.0, 0.3), (0.3, 1.0)])
        newer = pa.table({"carrier": ["UA", "UA"], "tail": ["N1", None]})
        txn.write_table(newer, routing_key="carrier")
        txn.write_table(pa.table({"carrier": ["UA"]}), routing_key="carrier")
        txn.commit()
        assert txn.status is TransactionStatus.COMMITTED
    assert [row["tail"] for row in data(manager)] == [None, "N1", None, None]


def test_a_transaction_notes_the_times_of_the_rows(manager: StreamManager) -> None:
    columns = pa.schema([("at", pa.timestamp("us", "UTC"))])
    manager.create_stream("nyc/timed", StreamConfiguration(schema=columns))
    with (
        manager.create_transactional_writer("nyc/timed", "w", event_time="at") as writer,
        writer.begin_transaction() as txn,
    ):
        txn.write_table(pa.table({"at": pa.array([NOON], columns.field(0).type)}))
    (event,) = manager.read("nyc/timed")
    assert event.timestamp_us == int(NOON.timestamp()) * 1_000_000
    (mark,) = manager.event_time("nyc/timed").marks()
    assert mark.time_us == int(NOON.timestamp()) * 1_000_000


def test_a_joint_transaction_writes_tables_to_each_stream_or_to_none(
    manager: StreamManager,
) -> None:
    rows = pa.table({"carrier": ["UA"], "delay": pa.array([4], pa.int32())})
    with manager.create_joint_writer([S, RAW]) as writer:
        with writer.begin_transaction() as both:
            both.write_table(S, rows, routing_key="carrier")
            manager.scale_stream(S, ["0#0", "1#0"], [(0.0, 0.3), (0.3, 1.0)])
            both.write_table(RAW, table(0, 2))
        dropped = writer.begin_transaction()
        dropped.write_table(S, rows)
        with pytest.raises(InvalidInput, match="not one of the streams"):
            dropped.write_table("nyc/other", rows)
        dropped.abort()
    assert data(manager) == [{"carrier": "UA", "delay": 4}]
    assert data(manager, RAW) == [b"000", b"001"]


def test_another_process_writes_its_table_into_the_transaction(world: World) -> None:
    txn = begun(world.stream)
    txn.write_table(table(0, 3))
    txn.flush()
    theirs = Transaction(world.process(), txn.id)
    theirs.write_table(table(3, 3))
    theirs.flush()
    txn.commit()
    assert world.events() == [b"%03d" % n for n in range(6)]
