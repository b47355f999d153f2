"""Frames that are written to typed streams, without Spark: columns, checks, and dead letters."""

from __future__ import annotations

import json
import pickle
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pravega_spark.config.encryption import EncryptionPolicy
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.key_management import set_kms
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import (
    InvalidInput,
    InvalidOption,
    InvalidSchema,
    NoSuchStream,
    SchemaMismatch,
)
from pravega_spark.manager import StreamManager
from pravega_spark.spark.write.sink import PravegaStreamWriter
from pravega_spark.spark.write.task_run import TaskRun
from pravega_spark.values.limits import MAX_EVENT_BYTES, MAX_ROUTING_KEY_LENGTH
from tests.harness import file_kms
from tests.harness.failpoints import at_failpoint
from tests.harness.file_kms import MasterKeys
from tests.harness.spark_writing import batch_writer, schema, source

AT = datetime(2013, 1, 1, 10, tzinfo=timezone.utc)
FLIGHTS = pa.schema(
    [
        pa.field("carrier", pa.string(), False),
        ("flight", pa.int32()),
        ("fare", pa.decimal128(10, 2)),
        ("day", pa.date32()),
    ]
)
FRAME = {"carrier": "string", "flight": "integer"}


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    """A root with the typed stream ``s/a`` of two segments."""
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    scaling = ScalingPolicy.fixed(2)
    manager.create_stream("s/a", StreamConfiguration(scaling=scaling, schema=FLIGHTS))
    return manager


def write(root: Path, rows: list[dict[str, Any]], frame: dict[str, str], **options: str) -> None:
    """Write rows as two tasks do."""
    writer = batch_writer(root, frame, **options)
    half = len(rows) // 2
    batches = [pa.RecordBatch.from_pylist(part) for part in (rows[:half], rows[half:]) if part]
    writer.commit(pickle.loads(pickle.dumps([writer.write(iter([batch])) for batch in batches])))


def carriers(manager: StreamManager, name: str = "s/a") -> list[tuple[str | None, str, Any]]:
    found = [(e.routing_key, e.data["carrier"], e.data["flight"]) for e in manager.read(name)]
    return sorted(found, key=str)


def letters(manager: StreamManager, name: str = "s/a-dlq") -> list[tuple[str | None, Any]]:
    return [(event.routing_key, json.loads(event.data)) for event in manager.read(name)]


def test_columns_go_by_name_in_any_case_and_missing_ones_are_null(
    manager: StreamManager, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [{"Flight": 7, "CARRIER": "UA"}, {"Flight": None, "CARRIER": "B6"}]
    write(tmp_path, rows, {"Flight": "integer", "CARRIER": "string"}, routingKey="Carrier")
    assert carriers(manager) == [("B6", "B6", None), ("UA", "UA", 7)]
    (first, _) = manager.read("s/a")
    assert set(first.data) == set(FLIGHTS.names)


def test_columns_of_a_read_are_the_key_and_the_time_and_no_more(
    manager: StreamManager, tmp_path: Path
) -> None:
    frame = {
        **{"scope": "string", "stream": "string", "segment_id": "long", "offset": "long"},
        **{"routing_key": "string", **FRAME, "timestamp": "timestamp", "timestamp_type": "integer"},
    }
    row = dict(zip(frame, ("x", "y", 1, 2, "key", "UA", 7, AT, 0), strict=True))
    write(tmp_path, [row], frame)
    (event,) = manager.read("s/a")
    assert (event.routing_key, event.timestamp) == ("key", AT)
    assert (event.data["carrier"], event.data["flight"]) == ("UA", 7)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("long", 7, "7"),
        ("decimal(5,1)", Decimal("7.5"), "7.5"),
        ("boolean", True, "true"),
        ("date", date(2013, 1, 1), "2013-01-01"),
        ("string", None, None),
    ],
)
def test_key_may_be_a_column_that_the_schema_lacks(
    manager: StreamManager, tmp_path: Path, kind: str, value: Any, text: str | None
) -> None:
    batch = pa.record_batch({"carrier": ["UA"], "id": pa.array([value], _arrow(kind))})
    writer = batch_writer(tmp_path, {"carrier": "string", "id": kind}, routingKey="id")
    writer.commit([writer.write(iter([batch]))])
    assert carriers(manager) == [(text, "UA", None)]


def _arrow(kind: str) -> pa.DataType:
    decimal = pa.decimal128(5, 1)
    known = {"long": pa.int64(), "boolean": pa.bool_(), "date": pa.date32(), "string": pa.string()}
    return known.get(kind, decimal)


@pytest.mark.parametrize(
    ("frame", "options", "reason"),
    [
        ({"flight": "integer"}, {}, "required column carrier is missing; the frame has flight"),
        ({**FRAME, "carier": "string"}, {}, "no column 'carier'; is carrier meant"),
        ({"carrier": "integer"}, {}, "column carrier: int32 is not string; convert"),
        ({**FRAME, "day": "timestamp_ntz"}, {}, r"column day: timestamp\[us\] is not date32"),
        ({**FRAME, "day": "interval"}, {}, "column day of type interval cannot be written"),
        (FRAME, {"routingKey": "gate"}, "option routingKey names 'gate', but .* carrier, flight"),
        (
            FRAME,
            {"routingKey": "upper(carrier)"},
            r"withColumn\(\"routing_key\", expr\('upper\(carrier\)'\)\), .* routingKey=routing_key",
        ),
        (FRAME, {"eventTime": "now()"}, r"withColumn\(\"event_time\", expr\('now\(\)'\)\)"),
        ({**FRAME, "f": "double"}, {"routingKey": "f"}, "f, since double has no text form"),
        (FRAME, {"eventTime": "flight"}, "column flight must be a timestamp, but is int"),
        ({**FRAME, "timestamp": "long"}, {}, "column timestamp must be a timestamp"),
        ({**FRAME, "timestamp": "timestamp_ntz"}, {}, r"CAST\(timestamp AS TIMESTAMP\)"),
        ({**FRAME, "Flight": "integer"}, {}, "columns flight, Flight differ in case only"),
        (FRAME, {"columnNames": "kafka"}, "columnNames=kafka is for streams of bytes"),
        (FRAME, {"nullValues": "skip"}, "nullValues=skip is for streams of bytes"),
        (FRAME, {"schema": "raw"}, "schema=raw is for streams of bytes, and stream s/a is typed"),
    ],
)
def test_frame_that_cannot_fit_is_refused_before_any_task_runs(
    manager: StreamManager,
    tmp_path: Path,
    frame: dict[str, str],
    options: dict[str, str],
    reason: str,
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        source(tmp_path, **options).writer(schema(**frame), False)
    assert list(manager.read("s/a")) == []


def test_row_that_does_not_fit_fails_the_write_with_its_place(
    manager: StreamManager, tmp_path: Path
) -> None:
    writer = batch_writer(tmp_path, {**FRAME, "flight": "long"})
    good = pa.record_batch({"carrier": ["UA"] * 3, "flight": [1, 2, 3]})
    bad = pa.record_batch({"carrier": ["UA", "B6"], "flight": [4, 2**40]})
    with pytest.raises(SchemaMismatch, match=r"s/a: partition 0 of the frame: row 4, col") as found:
        writer.write(iter([good, bad]))
    assert (found.value.row, found.value.column, found.value.value) == (4, "flight", str(2**40))
    assert list(manager.read("s/a")) == []


def test_infer_makes_a_typed_stream_of_the_frame_s_columns(
    manager: StreamManager, tmp_path: Path
) -> None:
    frame = {
        "routing_key": "string",
        "carrier": "string",
        "at": "timestamp",
        "timestamp": "timestamp",
    }
    row = {"routing_key": "k", "carrier": "UA", "at": AT, "timestamp": AT + timedelta(hours=1)}
    write(tmp_path, [row], frame, path="s/new", schema="infer", numSegments="3")
    found = manager.stream_info("s/new").configuration
    assert str(found.schema) == "carrier string, at timestamp"
    assert found.scaling.minimum == 3
    (event,) = manager.read("s/new")
    assert (event.data, event.routing_key) == ({"carrier": "UA", "at": AT}, "k")
    write(tmp_path, [row], frame, path="s/new", schema="infer")  # that exists: rows are added
    assert len(list(manager.read("s/new"))) == 2


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ({"at": "timestamp_ntz"}, "column at of type timestamp_ntz .* use timestamp"),
        ({"event": "binary"}, "cannot be named 'event'"),
        ({"v": "variant"}, "column v of type variant .* use string, with to_json"),
        ({"routing_key": "string", "offset": "long"}, "all of which are streams' own"),
    ],
)
def test_frame_without_a_schema_creates_no_stream(
    manager: StreamManager, tmp_path: Path, frame: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        source(tmp_path, path="s/new", schema="infer").writer(schema(**frame), False)
    assert not manager.stream_exists("s/new")


def test_stream_of_bytes_takes_no_options_of_typed_ones(
    manager: StreamManager, tmp_path: Path
) -> None:
    manager.create_stream("s/raw")
    frame = schema(event="binary")
    for options, reason in (
        ({"schema": "infer"}, "stream s/raw exists, and its events are bytes"),
        ({"badRecords": "dlq"}, "stream s/raw has no schema that a row could fail"),
    ):
        with pytest.raises(InvalidOption, match=reason):
            source(tmp_path, path="s/raw", **options).writer(frame, False)
    with pytest.raises(InvalidOption, match="Or set the option schema to infer"):
        source(tmp_path, path="s/other").writer(schema(**FRAME), False)
    assert not manager.stream_exists("s/other")


def test_query_writes_typed_rows_once_and_goes_on_after_the_schema_grew(
    manager: StreamManager, tmp_path: Path
) -> None:
    batch = pa.record_batch({"carrier": ["UA"], "flight": pa.array([1], pa.int32())})
    for number in (0, 0, 1):
        writer = _stream_writer(tmp_path)
        message = writer.write(iter([batch]))
        message.task = TaskRun("q")
        if number == 1:
            manager.update_stream("s/a", schema=pa.schema([*FLIGHTS, ("gate", pa.string())]))
        writer.commit([message], number)
    assert carriers(manager) == [(None, "UA", 1)] * 2


def _stream_writer(root: Path, **options: str) -> Any:
    writer = source(root, **options).streamWriter(schema(**{**FRAME, "flight": "long"}), False)
    assert isinstance(writer, PravegaStreamWriter)
    return pickle.loads(pickle.dumps(writer))


# Dead letters

MIXED: list[dict[str, Any]] = [
    {"routing_key": "a", "carrier": "UA", "flight": 1},
    {"routing_key": "a", "carrier": None, "flight": 2},
    {"routing_key": "b", "carrier": "B6", "flight": 2**40},
    {"routing_key": "a", "carrier": "UA", "flight": 3},
    {"routing_key": "a", "carrier": "UA", "flight": -(2**40)},
]
MIXED_FRAME = {"routing_key": "string", "carrier": "string", "flight": "long"}


def test_dead_letters_keep_key_order_row_and_reason(manager: StreamManager, tmp_path: Path) -> None:
    write(tmp_path, MIXED, MIXED_FRAME, badRecords="dlq")
    assert carriers(manager) == [("a", "UA", 1), ("a", "UA", 3)]
    of_a = [record for key, record in letters(manager) if key == "a"]
    assert [record["row"] for record in of_a] == [MIXED[1], MIXED[4]]
    assert (of_a[0]["column"], of_a[0]["reason"]) == ("carrier", "null, and the column is required")
    assert (of_a[1]["column"], of_a[1]["value"]) == ("flight", str(-(2**40)))
    assert [key for key, _ in letters(manager)].count("b") == 1
    assert manager.stream_info("s/a-dlq").configuration.scaling.minimum == 2


def test_no_dead_letter_makes_no_stream_of_them(manager: StreamManager, tmp_path: Path) -> None:
    write(tmp_path, MIXED[:1], MIXED_FRAME, badRecords="dlq")
    assert carriers(manager) == [("a", "UA", 1)]
    assert not manager.stream_exists("s/a-dlq")


def test_rows_without_a_time_with_a_long_key_or_too_large_are_dead_letters(
    manager: StreamManager, tmp_path: Path
) -> None:
    frame = {"routing_key": "string", "carrier": "string", "at": "timestamp"}
    rows = [
        {"routing_key": "k", "carrier": "UA", "at": AT},
        {"routing_key": "k", "carrier": "UA", "at": None},
        {"routing_key": "k" * (MAX_ROUTING_KEY_LENGTH + 1), "carrier": "UA", "at": AT},
        {"routing_key": "k", "carrier": "x" * (MAX_EVENT_BYTES + 1), "at": AT},
    ]
    batch = pa.RecordBatch.from_pylist(rows)
    with pytest.raises(SchemaMismatch, match="row 1, column at: null, and an event needs a time"):
        batch_writer(tmp_path, frame, eventTime="at").write(
            iter([pa.RecordBatch.from_pylist(rows)])
        )
    writer = batch_writer(tmp_path, frame, eventTime="at", badRecords="dlq")
    writer.commit([writer.write(iter([batch]))])
    assert carriers(manager) == [("k", "UA", None)]
    found = {record["reason"]: (key, record["row"]) for key, record in letters(manager)}
    assert {key for key, _ in found.values()} == {"k", None}
    assert found["an event has at most 8388608 bytes (8 MiB)"] == ("k", None)
    assert len(found) == 3


def test_values_that_json_lacks_are_texts_in_a_dead_letter(
    manager: StreamManager, tmp_path: Path
) -> None:
    columns = [("n", pa.int8()), ("b", pa.binary()), ("d", pa.decimal128(5, 1))]
    columns += [("f", pa.float64()), ("t", pa.timestamp("us", "UTC"))]
    manager.create_stream("s/wide", StreamConfiguration(schema=pa.schema(columns)))
    frame = {"n": "long", "b": "binary", "d": "decimal(5,1)", "f": "double", "t": "timestamp"}
    batch = pa.record_batch(
        {
            "n": [1000],
            "b": [b"\xff"],
            "d": pa.array([Decimal("1.5")], pa.decimal128(5, 1)),
            "f": [float("nan")],
            "t": pa.array([AT], pa.timestamp("us", "UTC")),
        }
    )
    writer = batch_writer(tmp_path, frame, path="s/wide", badRecords="dlq")
    writer.commit([writer.write(iter([batch]))])
    ((_, record),) = letters(manager, "s/wide-dlq")
    assert record["row"] == {"n": 1000, "b": "/w==", "d": "1.5", "f": "NaN", "t": AT.isoformat()}


def test_crash_between_the_two_commits_loses_and_repeats_nothing(
    manager: StreamManager, tmp_path: Path
) -> None:
    batch = pa.RecordBatch.from_pylist(MIXED)
    frame = schema(**MIXED_FRAME)

    def run() -> None:
        found = source(tmp_path, badRecords="dlq").streamWriter(frame, False)
        writer: Any = pickle.loads(pickle.dumps(found))
        message = writer.write(iter([batch]))
        message.task = TaskRun("q")
        writer.commit([message], 7)

    def die() -> None:
        raise RuntimeError("killed")

    with at_failpoint("many_streams.committed", die), pytest.raises(RuntimeError, match="killed"):
        run()
    assert len(carriers(manager)) == 2
    assert letters(manager) == []
    run()
    run()
    assert (len(carriers(manager)), len(letters(manager))) == (2, 3)


def test_query_with_dead_letters_warns_once_of_what_is_left_of_a_kafka_query(
    manager: StreamManager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (0, 1):
        writer = _stream_writer(
            tmp_path, badRecords="dlq", **{"kafka.bootstrap.servers": "localhost:9092"}
        )
        message = writer.write(iter([pa.RecordBatch.from_pylist(MIXED[3:4])]))
        message.task = TaskRun("q")
        writer.commit([message], number)
    assert caplog.text.count("kafka.bootstrap.servers") == 1


def test_letters_of_an_encrypted_stream_are_encrypted(
    manager: StreamManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(file_kms.VARIABLE, str(tmp_path / "keys.json"))
    monkeypatch.setenv("PRAVEGA_SPARK_KMS", file_kms.FACTORY)
    MasterKeys(tmp_path / "keys.json").set(flights="a secret")
    set_kms(None)
    encryption = EncryptionPolicy("flights")
    manager.create_stream("s/secret", StreamConfiguration(schema=FLIGHTS, encryption=encryption))
    write(tmp_path, MIXED, MIXED_FRAME, path="s/secret", badRecords="dlq")
    assert manager.stream_info("s/secret-dlq").configuration.encryption == encryption
    manager.create_stream("s/other", StreamConfiguration(schema=FLIGHTS, encryption=encryption))
    manager.create_stream("s/other-dlq")
    with pytest.raises(InvalidOption, match="stream s/other is encrypted, and stream s/other-dlq"):
        source(tmp_path, path="s/other", badRecords="dlq").writer(schema(**MIXED_FRAME), False)


def test_letters_that_have_no_place_are_refused_at_the_start(
    manager: StreamManager, tmp_path: Path
) -> None:
    frame = schema(**MIXED_FRAME)
    with pytest.raises(NoSuchStream, match="s/a-dlq"):
        source(tmp_path, badRecords="dlq", createIfMissing="false").writer(frame, False)
    with manager.create_transactional_writer("s/a") as writer:
        txn = writer.begin_transaction()
        with pytest.raises(InvalidOption, match="dead letters go to another"):
            source(tmp_path, badRecords="dlq", transaction=txn.id).writer(frame, False)
        txn.abort()
    manager.create_stream("s/a-dlq", StreamConfiguration(schema=FLIGHTS))
    with pytest.raises(InvalidOption, match="stream s/a-dlq is typed, and dead letters are bytes"):
        source(tmp_path, badRecords="dlq").writer(frame, False)


def test_bad_row_leaves_a_transaction_as_it_was(manager: StreamManager, tmp_path: Path) -> None:
    with manager.create_transactional_writer("s/a") as writer:
        txn = writer.begin_transaction()
        write(tmp_path, [MIXED[0]], MIXED_FRAME, transaction=txn.id)
        with pytest.raises(SchemaMismatch, match="row 1, column carrier"):
            write(tmp_path, MIXED * 2, MIXED_FRAME, transaction=txn.id)
        txn.commit()
    assert carriers(manager) == [("a", "UA", 1)]


def test_stream_s_log_names_no_rows_that_were_refused(
    manager: StreamManager, tmp_path: Path
) -> None:
    before = open_stream(str(tmp_path), "s/a").view().version
    with pytest.raises(SchemaMismatch):
        write(tmp_path, MIXED, MIXED_FRAME)
    assert open_stream(str(tmp_path), "s/a").view().version == before
