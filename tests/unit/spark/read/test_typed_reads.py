"""Typed streams as Spark's processes read them, without Spark: columns, evolution, refusals."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.errors import InvalidOption
from pravega_spark.manager import StreamManager
from pravega_spark.spark.native.relation import NativeColumns
from pravega_spark.spark.settings import read_settings
from pravega_spark.spark.source import PravegaDataSource
from tests.harness.spark_writing import schema, source

PLANE = pa.struct([("tail", pa.string())])
FLIGHTS = pa.schema(
    [
        pa.field("carrier", pa.string(), False, {"comment": "IATA code"}),
        ("miles", pa.int32()),
        ("planes", pa.list_(PLANE)),
        ("headers", pa.string()),
    ]
)
SYSTEM = ["scope", "stream", "segment_id", "offset", "routing_key"]
ROW = {"carrier": "UA", "miles": 7, "planes": [{"tail": "N1"}], "headers": "h"}


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(schema=FLIGHTS))
    manager.create_stream("s/raw")
    return manager


def write(manager: StreamManager, *rows: dict[str, Any]) -> None:
    with manager.create_writer("s/a") as writer:
        for row in rows:
            writer.write_event(row, routing_key=row["carrier"])


def rows(found: PravegaDataSource, wanted: StructType | None = None) -> list[dict[str, Any]]:
    """Read as tasks do; each gets its copy of the reader and of its partition."""
    return list(_rows(found, found.schema() if wanted is None else wanted))


def _rows(found: PravegaDataSource, wanted: StructType) -> Iterator[dict[str, Any]]:
    reader = found.reader(wanted)
    for partition in reader.partitions():
        copy, its = pickle.loads(pickle.dumps((reader, partition)))
        for batch in copy.read(its):
            yield from batch.to_pylist()


def test_columns_of_the_schema_stand_in_place_of_the_event(
    manager: StreamManager, tmp_path: Path
) -> None:
    write(manager, ROW, {"carrier": "B6"})
    found = source(tmp_path).schema()
    assert found.names == [*SYSTEM, *FLIGHTS.names, "timestamp", "timestamp_type"]
    assert found["carrier"].metadata == {"comment": "IATA code"}
    assert [found[name].nullable for name in FLIGHTS.names] == [False, True, True, True]
    assert found["planes"].dataType.simpleString() == "array<struct<tail:string>>"
    first, second = rows(source(tmp_path))
    assert {name: first[name] for name in FLIGHTS.names} == ROW
    assert (first["stream"], first["offset"], first["routing_key"]) == ("a", 0, "UA")
    assert (second["carrier"], second["miles"]) == ("B6", None)


def test_columns_are_chosen_in_any_case_and_none_may_be_the_schema_s(
    manager: StreamManager, tmp_path: Path
) -> None:
    write(manager, ROW)
    assert rows(source(tmp_path, columns="MILES, offset")) == [{"miles": 7, "offset": 0}]
    assert rows(source(tmp_path, columns="offset")) == [{"offset": 0}]
    with pytest.raises(InvalidOption, match="columns names event, but the columns are scope"):
        source(tmp_path, columns="event").schema()


def test_read_keeps_its_columns_while_the_schema_grows_and_old_events_are_null(
    manager: StreamManager, tmp_path: Path
) -> None:
    write(manager, ROW)
    began = source(tmp_path).schema()
    plane = pa.list_(pa.struct([*PLANE, ("engines", pa.int8())]))
    wider = FLIGHTS.set(2, pa.field("planes", plane))
    manager.update_stream("s/a", schema=pa.schema([*wider, ("gate", pa.string())]))
    write(manager, {**ROW, "gate": "A1", "planes": [{"tail": "N2", "engines": 2}]})
    assert [row["planes"] for row in rows(source(tmp_path), began)] == [
        [{"tail": "N1"}],
        [{"tail": "N2"}],
    ]
    assert [(row["gate"], row["planes"]) for row in rows(source(tmp_path))] == [
        (None, [{"tail": "N1", "engines": None}]),
        ("A1", [{"tail": "N2", "engines": 2}]),
    ]
    manager.compact_stream("s/a")
    assert len(rows(source(tmp_path), began)) == 2


def test_micro_batches_have_the_columns_that_the_query_began_with(
    manager: StreamManager, tmp_path: Path
) -> None:
    found = source(tmp_path, startingOffsets="earliest")
    reader: Any = found.streamReader(found.schema())
    start = reader.initialOffset()
    manager.update_stream("s/a", schema=pa.schema([*FLIGHTS, ("gate", pa.string())]))
    write(manager, {**ROW, "gate": "A1"})
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    (partition,) = reader.partitions(start, end)
    (batch,) = pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition)))
    assert batch.schema.names == [*SYSTEM, *FLIGHTS.names, "timestamp", "timestamp_type"]
    assert batch.column("carrier").to_pylist() == ["UA"]


def test_several_streams_of_one_schema_are_one_frame(
    manager: StreamManager, tmp_path: Path
) -> None:
    manager.create_stream("s/b", StreamConfiguration(schema=FLIGHTS))
    write(manager, ROW)
    both = {"path": "", "subscribe": "s/a,s/b"}
    assert [row["carrier"] for row in rows(source(tmp_path, **both))] == ["UA"]
    manager.create_stream("s/c", StreamConfiguration(schema=pa.schema([("x", pa.int8())])))
    for other, columns in (("s/c", "x tinyint"), ("s/raw", "bytes")):
        with pytest.raises(InvalidOption, match=rf"s/a and {other} have different .*; {columns}"):
            source(tmp_path, path="", subscribe=f"s/a,{other}").schema()


def test_stream_without_the_columns_of_the_read_stops_it(
    manager: StreamManager, tmp_path: Path
) -> None:
    pattern = {"path": "", "subscribePattern": "s/a.*"}
    found = source(tmp_path, **pattern)
    reader = found.reader(found.schema())
    manager.create_stream("s/a2")
    with pytest.raises(
        InvalidOption, match=r"stream s/a2 has no column carrier string.* are bytes"
    ):
        reader.partitions()
    raw = source(tmp_path, schema="raw")
    with pytest.raises(
        InvalidOption, match=r"stream s/a has no column event binary.* carrier string"
    ):
        raw.reader(raw.schema()).partitions()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pa.int64(), pa.timestamp("us", "UTC")),
        (pa.int32(), pa.date32()),
        (pa.string(), pa.binary()),
        (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())])),
        (pa.list_(pa.int32()), pa.list_(pa.date32())),
        (pa.field("x", pa.int64(), nullable=False), pa.field("x", pa.int64())),
    ],
)
def test_kept_frame_over_a_stream_that_was_created_with_other_types_is_refused(
    manager: StreamManager, tmp_path: Path, before: Any, after: Any
) -> None:
    def create(kind: Any) -> None:
        field = kind if isinstance(kind, pa.Field) else pa.field("x", kind)
        manager.create_stream("s/t", StreamConfiguration(schema=pa.schema([field])))

    create(before)
    columns = NativeColumns(read_settings({"root": str(tmp_path), "path": "s/t"}))
    kept = source(tmp_path, path="s/t", startingOffsets="earliest")
    reader: Any = kept.streamReader(kept.schema())
    manager.seal_stream("s/t")
    manager.delete_stream("s/t")
    create(after)
    view = existing_view(open_stream(str(tmp_path), "s/t"))
    with pytest.raises(InvalidOption, match=r"stream s/t has no column x .*with a new frame"):
        columns.check(view)
    start = reader.initialOffset()
    with manager.create_writer("s/t") as writer:
        writer.write_event({"x": None})
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    with pytest.raises(InvalidOption, match=r"stream s/t has no column x .*with a new frame"):
        reader.partitions(start, end)


def test_kept_frame_over_a_struct_that_grew_is_right(
    manager: StreamManager, tmp_path: Path
) -> None:
    columns = NativeColumns(read_settings({"root": str(tmp_path), "path": "s/a"}))
    plane = pa.list_(pa.struct([*PLANE, ("engines", pa.int8())]))
    manager.update_stream("s/a", schema=FLIGHTS.set(2, pa.field("planes", plane)))
    columns.check(existing_view(open_stream(str(tmp_path), "s/a")))


def test_columns_that_are_none_of_the_stream_s_are_refused(
    manager: StreamManager, tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption, match=r"no column miles string, which .*miles int"):
        source(tmp_path).reader(schema(miles="string"))
    assert "event" in source(tmp_path, path="s/raw").schema().names


def test_kafka_s_names_have_the_schema_s_columns_in_place_of_the_value(
    manager: StreamManager, tmp_path: Path
) -> None:
    write(manager, ROW)
    found = source(tmp_path, columnNames="kafka")
    after = ["topic", "partition", "offset", "timestamp", "timestampType"]
    assert found.schema().names == ["key", *FLIGHTS.names, *after]
    (row,) = rows(found)
    assert (row["key"], row["topic"], row["partition"]) == (b"UA", "s/a", 0)
    assert {name: row[name] for name in FLIGHTS.names} == ROW
    assert rows(source(tmp_path, columnNames="kafka", columns="TOPIC,miles")) == [
        {"topic": "s/a", "miles": 7}
    ]
    with pytest.raises(InvalidOption, match="columns names value, but the columns are key"):
        source(tmp_path, columnNames="kafka", columns="value").schema()
