"""A schema is made of what users have: frames, classes, and files of JSON Schema and Avro."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pytest
from pydantic import AwareDatetime, BaseModel, Field, create_model

from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.errors import InvalidSchema, SchemaMismatch

AT = datetime(2013, 1, 1, 10, tzinfo=timezone.utc)
TIME = pa.timestamp("us", "UTC")


class Cabin(Enum):
    ECONOMY = "economy"
    FIRST = "first"


@dataclass
class Plane:
    tail: str
    engines: Annotated[int, pa.int8()] | None = None


@dataclass
class Flight:
    carrier: str = field(metadata={"comment": "IATA code"})
    number: Annotated[int, pa.int32()]
    delay: float | None
    fare: Annotated[Decimal, pa.decimal128(10, 2)]
    departure: datetime
    day: date
    cabin: Cabin
    tags: list[str | None]
    seats: Mapping[str, int]
    plane: Optional[Plane]  # noqa: UP045 - as older code writes it
    payload: bytes
    direction: Literal["in", "out"]
    booking: UUID


PLANE = pa.struct([pa.field("tail", pa.string(), False), ("engines", pa.int8())])
FLIGHT = pa.schema(
    [
        pa.field("carrier", pa.string(), False, {"comment": "IATA code"}),
        pa.field("number", pa.int32(), False),
        pa.field("delay", pa.float64()),
        pa.field("fare", pa.decimal128(10, 2), False),
        pa.field("departure", TIME, False),
        pa.field("day", pa.date32(), False),
        pa.field("cabin", pa.string(), False),
        pa.field("tags", pa.list_(pa.string()), False),
        pa.field("seats", pa.map_(pa.string(), pa.int64()), False),
        pa.field(
            "plane", pa.struct([pa.field("tail", pa.string(), False), ("engines", pa.int8())])
        ),
        pa.field("payload", pa.binary(), False),
        pa.field("direction", pa.string(), False),
        pa.field("booking", pa.string(), False),
    ]
)


def test_dataclass_is_a_schema_and_its_objects_are_rows() -> None:
    schema = StreamSchema.of(Flight)
    assert schema.arrow.equals(FLIGHT, check_metadata=True)
    flight = Flight(
        *("UA", 1545, None, Decimal("9.9"), AT, AT.date(), Cabin.FIRST, ["a", None]),
        *({"12A": 1}, Plane("N1"), b"x", "out", UUID(int=1)),
    )  # fmt: skip
    assert schema.conform_rows([flight]).to_pylist() == [
        {
            "carrier": "UA",
            "number": 1545,
            "delay": None,
            "fare": Decimal("9.90"),
            "departure": AT,
            "day": AT.date(),
            "cabin": "first",
            "tags": ["a", None],
            "seats": [("12A", 1)],
            "plane": {"tail": "N1", "engines": None},
            "payload": b"x",
            "direction": "out",
            "booking": "00000000-0000-0000-0000-000000000001",
        }
    ]


class PlaneModel(BaseModel):
    tail: str
    engines: int | None = None


class FlightModel(BaseModel):
    carrier: str = Field(description="IATA code", max_length=2)
    departure: AwareDatetime
    fare: Decimal | None = Field(default=None, max_digits=10, decimal_places=2)
    planes: list[PlaneModel] = []


def test_pydantic_model_is_a_schema_and_its_objects_are_rows() -> None:
    schema = StreamSchema.of(FlightModel)
    plane = pa.struct([pa.field("tail", pa.string(), False), ("engines", pa.int64())])
    expected = [
        pa.field("carrier", pa.string(), False, {"comment": "IATA code"}),
        pa.field("departure", TIME, False),
        pa.field("fare", pa.decimal128(10, 2)),
        pa.field("planes", pa.list_(plane), False),
    ]
    assert schema.arrow.equals(pa.schema(expected), check_metadata=True)
    flight = FlightModel(carrier="UA", departure=AT, planes=[PlaneModel(tail="N1")])
    values, _ = schema.check_row(flight)
    assert values["planes"] == [{"tail": "N1", "engines": None}]
    assert values["departure"] == AT


@pytest.mark.parametrize(
    ("hint", "way"),
    [
        (Decimal, r"use Annotated\[Decimal, pyarrow.decimal128\(38, 9\)\]"),
        (int | str, "use one type, or a class with a field for each alternative"),
        (list, "use a type such as int"),
        (Any, "use a type such as int"),
        (tuple[int, str], "use list"),
        (Literal["a", 1], "use values of one type"),
        (time, r"use pa.int64\(\) for microseconds since midnight"),
        (dict[str | None, int], "use a key that is never None"),
    ],
)
def test_type_of_a_field_that_is_no_column_is_refused(hint: Any, way: str) -> None:
    with pytest.raises(InvalidSchema, match=rf"column at.* of type .*{way}"):
        StreamSchema.of(create_model("Row", at=(hint, ...)))


def test_class_inside_of_itself_is_refused() -> None:
    class Node(BaseModel):
        children: list[Node]

    Node.model_rebuild()
    with pytest.raises(InvalidSchema, match="column children"):
        StreamSchema.of(Node)


# Frames


def test_pandas_frame_has_a_schema_and_conforms_to_it() -> None:
    frame = pd.DataFrame(
        {
            "carrier": pd.Categorical(["UA", "B6"]),
            "delay": [1.5, None],
            "departure": pd.to_datetime(["2013-01-01T10:00Z", None]),
        },
        index=["x", "y"],
    )
    schema = StreamSchema.of(frame)
    expected = [("carrier", pa.string()), ("delay", pa.float64()), ("departure", TIME)]
    assert schema.arrow.equals(pa.schema(expected))
    assert schema.conform(frame).to_pylist() == [
        {"carrier": "UA", "delay": 1.5, "departure": AT},
        {"carrier": "B6", "delay": None, "departure": None},
    ]
    with pytest.raises(InvalidSchema, match=r"column at of type timestamp\[ns\]"):
        StreamSchema.of(pd.DataFrame({"at": pd.to_datetime(["2013-01-01"])}))
    with pytest.raises(SchemaMismatch, match="stream s/t: the DataFrame has no form in Arrow"):
        schema.conform(pd.DataFrame({"carrier": ["a", 1]}), "stream s/t")


def test_polars_frames_and_schemas_have_a_schema_and_conform_to_it() -> None:
    frame = pl.DataFrame(
        {"carrier": ["UA"], "departure": [AT], "cabin": ["first"], "legs": [[{"miles": 1}]]},
        schema_overrides={"cabin": pl.Enum(["economy", "first"]), "carrier": pl.Categorical},
    )
    leg = pa.list_(pa.struct([("miles", pa.int64())]))
    columns = [("carrier", pa.string()), ("departure", TIME), ("cabin", pa.string()), ("legs", leg)]
    expected = StreamSchema.of(pa.schema(columns))
    assert StreamSchema.of(frame) == StreamSchema.of(frame.lazy()) == expected
    assert StreamSchema.of(frame.schema) == expected
    row = {"carrier": "UA", "departure": AT, "cabin": "first", "legs": [{"miles": 1}]}
    assert expected.conform(frame).to_pylist() == [row]
    assert expected.conform(frame.lazy()).to_pylist() == [row]


def test_data_with_arrow_s_c_interface_has_a_schema() -> None:
    class Foreign:
        """As other libraries export their tables."""

        def __arrow_c_stream__(self, requested: object = None) -> object:
            return pa.table({"a": [1]}).__arrow_c_stream__(requested)

    schema = StreamSchema.of(Foreign())
    assert schema.names == ("a",)
    assert schema.conform(Foreign()).to_pylist() == [{"a": 1}]


@pytest.mark.parametrize("given", [None, 7, "a int", {"a": "int"}, int, [("a", pa.int8())]])
def test_what_has_no_schema_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSchema, match="no schema can be made of"):
        StreamSchema.of(given)
    with pytest.raises(SchemaMismatch, match="a table or batch of Arrow, or a frame"):
        StreamSchema.of(FLIGHT).conform(given)


# JSON Schema

DOCUMENT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$ref": "#/$defs/Flight",
    "$defs": {
        "Flight": {
            "type": "object",
            "required": ["carrier", "plane", "cabin"],
            "properties": {
                "carrier": {"type": "string", "description": "IATA code"},
                "number": {"type": "integer", "format": "int32"},
                "miles": {"type": "integer"},
                "delay": {"type": ["number", "null"]},
                "departure": {"type": "string", "format": "date-time"},
                "day": {"type": "string", "format": "date"},
                "late": {"type": "boolean"},
                "cabin": {"enum": ["economy", "first"]},
                "payload": {"type": "string", "contentEncoding": "base64"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "seats": {"type": "object", "additionalProperties": {"type": "integer"}},
                "plane": {"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}]},
            },
        },
        "a/b": {"properties": {"tail": {"type": "string"}}, "required": ["tail"]},
    },
}


def test_json_schema_is_a_schema_with_its_required_properties(tmp_path: Path) -> None:
    schema = StreamSchema.from_json_schema(DOCUMENT)
    assert str(schema) == (
        "carrier string not null, number int, miles bigint, delay double, departure timestamp, "
        "day date, late boolean, cabin string not null, payload binary, tags array<string>, "
        "seats map<string,bigint>, plane struct<tail:string not null>"
    )
    assert schema.arrow.field("carrier").metadata == {b"comment": b"IATA code"}
    assert not schema.arrow.field("plane").type.field("tail").nullable
    path = tmp_path / "flight.json"
    path.write_text(json.dumps(DOCUMENT))
    assert StreamSchema.from_json_schema(path) == schema


def test_json_schema_of_a_pydantic_model_has_the_model_s_columns() -> None:
    class Flight(BaseModel):
        carrier: str
        departure: AwareDatetime
        planes: list[PlaneModel]
        delay: float | None

    assert StreamSchema.from_json_schema(Flight.model_json_schema()) == StreamSchema.of(Flight)


@pytest.mark.parametrize(
    ("node", "way"),
    [
        ({}, "use a `type`"),
        (True, "use a schema with a `type`"),
        ({"type": ["string", "integer"]}, "use one type"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "use one type"),
        ({"type": "object"}, "use `properties`, or `additionalProperties` with a schema"),
        ({"type": "array"}, "use `items` with one schema"),
        ({"$ref": "other.json"}, "use a reference inside of the document"),
        ({"$ref": "#/$defs/none"}, "use a reference that leads to a schema"),
        ({"$ref": "#/properties/at"}, "use a schema that does not contain itself"),
        ({"type": "array", "items": {"$ref": "#/properties/at"}}, "use a schema that does not"),
        ({"type": "text"}, "use a type of JSON Schema"),
    ],
)
def test_part_of_a_json_schema_that_is_no_column_is_refused(node: Any, way: str) -> None:
    with pytest.raises(InvalidSchema, match=rf"column at.* has no type in Delta: .*; {way}"):
        StreamSchema.from_json_schema({"properties": {"at": node}})


@pytest.mark.parametrize("given", [{"type": "string"}, {}, "no-such-file.json"])
def test_json_schema_without_properties_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSchema, match="JSON Schema"):
        StreamSchema.from_json_schema(given)


# Avro

RECORD: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "namespace": "nyc",
    "fields": [
        {"name": "carrier", "type": "string", "doc": "IATA code"},
        {"name": "number", "type": "int"},
        {"name": "delay", "type": ["null", "double"], "default": None},
        {
            "name": "fare",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
        {"name": "departure", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "cabin", "type": {"type": "enum", "name": "Cabin", "symbols": ["FIRST"]}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "seats", "type": {"type": "map", "values": "long"}},
        {
            "name": "plane",
            "type": [
                "null",
                {"type": "record", "name": "Plane", "fields": [{"name": "tail", "type": "string"}]},
            ],
        },
        {"name": "other", "type": ["nyc.Plane", "null"]},
        {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 4}},
    ],
}


def test_avro_record_is_a_schema_whose_unions_with_null_are_nullable(tmp_path: Path) -> None:
    schema = StreamSchema.from_avro(RECORD)
    assert str(schema) == (
        "carrier string not null, number int not null, delay double, fare decimal(10,2) not null, "
        "departure timestamp not null, day date not null, cabin string not null, "
        "tags array<string> not null, seats map<string,bigint> not null, "
        "plane struct<tail:string not null>, other struct<tail:string not null>, "
        "digest binary not null"
    )
    assert schema.arrow.field("carrier").metadata == {b"comment": b"IATA code"}
    path = tmp_path / "nyc.Flight.avsc"
    path.write_text(json.dumps(RECORD))
    assert StreamSchema.from_avro(path) == schema


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        (["string", "int"], "use a record with a nullable field for each alternative"),
        (["null"], "use a record with a nullable field for each alternative"),
        ("null", "use the type of the values"),
        ({"type": "array", "items": "nyc.Row"}, "use a record that does not contain itself"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, r"use pa.timestamp\('us'"),
        ({"type": "long", "logicalType": "time-micros"}, "since midnight"),
    ],
)
def test_avro_type_that_is_no_column_is_refused(kind: Any, way: str) -> None:
    record = {"type": "record", "name": "nyc.Row", "fields": [{"name": "at", "type": kind}]}
    with pytest.raises(InvalidSchema, match=rf"column at.*{way}") as found:
        StreamSchema.from_avro(record)
    assert found.value.column == "at"


@pytest.mark.parametrize(
    "given", [{"type": "string"}, {"type": "record", "name": "x"}, {"type": "x"}, {}, "none.avsc"]
)
def test_what_is_no_avro_record_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSchema, match=r"schema of Avro|Avro schema"):
        StreamSchema.from_avro(given)
