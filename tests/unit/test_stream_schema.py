"""A schema says which rows fit a typed stream, and keeps its promises about sizes and changes."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.errors import InvalidSchema, SchemaChangeRefused, SchemaMismatch
from tests.harness.typed_rows import SCHEMAS, as_read, rows

UTC = timezone.utc
FLIGHTS = StreamSchema.of(
    pa.schema(
        [
            pa.field("carrier", pa.string(), False, {"comment": "IATA code"}),
            ("flight", pa.int32()),
            ("delay", pa.float64()),
            ("fare", pa.decimal128(10, 2)),
            ("departure", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
            ("seats", pa.map_(pa.string(), pa.int16())),
            ("plane", pa.struct([pa.field("tail", pa.string(), False), ("engines", pa.int8())])),
        ]
    )
)
ROW = {
    "carrier": "UA",
    "flight": 1545,
    "delay": 2.5,
    "fare": Decimal("99.90"),
    "departure": datetime(2013, 1, 1, 10, tzinfo=UTC),
    "tags": ["late", None],
    "seats": {"12A": 1},
    "plane": {"tail": "N14228", "engines": 2},
}
SIZE = 2 + 4 + 8 + 16 + 8 + 4 + (3 + 2) + (6 + 1)


def refusal(column: str, value: Any) -> SchemaMismatch:
    """The error of a row with this value, which tables of two rows raise, too."""
    with pytest.raises(SchemaMismatch) as found:
        FLIGHTS.check_row({**ROW, column: value}, "stream nyc/flights")
    with pytest.raises(SchemaMismatch) as second:
        FLIGHTS.conform_rows([ROW, {**ROW, column: value}])
    assert (second.value.row, second.value.column) == (1, column)
    return found.value


# The text of a schema


@given(SCHEMAS)
def test_schema_comes_back_from_its_json_with_comments_and_required_columns(
    schema: pa.Schema,
) -> None:
    found = StreamSchema.of(schema)
    again = StreamSchema.from_json(found.to_json())
    assert again == found
    assert hash(again) == hash(found)
    assert again.arrow.equals(schema, check_metadata=True)
    assert pickle.loads(pickle.dumps(found)) == found


def test_json_is_delta_s_own_in_which_every_column_is_nullable() -> None:
    struct = json.loads(FLIGHTS.to_json())
    assert struct["type"] == "struct"
    assert struct["fields"][0] == {
        "name": "carrier",
        "type": "string",
        "nullable": True,
        "metadata": {"comment": "IATA code", "pravega.required": True},
    }
    assert struct["fields"][6]["type"] == {
        "type": "map",
        "keyType": "string",
        "valueType": "short",
        "valueContainsNull": True,
    }
    assert str(FLIGHTS).startswith("carrier string not null, flight int, delay double")


def test_json_of_spark_with_a_column_that_is_not_nullable_makes_it_required() -> None:
    text = (
        '{"type":"struct","fields":[{"name":"id","type":"long","nullable":false,"metadata":{}},'
        '{"name":"at","type":"timestamp","nullable":true,"metadata":{"x":1}}]}'
    )
    found = StreamSchema.from_json(text)
    assert [field.nullable for field in found.fields] == [False, True]
    assert StreamSchema.from_json(json.loads(text)) == found


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"type":"struct","fields":[{}]}', "null", "7"])
def test_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema, match="not "):
        StreamSchema.from_json(text)


# Rows


@pytest.mark.medium
@given(st.data(), SCHEMAS)
def test_rows_come_back_from_a_table_and_conform_again_without_a_copy(
    data: st.DataObject, schema: pa.Schema
) -> None:
    stream = StreamSchema.of(schema)
    given_rows = data.draw(st.lists(rows(schema), max_size=4))
    table = stream.conform_rows(given_rows)
    expected = [
        {field.name: as_read(field.type, row[field.name]) for field in schema} for row in given_rows
    ]
    assert table.schema.equals(stream.arrow)
    assert table.to_pylist() == expected
    again = stream.conform(table)
    for old, new in zip(table.columns, again.columns, strict=True):
        assert _addresses(old) == _addresses(new)


def _addresses(column: pa.ChunkedArray) -> list[int | None]:
    buffers = [buffer for chunk in column.chunks for buffer in chunk.buffers()]
    return [None if buffer is None else buffer.address for buffer in buffers]


@pytest.mark.medium
@given(st.data(), SCHEMAS)
def test_size_of_an_event_is_that_of_its_row_however_tables_are_cut(
    data: st.DataObject, schema: pa.Schema
) -> None:
    stream = StreamSchema.of(schema)
    given_rows = data.draw(st.lists(rows(schema), min_size=1, max_size=5))
    table = stream.conform_rows(given_rows)
    sizes = [stream.check_row(row)[1] for row in given_rows]
    assert stream.event_sizes(table).tolist() == sizes
    cut = data.draw(st.integers(0, table.num_rows))
    parts = [table.slice(0, cut), table.slice(cut)]
    assert np.concatenate([stream.event_sizes(part) for part in parts]).tolist() == sizes
    assert stream.event_sizes(pa.concat_tables(parts)).tolist() == sizes
    wider = stream.evolve_to(
        pa.schema([*schema, ("later", pa.struct([("a", pa.list_(pa.int64()))]))])
    )
    assert wider.event_sizes(wider.conform(table)).tolist() == sizes


def test_row_is_checked_copied_and_measured() -> None:
    tags = ["late", None]
    values, size = FLIGHTS.check_row({**ROW, "tags": tags})
    tags.append("changed")
    assert values["tags"] == ["late", None]
    assert size == SIZE
    table = FLIGHTS.rows_to_table([values])
    assert FLIGHTS.event_sizes(table).tolist() == [SIZE]
    assert table.to_pylist()[0]["seats"] == [("12A", 1)]
    assert FLIGHTS.check_row({"carrier": "B6"})[1] == 2


def test_dataclass_is_a_row_with_nested_ones() -> None:
    @dataclass
    class Plane:
        tail: str
        engines: int | None = None

    @dataclass
    class Flight:
        carrier: str
        plane: Plane

    values, _ = FLIGHTS.check_row(Flight("UA", Plane("N1")))
    assert values["plane"] == {"tail": "N1", "engines": None}
    with pytest.raises(SchemaMismatch, match="must be a dict, a dataclass or a pydantic model"):
        FLIGHTS.check_row(["UA", 1545])


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("carrier", 7, "a value of type int is not string"),
        ("carrier", None, "the column is required"),
        ("carrier", "\ud800", "lone surrogate"),
        ("flight", "1545", "a value of type str is not int32"),
        ("flight", 2**31, "out of the range of int32"),
        ("flight", 1.0, "a value of type float is not int32"),
        ("flight", True, "a value of type bool is not int32"),
        ("delay", "2.5", "a value of type str is not double"),
        ("delay", 2**53 + 1, "double cannot hold this whole number exactly"),
        ("fare", 1.5, "a value of type float is not decimal128"),
        ("fare", Decimal("0.001"), "cannot hold this number exactly"),
        ("fare", Decimal("123456789"), "cannot hold this number exactly"),
        ("fare", Decimal("NaN"), "cannot hold this number exactly"),
        ("departure", datetime(2013, 1, 1), "the datetime has no time zone"),
        ("departure", pd.NaT, "it is not a time: give None"),
        ("departure", pd.Timestamp(1, tz="UTC"), "it has nanoseconds"),
        ("departure", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))), "beyond the years 1"),
        ("departure", date(2013, 1, 1), "a value of type date is not a timestamp"),
        ("tags", "late", "a value of type str is not list"),
        ("tags", [1], "a value of type int is not string"),
        ("seats", {None: 1}, "the key of a map is required"),
        ("seats", {"12A": 40_000}, "out of the range of int16"),
        ("seats", [("12A", 1), ("12A", 2)], "the map has the key '12A' twice"),
        ("seats", ["12A"], "give a dict, or a list of pairs"),
        ("plane", {"tail": None}, "the field is required"),
        ("plane", {"tail": "N1", "wings": 2}, "the struct has no field 'wings'"),
    ],
)
def test_value_that_does_not_fit_is_refused_with_row_column_and_value(
    column: str, value: Any, reason: str
) -> None:
    error = refusal(column, value)
    assert reason in str(error)
    assert "stream nyc/flights: row 0, column " + column in str(error)
    assert (error.row, error.column) == (0, column)
    assert error.value == repr(value)


def test_unknown_column_is_refused_with_the_nearest_one() -> None:
    for call in (FLIGHTS.check_row, lambda row: FLIGHTS.conform(pa.Table.from_pylist([row]))):
        with pytest.raises(SchemaMismatch, match="no column 'Carriers'; is carrier meant") as found:
            call({"carrier": "UA", "Carriers": "UA"})
        assert found.value.column == "Carriers"


def test_row_whose_keys_are_no_names_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="the schema has no column 7"):
        FLIGHTS.check_row({"carrier": "UA", 7: 1})


def test_missing_required_column_is_refused() -> None:
    for call in (FLIGHTS.check_row, lambda row: FLIGHTS.conform(pa.Table.from_pylist([row]))):
        with pytest.raises(SchemaMismatch, match=r"required column carrier is missing; .* flight"):
            call({"flight": 1})


def test_a_map_may_be_a_list_of_pairs_as_rows_of_tables_have_it() -> None:
    table = FLIGHTS.conform_rows([ROW])
    (read,) = table.to_pylist()
    assert read["seats"] == [("12A", 1)]
    assert FLIGHTS.conform_rows([read, ROW]).slice(0, 1).equals(table)


# Tables


def test_a_column_of_streams_is_to_be_dropped() -> None:
    with pytest.raises(SchemaMismatch, match=r"no column 'segment_id'.*drop the column"):
        FLIGHTS.conform(pa.table({"carrier": ["UA"], "segment_id": [0]}))


def test_missing_and_untyped_columns_are_null_and_columns_come_in_order() -> None:
    table = pa.table(
        {"flight": pa.array([1, 2], pa.int8()), "carrier": ["UA", "B6"], "delay": pa.nulls(2)}
    )
    found = FLIGHTS.conform(table)
    assert found.schema.equals(FLIGHTS.arrow)
    assert found.select(["carrier", "flight", "delay", "plane"]).to_pylist() == [
        {"carrier": "UA", "flight": 1, "delay": None, "plane": None},
        {"carrier": "B6", "flight": 2, "delay": None, "plane": None},
    ]
    (batch,) = table.to_batches()
    assert FLIGHTS.conform(batch).equals(found)
    assert FLIGHTS.conform(table.slice(0, 0)).num_rows == 0


def test_split_keeps_what_fits_and_says_why_the_rest_does_not() -> None:
    flights = [None, 1, 2**40, 3, -(2**40), 5] * 50
    carriers = ["UA", None, "UA", "B6", None, "DL"] * 50
    table = pa.table({"carrier": carriers, "flight": flights})
    good, bad = FLIGHTS.split(table, "stream nyc/flights")
    assert good.column("flight").to_pylist() == [None, 3, 5] * 50
    assert good.schema.equals(FLIGHTS.arrow)
    assert [row.row for row in bad] == [row for row in range(300) if row % 6 in {1, 2, 4}]
    assert [(row.column, row.value) for row in bad[:3]] == [
        ("carrier", "None"),
        ("flight", str(2**40)),
        ("carrier", "None"),
    ]
    with pytest.raises(SchemaMismatch) as first:
        FLIGHTS.conform(table)
    assert (first.value.row, first.value.column) == (1, "carrier")
    assert FLIGHTS.split(good) == (good, ())


COLUMNS = pa.schema([("a", pa.int8()), pa.field("b", pa.string(), False)])


@given(
    st.lists(
        st.fixed_dictionaries(
            {"a": st.none() | st.integers(-200, 200), "b": st.none() | st.text(max_size=2)}
        ),
        max_size=12,
    ),
    st.integers(1, 5),
)
def test_split_finds_the_rows_that_do_not_fit_on_their_own(
    given_rows: list[dict[str, Any]], chunk: int
) -> None:
    schema = StreamSchema.of(COLUMNS)
    kinds = pa.schema([("a", pa.int64()), ("b", pa.string())])
    whole = pa.Table.from_pylist(given_rows, kinds)
    table = pa.Table.from_batches(whole.to_batches(chunk), kinds)
    good, bad = schema.split(table)
    fits = [row["b"] is not None and -129 < (row["a"] or 0) < 128 for row in given_rows]
    assert good.to_pylist() == [row for row, fit in zip(given_rows, fits, strict=True) if fit]
    assert [found.row for found in bad] == [row for row, fit in enumerate(fits) if not fit]


def test_split_of_a_pandas_frame_finds_the_rows_with_bad_maps() -> None:
    schema = StreamSchema.of(
        pa.schema([("n", pa.int8()), pa.field("seats", pa.map_(pa.string(), pa.int8()), False)])
    )
    seats = [{"a": 1}, {"a": 999}, None, [("a", 1), ("a", 2)], {"b": None}]
    frame = pd.DataFrame({"n": [1, 2, 3, 999, 5], "seats": seats})
    good, bad = schema.split(frame)
    assert good.to_pylist() == [
        {"n": 1, "seats": [("a", 1)]},
        {"n": 5, "seats": [("b", None)]},
    ]
    assert [(found.row, found.column) for found in bad] == [
        (1, "seats.value"), (2, "seats"), (3, "n"),
    ]  # fmt: skip
    assert "999" in bad[0].value
    with pytest.raises(SchemaMismatch, match=r"row 1, column seats.*999"):
        schema.conform(frame)


def test_split_raises_where_no_row_can_fit() -> None:
    with pytest.raises(SchemaMismatch, match="column flight: string is not int32; convert"):
        FLIGHTS.split(pa.table({"carrier": ["UA"], "flight": ["1545"]}))


# Changes


def test_schema_grows_by_nullable_columns_and_changes_comments() -> None:
    plane = FLIGHTS.arrow.field("plane")
    wider = plane.with_type(pa.struct([*plane.type, ("wings", pa.int8())]))
    comment = FLIGHTS.arrow.field("flight").with_metadata({"comment": "its number"})
    fields = [*FLIGHTS.fields[:-1], wider, pa.field("gate", pa.string())]
    fields[1] = comment
    found = FLIGHTS.evolve_to(pa.schema(fields))
    assert found.names == (*FLIGHTS.names, "gate")
    assert found.arrow.field("flight").metadata == {b"comment": b"its number"}
    old = FLIGHTS.conform_rows([ROW])
    assert found.conform(old).to_pylist()[0]["plane"] == {
        "tail": "N14228",
        "engines": 2,
        "wings": None,
    }


def _changed(index: int, field: pa.Field | None) -> pa.Schema:
    fields: list[pa.Field] = [*FLIGHTS.fields]
    fields[index : index + 1] = [] if field is None else [field]
    return pa.schema(fields)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (_changed(1, None), "column flight would be dropped or renamed"),
        (_changed(1, pa.field("number", pa.int32())), "column flight would be dropped or renamed"),
        (_changed(1, pa.field("flight", pa.int64())), "flight would change from int32 to int64"),
        (_changed(1, pa.field("flight", pa.int16())), "flight would change from int32 to int16"),
        (_changed(1, pa.field("flight", pa.int32(), False)), "flight would become required"),
        (_changed(0, pa.field("carrier", pa.string())), "column carrier would become nullable"),
        (_changed(5, pa.field("tags", pa.list_(pa.binary()))), "tags.element would change"),
        (
            _changed(7, pa.field("plane", pa.struct([pa.field("tail", pa.string(), False)]))),
            "column plane.engines would be dropped",
        ),
        (pa.schema([*FLIGHTS.fields[::-1]]), "column carrier would move"),
        (pa.schema([("gate", pa.string()), *FLIGHTS.fields]), "gate is new and not at the end"),
        (pa.schema([*FLIGHTS.fields, pa.field("gate", pa.string(), False)]), "gate is new and req"),
    ],
)
def test_other_changes_are_refused_with_the_column(changed: pa.Schema, reason: str) -> None:
    with pytest.raises(SchemaChangeRefused, match=reason) as found:
        FLIGHTS.evolve_to(changed, "stream nyc/flights")
    assert str(found.value).startswith("stream nyc/flights: column ")
    assert found.value.column in {*FLIGHTS.names, "gate"}
