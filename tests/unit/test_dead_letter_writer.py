"""Rows that do not fit go to ``<stream>-dlq``, in order, with the reason, and none is lost."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    ObjectClosed,
    PravegaSparkError,
    SchemaMismatch,
    StoreError,
    WriterFenced,
)
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.values.limits import MAX_EVENT_BYTES, MAX_ROUTING_KEY_LENGTH
from tests.harness.failpoints import at_failpoint, held_at, register
from tests.harness.fake_runtime import FakeRuntime, manager_of

S, DLQ = "nyc/flights", "nyc/flights-dlq"
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
COLUMNS = pa.schema(
    [
        pa.field("carrier", pa.string(), False),
        ("delay", pa.int32()),
        ("left", pa.timestamp("us", "UTC")),
    ]
)


@pytest.fixture
def manager() -> StreamManager:
    manager = manager_of(FakeRuntime())
    manager.create_scope("nyc")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2), schema=COLUMNS))
    return manager


def writer_of(manager: StreamManager, writer_id: str | None = None) -> EventStreamWriter:
    return manager.create_writer(S, writer_id, bad_records="dlq")


def delays(manager: StreamManager) -> list[Any]:
    return [event.data["delay"] for event in manager.read(S)]


def letters(manager: StreamManager) -> list[tuple[str | None, Any]]:
    return [(event.routing_key, json.loads(event.data)) for event in manager.read(DLQ)]


def rows(*numbers: Any) -> pa.Table:
    """Return rows of these delays, of which those beyond an int do not fit."""
    carriers = pa.array(["UA"] * len(numbers), pa.string())
    return pa.table({"carrier": carriers, "delay": pa.array(numbers, pa.int64())})


BAD = 2**40


@pytest.mark.parametrize("writer_id", [None, "load-1"])
def test_rows_and_letters_keep_their_order_and_each_write_knows_where_its_row_is(
    manager: StreamManager, writer_id: str | None
) -> None:
    given: list[Any] = [
        {"carrier": "UA", "delay": 1},
        {"delay": 2},
        {"carrier": "UA", "delay": BAD},
        {"carrier": "UA", "delay": 3, "fare": Decimal("1.50")},
        {"carrier": "UA", "delay": 4},
    ]
    with writer_of(manager, writer_id) as writer:
        futures = [writer.write_event(row, "UA") for row in given]
        pointers = [future.result() for future in futures]
        assert writer.last_event_number == 5
    assert [pointer.stream for pointer in pointers] == [S, DLQ, DLQ, DLQ, S]
    assert delays(manager) == [1, 4]
    assert letters(manager) == [
        ("UA", {"reason": reason, "column": column, "value": value, "row": row})
        for row, (column, value, reason) in zip(
            [given[1], given[2], {**given[3], "fare": "1.50"}],
            [
                ("carrier", "None", "null, and the column is required"),
                ("delay", str(BAD), "it is out of the range of int32, -2147483648 to 2147483647"),
                ("fare", "Decimal('1.50')", "the schema has no such column"),
            ],
            strict=True,
        )
    ]
    configuration = manager.stream_info(DLQ).configuration
    assert (configuration.schema, configuration.scaling.minimum) == (None, 2)


@pytest.mark.parametrize("writer_id", [None, "load-1"])
def test_lists_and_tables_are_split_and_have_a_pointer_for_each_row(
    manager: StreamManager, writer_id: str | None
) -> None:
    with writer_of(manager, writer_id) as writer:
        listed = [{"carrier": "UA", "delay": n} for n in (1, BAD, 2, BAD + 1)]
        of_list = writer.write_events(listed, "UA").result()
        of_table = writer.write_table(rows(3, BAD + 2, BAD + 3, 4, 5), routing_key="carrier")
        found = [*of_list, *of_table.result()]
        assert len(of_table.result()) == 5
        assert of_table.result()[1:3] == tuple(found[5:7])
        assert writer.last_event_number == 9
    assert delays(manager) == [1, 2, 3, 4, 5]
    assert [row["row"]["delay"] for _, row in letters(manager)] == [BAD, BAD + 1, BAD + 2, BAD + 3]
    assert {key for key, _ in letters(manager)} == {"UA"}
    for number, pointer in zip([1, BAD, 2, BAD + 1, 3, BAD + 2, BAD + 3, 4, 5], found, strict=True):
        data = manager.fetch_event(pointer).data
        row = json.loads(data)["row"] if isinstance(data, bytes) else data
        assert row["delay"] == number


def test_rows_that_all_fit_make_no_stream_and_wait_for_nothing(manager: StreamManager) -> None:
    with writer_of(manager) as writer:
        writer.write_event({"carrier": "UA", "delay": 1}, "UA")
        writer.write_events([{"carrier": "UA", "delay": 2}], "UA")
        writer.write_table(rows(3), routing_key="carrier")
        writer.write_table(rows(), routing_key="carrier")
        writer.write_events([], "UA")
    assert delays(manager) == [1, 2, 3]
    assert not manager.stream_exists(DLQ)


def test_rows_of_tables_without_a_time_with_a_long_key_or_too_large_are_letters(
    manager: StreamManager,
) -> None:
    large, long = "x" * (MAX_EVENT_BYTES + 1), "k" * (MAX_ROUTING_KEY_LENGTH + 1)
    frame = pl.DataFrame(
        {
            "carrier": ["UA", "AA", "B6", large],
            "left": [NOON, None, NOON, NOON],
            "routing_key": ["a", "b", long, "c"],
        }
    )
    with writer_of(manager) as writer:
        writer.write_table(frame, event_time="left").result()
        with pytest.raises(IndexError):
            writer.write_table(frame[:1], event_time="left").result()[1]
        writer.write_event({"carrier": large}, "a").result()
    assert [event.data["carrier"] for event in manager.read(S)] == ["UA", "UA"]
    found = {(key, row["column"], row["reason"][:30]): row for key, row in letters(manager)}
    assert set(found) == {
        ("b", "left", "null, and an event needs a time"[:30]),
        (None, "routing_key", "a routing key of more than 4096"[:30])
        if MAX_ROUTING_KEY_LENGTH == 4096
        else (None, "routing_key", f"a routing key of more than {MAX_ROUTING_KEY_LENGTH}"[:30]),
        ("c", "carrier", "an event has at most 8388608 b"),
        ("a", "carrier", "an event has at most 8388608 b"),
    }
    assert [row["row"] for row in found.values()].count(None) == 2


def test_table_of_which_no_row_can_fit_is_refused_and_nothing_is_written(
    manager: StreamManager,
) -> None:
    with writer_of(manager) as writer:
        with pytest.raises(SchemaMismatch, match="no column 'fare'"):
            writer.write_table(pa.table({"carrier": ["UA"], "fare": [1]}))
        with pytest.raises(SchemaMismatch, match="convert the column first"):
            writer.write_table(pa.table({"carrier": [1]}))
        with pytest.raises(InvalidInput, match="routing_key names the column 'gate'"):
            writer.write_table(rows(1, BAD), routing_key="gate")
        for wrong in (7, "UA", None, b"bytes"):
            with pytest.raises(PravegaSparkError):
                writer.write_event(wrong)
            with pytest.raises(PravegaSparkError):
                writer.write_events(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="routing key"):
            writer.write_event({"delay": 1}, routing_key=7)  # type: ignore[arg-type]
    assert delays(manager) == []
    assert not manager.stream_exists(DLQ)


def test_rows_that_python_or_json_cannot_hold_are_letters_as_far_as_they_can_be(
    manager: StreamManager,
) -> None:
    texts = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])),
                         pa.py_buffer(b"\xffa")]
    )  # fmt: skip
    late = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("us", "UTC"))
    loop: dict[str, Any] = {"carrier": "UA"}
    loop["delay"] = [loop]
    with writer_of(manager) as writer:
        writer.write_table(pa.table({"carrier": texts}), routing_key="carrier").result()
        writer.write_table(pa.table({"carrier": ["b", "c"], "left": late}), event_time="left")
        writer.write_table(pa.table({"carrier": ["d", "e"], "routing_key": texts})).result()
        writer.write_event(loop, "UA").result()
        with pytest.raises(InvalidInput, match="takes a list of events"):
            writer.write_events(loop)
    assert sorted(event.data["carrier"] for event in manager.read(S)) == ["a", "b", "e"]
    assert sorted(row["column"] for _, row in letters(manager)) == [
        "carrier", "delay", "left", "routing_key"
    ]  # fmt: skip
    assert [row["row"] for _, row in letters(manager)].count(None) == 1
    with pytest.raises(ObjectClosed, match="the writer of stream nyc/flights was closed"):
        writer.write_event({"delay": 1})


def test_a_newer_schema_is_looked_for_before_a_row_is_a_letter(manager: StreamManager) -> None:
    with writer_of(manager) as writer:
        writer.write_event({"carrier": "UA", "delay": 1}, "UA")
        manager.update_stream(S, schema=COLUMNS.append(pa.field("gate", pa.string())))
        writer.write_event({"carrier": "UA", "delay": 2, "gate": "A1"}, "UA")
        writer.write_table(pa.table({"carrier": ["UA", None], "gate": ["A2", "A3"]}))
    assert [event.data["gate"] for event in manager.read(S)].count(None) == 1
    assert len(letters(manager)) == 1


def test_what_a_writer_with_dead_letters_does_not_do_is_refused(manager: StreamManager) -> None:
    manager.create_stream("nyc/raw")
    with pytest.raises(InvalidInput, match="no schema that a row could fail"):
        manager.create_writer("nyc/raw", bad_records="dlq")
    with pytest.raises(InvalidInput, match="'fail' or 'dlq', not 'skip'"):
        manager.create_writer(S, bad_records="skip")
    with writer_of(manager, "load-1") as writer:
        with pytest.raises(InvalidInput, match="resume after last_event_number rows"):
            writer.flush(note="flights.csv:3")
        with pytest.raises(InvalidInput, match="without bad_records"):
            writer.write_event({"carrier": "UA"}, expected=0)
        refused: list[type] = []

        def again(_: Any) -> None:
            with pytest.raises(IllegalState, match="on another thread"):
                writer.write_event({"carrier": "UA", "delay": 9}, "UA")
            refused.append(IllegalState)

        with held_at("append.staged") as is_watched:
            future = writer.write_event({"carrier": "UA", "delay": 1}, "UA")
            future.add_done_callback(again)
            is_watched.set()
            writer.flush()
    assert (delays(manager), refused) == ([1], [IllegalState])


def test_letters_of_a_stream_that_is_typed_are_refused(manager: StreamManager) -> None:
    manager.create_stream(DLQ, StreamConfiguration(schema=COLUMNS))
    with writer_of(manager) as writer:
        writer.write_event({"carrier": "UA", "delay": 1}, "UA")
        with pytest.raises(InvalidInput, match="dead letters are bytes"):
            writer.write_event({"delay": 1}, "UA")
    with pytest.raises(InvalidInput, match="dead letters are bytes"):
        writer_of(manager, "load-1")
    assert delays(manager) == [1]


def test_letters_whose_stream_was_deleted_raise_and_a_new_writer_creates_it(
    manager: StreamManager,
) -> None:
    writer = writer_of(manager)
    writer.write_event({"delay": 1}, "UA").result()
    manager.seal_stream(DLQ)
    manager.delete_stream(DLQ)
    with pytest.raises(PravegaSparkError, match="nyc/flights-dlq"):
        writer.write_event({"delay": 2}, "UA").result()
    writer.close()  # the failure was reported
    with writer_of(manager) as again:
        again.write_event({"delay": 3}, "UA").result()
    assert [row["row"] for _, row in letters(manager)] == [{"delay": 3}]


@pytest.mark.parametrize("kind", ["table", "list", "events"])
@pytest.mark.parametrize("part", range(6))
def test_crash_between_the_streams_loses_and_repeats_no_row_of_a_writer_id(
    manager: StreamManager, kind: str, part: int
) -> None:
    """Whatever part of the rows is durable, ``last_event_number`` says where to go on."""
    table = rows(0, BAD, 1, 2, BAD + 1, BAD + 2, 3)
    calls = 0

    def die() -> None:
        nonlocal calls
        calls += 1
        if calls == part + 1:
            raise RuntimeError("killed")

    def write(writer: EventStreamWriter, left: pa.Table) -> None:
        if kind == "table":
            writer.write_table(left, routing_key="carrier").result()
        elif kind == "list":
            writer.write_events(left.to_pylist(), "UA").result()
        for row in left.to_pylist() if kind == "events" else ():
            die()
            writer.write_event(row, "UA")

    dead = writer_of(manager, "load-1")
    register("dead_letters.next", die)
    with contextlib.suppress(RuntimeError):
        write(dead, table)
    register("dead_letters.next", None)
    with writer_of(manager, "load-1") as writer:
        if kind != "events":
            assert writer.last_event_number == [0, 1, 2, 4, 6, 7][part]
        write(writer, table.slice(writer.last_event_number))
        writer.flush()
        assert writer.last_event_number == 7
    assert delays(manager) == [0, 1, 2, 3]
    assert [row["row"]["delay"] for _, row in letters(manager)] == [BAD, BAD + 1, BAD + 2]


@pytest.mark.parametrize("of_letters", [False, True])
def test_nothing_is_written_behind_a_write_that_failed(
    manager: StreamManager, of_letters: bool
) -> None:
    good, bad = {"carrier": "UA", "delay": 1}, {"delay": 2}
    first, second = (bad, good) if of_letters else (good, bad)

    def fail() -> None:
        raise StoreError("the disk is full")

    writer = writer_of(manager, "load-1")
    with at_failpoint("append.staged", fail):
        future = writer.write_event(first, "UA")
        with pytest.raises(StoreError):
            writer.write_event(second, "UA")
    with pytest.raises(StoreError):
        future.result()
    with writer_of(manager, "load-1") as again:
        assert again.last_event_number == 0
    assert (delays(manager), letters(manager)) == ([], [])


def test_an_older_process_of_the_writer_id_is_fenced_in_both_streams(
    manager: StreamManager,
) -> None:
    old = writer_of(manager, "load-1")
    old.write_events([{"carrier": "UA", "delay": 1}, {"delay": 2}], "UA").result()
    with writer_of(manager, "load-1") as new:
        assert new.last_event_number == 2
        for row in ({"carrier": "UA"}, {"delay": 3}):
            with pytest.raises(WriterFenced):
                old.write_event(row, "UA").result()
    assert (len(delays(manager)), len(letters(manager))) == (1, 1)


@pytest.mark.medium
def test_floats_of_a_letter_can_be_written_again_once_its_row_is_mended(
    manager: StreamManager,
) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), False), ("x", pa.float64())])
    manager.create_stream("nyc/floats", StreamConfiguration(schema=columns))
    with manager.create_writer("nyc/floats", bad_records="dlq") as writer:
        for x in (float("nan"), float("inf"), float("-inf")):
            writer.write_event({"id": None, "x": x})
    found = [json.loads(event.data)["row"]["x"] for event in manager.read("nyc/floats-dlq")]
    assert found == ["NaN", "Infinity", "-Infinity"]
