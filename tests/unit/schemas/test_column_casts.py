"""Other encodings of the same values are taken, and no value is changed on the way."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import polars as pl
import pyarrow as pa
import pytest

from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.errors import SchemaMismatch

TIME = pa.timestamp("us", "UTC")
AT = datetime(2013, 1, 1, 10, tzinfo=timezone.utc)
DICTIONARY = pa.array(["a", None, "a"]).dictionary_encode()
STRUCT = pa.struct([("a", pa.int8()), pa.field("b", pa.string())])
PAIRS = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.int8())]))


def conform(values: pa.Array, kind: pa.DataType) -> pa.ChunkedArray:
    schema = StreamSchema.of(pa.schema([("c", kind)]))
    return schema.conform(pa.table({"c": values})).column("c")


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (DICTIONARY, pa.string(), ["a", None, "a"]),
        (DICTIONARY.slice(1), pa.string(), [None, "a"]),
        (pa.array(["a"], pa.large_string()), pa.string(), ["a"]),
        (pa.array(["a"], pa.string_view()), pa.string(), ["a"]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.array([1, None], pa.int8()), pa.int64(), [1, None]),
        (pa.array([127], pa.int64()), pa.int8(), [127]),
        (pa.array([7], pa.uint64()), pa.int64(), [7]),
        (pa.array([1.5], pa.float32()), pa.float64(), [1.5]),
        (pa.array([2**53], pa.int64()), pa.float64(), [2.0**53]),
        (pa.array([7, -7], pa.int64()), pa.decimal128(3, 2), [Decimal(7), Decimal(-7)]),
        (pa.array([Decimal("1.50")], pa.decimal128(9, 2)), pa.decimal128(3, 1), [Decimal("1.5")]),
        (pa.array([Decimal("1.5")], pa.decimal256(50, 1)), pa.decimal128(9, 2), [Decimal("1.5")]),
        (pa.array([date(2013, 1, 1)], pa.date64()), pa.date32(), [date(2013, 1, 1)]),
        (pa.array([AT], pa.timestamp("s", "Asia/Tokyo")), TIME, [AT]),
        (pa.array([AT], pa.timestamp("ns", "UTC")), TIME, [AT]),
        (pa.array([[1], None, [2, 3]], pa.list_view(pa.int8())), pa.list_(pa.int64()),
         [[1], None, [2, 3]]),
        (pa.array([[9], None, [2, 3]], pa.large_list(pa.int8())).slice(1), pa.list_(pa.int8()),
         [None, [2, 3]]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), pa.list_(pa.int8()), [[1, 2], None]),
        (pa.array([[("a", 1)], None, []], PAIRS), pa.map_(pa.string(), pa.int8()),
         [[("a", 1)], None, []]),
        (pa.array([{"a": 1}, None], pa.map_(pa.large_string(), pa.int8())).slice(0),
         pa.map_(pa.string(), pa.int16()), [[("a", 1)], None]),
        (pa.array([{"a": 1}, None, {"a": None}]), STRUCT,
         [{"a": 1, "b": None}, None, {"a": None, "b": None}]),
        (pa.array([{"b": "x", "a": 1}]), STRUCT, [{"a": 1, "b": "x"}]),
        (pa.nulls(2), STRUCT, [None, None]),
        (pa.array([[None]], pa.list_(pa.null())), pa.list_(pa.string()), [[None]]),
    ],
)  # fmt: skip
def test_same_values_in_another_encoding_are_taken(
    values: pa.Array, kind: pa.DataType, expected: list[Any]
) -> None:
    found = conform(values, kind)
    assert found.type == kind
    assert found.to_pylist() == expected
    found.validate(full=True)


@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        (pa.array(["1"]), pa.int64(), "string is not int64"),
        (pa.array(["1"]), pa.decimal128(9, 2), "string is not decimal"),
        (pa.array(["2013-01-01"]), pa.date32(), "string is not date32"),
        (pa.array([1]), pa.string(), "int64 is not string"),
        (pa.array([True]), pa.int8(), "bool is not int8"),
        (pa.array([1]), pa.bool_(), "int64 is not bool"),
        (pa.array(["a"]), pa.binary(), "string is not binary"),
        (pa.array([b"a"]), pa.string(), "binary is not string"),
        (pa.array([1.0]), pa.int64(), "double is not int64 .*Int64"),
        (pa.array([1.0]), pa.decimal128(9, 2), "double is not decimal"),
        (
            pa.array([AT], pa.timestamp("us")),
            TIME,
            r"timestamp\[us\] is not timestamp.*lack a time zone",
        ),
        (pa.array([1]), TIME, "int64 is not timestamp"),
        (pa.array([AT], TIME), pa.date32(), "is not date32"),
        (pa.array([1]), pa.list_(pa.int64()), "int64 is not list"),
        (pa.array([{"a": 1}]), pa.map_(pa.string(), pa.int64()), "is not map"),
        (pa.array([{"c": 1}]), STRUCT, "column c.c: the fields of the struct are a, b"),
    ],
)
def test_column_of_another_type_is_refused(
    values: pa.Array, kind: pa.DataType, reason: str
) -> None:
    with pytest.raises(SchemaMismatch, match=rf"{reason}.*; convert the column first") as found:
        conform(values, kind)
    assert (found.value.row, found.value.column) == (None, "c")


@pytest.mark.parametrize(
    ("values", "kind", "shown"),
    [
        (pa.array([1, 128]), pa.int8(), "128"),
        (pa.array([1, 2**63], pa.uint64()), pa.int64(), str(2**63)),
        (pa.array([1, 2**53 + 1]), pa.float64(), str(2**53 + 1)),
        (pa.array([1, 10]), pa.decimal128(3, 2), "10"),
        (pa.array([1000, 1001], pa.timestamp("ns", "UTC")), TIME, ".*1970-01-01.*"),
        (pa.array([0, 2**60], TIME), TIME, f"{2**60} since 1970"),
        (pa.array([0, 2**30], pa.date32()), pa.date32(), f"{2**30} since 1970"),
        (pa.array([[1], [2, 300]]), pa.list_(pa.int8()), r"\[2, 300\]"),
        (pa.array([[("a", 1)], [(None, 1)]], PAIRS), pa.map_(pa.string(), pa.int8()), ".*"),
    ],
)
def test_value_that_would_change_is_refused_with_its_row(
    values: pa.Array, kind: pa.DataType, shown: str
) -> None:
    chunked = pa.chunked_array([values, values.slice(0, 1)])
    with pytest.raises(SchemaMismatch, match=rf"row 1, column c.*; got {shown}") as found:
        conform(chunked, kind)
    assert (found.value.row, found.value.column) == (1, "c")


LATIN_1 = pa.array([b"ok", b"Z\xfcrich"])
TEXTS = pa.Array.from_buffers(pa.string(), 2, LATIN_1.buffers())
OFFSETS = pa.array([0, 1, 2], pa.int32())


def texts_of(kind: pa.DataType, plain: pa.DataType) -> pa.Array:
    """Texts of another encoding whose second one is not UTF-8."""
    return pa.array(LATIN_1.to_pylist(), plain).view(kind)


@pytest.mark.parametrize(
    ("values", "path"),
    [
        (TEXTS, "c"),
        (texts_of(pa.large_string(), pa.large_binary()), "c"),
        (texts_of(pa.string_view(), pa.binary_view()), "c"),
        (pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), TEXTS), "c"),
        (pa.ListArray.from_arrays(OFFSETS, TEXTS), "c.element"),
        (pa.StructArray.from_arrays([TEXTS], ["a"]), "c.a"),
        (pa.MapArray.from_arrays(OFFSETS, TEXTS, pa.array([1, 2])), "c.key"),
        (pa.MapArray.from_arrays(OFFSETS, pa.array([1, 2]), TEXTS), "c.value"),
    ],
)
def test_text_that_is_not_utf_8_is_refused_wherever_it_is(values: pa.Array, path: str) -> None:
    schema = StreamSchema.of(pa.schema([("c", values.type)]))
    reason = rf"row 1, column {path}: the text is not UTF-8; got b'Z\\xfcrich'"
    with pytest.raises(SchemaMismatch, match=reason) as found:
        schema.conform(pa.table({"c": values}))
    assert (found.value.row, found.value.column) == (1, "c")
    good, bad = schema.split(pa.table({"c": values}))
    assert (good.num_rows, [row.row for row in bad]) == (1, [1])


def test_texts_of_a_slice_are_judged_by_their_own_bytes() -> None:
    """A cut in the midst of a character makes no text of it, though the bytes around it do."""
    assert conform(TEXTS.slice(0, 1), pa.string()).to_pylist() == ["ok"]
    umlaut = pa.py_buffer("aü".encode())
    cut = pa.Array.from_buffers(pa.string(), 2, [None, OFFSETS.buffers()[1], umlaut])
    with pytest.raises(
        SchemaMismatch, match=r"row 1, column c: the text is not UTF-8; got b'\\xc3"
    ):
        conform(cut, pa.string())
    assert conform(cut.slice(0, 1), pa.string()).to_pylist() == ["a"]


def test_decimal_beyond_its_digits_is_refused() -> None:
    wide = pa.array([Decimal("1.00"), Decimal("123456789.12")], pa.decimal128(38, 2))
    narrow = pa.Array.from_buffers(pa.decimal128(5, 2), 2, wide.buffers())
    with pytest.raises(SchemaMismatch, match=r"row 1, column c: .* more digits than decimal128\(5"):
        conform(narrow, pa.decimal128(5, 2))
    assert conform(narrow.slice(0, 1), pa.decimal128(5, 2)).to_pylist() == [Decimal("1.00")]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [(pa.string(), ("a", "b")), (pa.int8(), (1, 2)), (pa.list_(pa.int8()), ([1], [2]))],
)
def test_map_with_a_key_twice_is_refused(kind: pa.DataType, keys: tuple[Any, Any]) -> None:
    one, two = keys
    maps = [[(one, 1), (two, 2)], None, [(one, 1)], [(two, 1), (one, 2), (two, 3)]]
    for item in (pa.int8(), pa.int64()):
        values = pa.array(maps, pa.map_(kind, item))
        with pytest.raises(SchemaMismatch, match="row 3, column c: the map has the key") as found:
            conform(values, pa.map_(kind, pa.int64()))
        assert f"the key {two!r} twice" in str(found.value)
        assert conform(values.slice(0, 3), pa.map_(kind, pa.int64())).to_pylist() == maps[:3]


NUMBERS: list[tuple[Any, pa.DataType, pa.DataType, bool]] = [
    (2**24, pa.int64(), pa.float32(), True),
    (2**24 + 1, pa.int64(), pa.float32(), False),
    (2**40, pa.int64(), pa.float32(), True),
    (2**53 + 2, pa.int64(), pa.float64(), True),
    (2**53 + 1, pa.int64(), pa.float64(), False),
    (2**63 - 1, pa.int64(), pa.float64(), False),
    (-(2**63), pa.int64(), pa.float32(), True),
    (2**64 - 1, pa.uint64(), pa.float32(), False),
    (0.1, pa.float64(), pa.float32(), True),
    (1e-50, pa.float64(), pa.float32(), True),
    (float("inf"), pa.float64(), pa.float32(), True),
    (3.4028234663852886e38, pa.float64(), pa.float32(), True),
    (3.4028235e38, pa.float64(), pa.float32(), True),  # the text of the greatest one
    (-3.4028235677973362e38, pa.float64(), pa.float32(), True),
    (3.4028235677973366e38, pa.float64(), pa.float32(), False),
    (1e39, pa.float64(), pa.float32(), False),
]


@pytest.mark.parametrize(("value", "found", "kind", "fits"), NUMBERS)
def test_floats_are_the_same_in_events_and_in_tables(
    value: Any, found: pa.DataType, kind: pa.DataType, fits: bool
) -> None:
    schema = StreamSchema.of(pa.schema([("c", kind)]))
    table = pa.table({"c": pa.array([None, value], found)})
    rows = [{"c": None}, {"c": value}]
    if fits:
        assert schema.conform(table).equals(schema.conform_rows(rows))
        return
    for refused in (lambda: schema.conform(table), lambda: schema.conform_rows(rows)):
        with pytest.raises(SchemaMismatch, match="row 1, column c") as error:
            refused()
        assert error.value.value == repr(value)


VALUES: list[tuple[Any, pa.DataType]] = [
    (True, pa.bool_()),
    (0, pa.int64()),
    (300, pa.int64()),
    (-129, pa.int16()),
    (2**63, pa.uint64()),
    (2.0, pa.float64()),
    (float("inf"), pa.float32()),
    (Decimal("1.50"), pa.decimal128(9, 2)),
    (Decimal("1.25"), pa.decimal128(9, 2)),
    (Decimal("123.4"), pa.decimal128(9, 1)),
    ("7", pa.large_string()),
    (b"\xff", pa.binary(1)),
    (date(2013, 1, 1), pa.date32()),
    (AT, TIME),
    (AT.replace(tzinfo=None), pa.timestamp("us")),
    ([1, 2], pa.list_(pa.int64())),
    ([1, 300], pa.list_(pa.int64())),
    ({"a": 1}, pa.struct([("a", pa.int64())])),
    ({"a": 300}, pa.struct([("a", pa.int64())])),
    ({"b": 1}, pa.struct([("b", pa.int64())])),
    ([("a", 1)], pa.map_(pa.string(), pa.int64())),
    ([("a", 300)], pa.map_(pa.string(), pa.int64())),
    ([("a", 1), ("a", 2)], pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(3, 1)),
        *(pa.string(), pa.binary(), pa.date32(), TIME, pa.list_(pa.int8())),
        *(pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8())),
    ],
    ids=str,
)
def test_rows_and_tables_take_and_refuse_the_same(kind: pa.DataType) -> None:
    schema = StreamSchema.of(pa.schema([("c", kind)]))
    taken = 0
    for value, found in VALUES:
        if pa.types.is_map(kind) and isinstance(value, dict):
            continue  # only in a row: a dict is a map, too
        table = pa.table({"c": pa.array([None, value], found)})
        rows = [{"c": None}, {"c": value}]
        try:
            fitted = schema.conform_rows(rows)
        except SchemaMismatch:
            with pytest.raises(SchemaMismatch):
                schema.conform(table)
        else:
            taken += 1
            assert schema.conform(table).equals(fitted), value
    assert 0 < taken < len(VALUES)


@pytest.mark.skipif(pa.__version__ < "20", reason="Arrow 19 makes no array of UUIDs")
def test_uuids_are_the_same_texts_in_events_and_in_tables() -> None:
    schema = StreamSchema.of(pa.schema([("c", pa.string())]))
    values = [UUID(int=7), None, UUID(int=2**128 - 9), UUID(int=1)]
    table = pa.table({"c": pa.array(values, pa.uuid())}).slice(1)
    rows = schema.conform_rows([{"c": value} for value in values[1:]])
    assert schema.conform(table).equals(rows)
    assert schema.conform(table.slice(0, 0)).num_rows == 0
    assert rows.column("c").to_pylist() == [value and str(value) for value in values[1:]]


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"])])
def test_categories_of_polars_are_texts(kind: Any) -> None:
    schema = StreamSchema.of(pa.schema([("c", pa.string())]))
    frame = pl.DataFrame({"c": ["b", None, "b"]}, schema={"c": kind})
    for given in (frame, pa.table(frame)):
        assert schema.conform(given).column("c").to_pylist() == ["b", None, "b"]


def test_required_field_may_be_null_where_its_struct_is() -> None:
    kind = pa.struct([pa.field("a", pa.int8(), False)])
    loose = pa.struct([("a", pa.int64())])
    assert conform(pa.array([None, {"a": 1}], loose), kind).to_pylist() == [None, {"a": 1}]
    with pytest.raises(SchemaMismatch, match=r"row 1, column c\.a: null, and the field is req"):
        conform(pa.array([None, {"a": None}], loose), kind)
    as_declared = pa.StructArray.from_arrays([pa.array([None, 1], pa.int8())], fields=list(kind))
    with pytest.raises(SchemaMismatch, match=r"row 0, column c\.a: null"):
        conform(as_declared, kind)


def test_values_behind_null_lists_do_not_count() -> None:
    inner = pa.array([1, 300, 2])
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), inner, mask=pa.array([False, True, False])
    )
    schema = StreamSchema.of(pa.schema([("c", pa.list_(pa.int8()))]))
    found = schema.conform(pa.table({"c": lists}))
    assert found.column("c").to_pylist() == [[1], None, [2]]
    assert schema.event_sizes(found).tolist() == [1, 0, 1]
    wide = StreamSchema.of(pa.schema([("c", pa.list_(pa.int64()))]))
    assert wide.event_sizes(wide.conform(pa.table({"c": lists}))).tolist() == [8, 0, 8]
