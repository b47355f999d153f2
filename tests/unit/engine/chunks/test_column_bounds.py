"""The bounds of typed columns in Delta's statistics: every value lies in them."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark import StreamSchema
from pravega_spark.engine.chunks import encoder
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.columns import bounded_names
from pravega_spark.engine.chunks.format import format_of
from pravega_spark.engine.chunks.writer import encode_chunks

NOON = datetime(2026, 1, 1, 12, 0, 0, 1, timezone.utc)
HIGHEST = chr(0x10FFFF)
KINDS = pa.schema(
    [
        ("a_byte", pa.int8()),
        ("a_long", pa.int64()),
        ("a_float", pa.float32()),
        ("a_double", pa.float64()),
        ("a_price", pa.decimal128(20, 3)),
        ("a_count", pa.decimal128(5, 0)),
        ("a_day", pa.date32()),
        ("a_time", pa.timestamp("us", "UTC")),
        ("a_text", pa.string()),
        ("a_flag", pa.bool_()),
        ("a_blob", pa.binary()),
        ("a_list", pa.list_(pa.int8())),
        ("a_struct", pa.struct([("x", pa.int8())])),
        ("a.name", pa.int8()),
        ("größe", pa.int8()),
        ("last", pa.int16()),
    ]
)
BOUNDED = ["a_byte", "a_long", "a_float", "a_double", "a_price", "a_count", "a_day", "a_time"]
BOUNDED += ["a_text", "last"]


def staged(columns: pa.Schema, rows: list[dict[str, Any]]) -> StagedChunk:
    """Return the chunk of typed rows."""
    events = format_of(StreamSchema.of(columns)).events
    own = pa.Table.from_pylist(rows, columns)
    times = pa.array(range(len(rows)), pa.int64()).view(pa.timestamp("us", "UTC"))
    arrays = [pa.nulls(len(rows), pa.string()), times, *own.columns]
    (one,) = encode_chunks("v0", 0, pa.Table.from_arrays(arrays, schema=events), name="x")
    return one.chunk


def stats(columns: pa.Schema, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return dict(json.loads(staged(columns, rows).stats()))


def of(kind: pa.DataType, *values: Any) -> tuple[Any, Any, Any]:
    """Return the bounds and the nulls of a column ``c`` with these values."""
    found = stats(pa.schema([("c", kind)]), [{"c": value} for value in values])
    low, high = found.get("minValues", {}), found.get("maxValues", {})
    return low.get("c"), high.get("c"), found["nullCount"].get("c")


def test_the_columns_with_an_order_that_readers_share_have_bounds() -> None:
    assert bounded_names(format_of(StreamSchema.of(KINDS)).events) == BOUNDED
    many = pa.schema([(f"c{number}", pa.int8()) for number in range(40)])
    assert bounded_names(format_of(StreamSchema.of(many)).events) == many.names[:32]
    wider = pa.schema([*KINDS, ("later", pa.int8())])
    assert bounded_names(format_of(StreamSchema.of(wider)).events) == [*BOUNDED, "later"]


def test_bounds_are_of_all_row_groups_and_in_delta_s_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "ROW_GROUP_EVENTS", 2)
    row = {
        "a_byte": -3, "a_long": 1 << 60, "a_float": 0.5, "a_double": 1e22,
        "a_price": Decimal("-0.050"), "a_count": Decimal(7), "a_day": date(2026, 1, 1),
        "a_time": NOON, "a_text": "é\"\n", "last": 5,
    }  # fmt: skip
    later = {
        "a_byte": 4, "a_float": float("inf"), "a_price": Decimal("12.5"), "a_text": "a",
        "a_day": date(1969, 12, 31), "a_time": NOON + timedelta(milliseconds=1),
    }  # fmt: skip
    found = stats(KINDS, [row, {}, {}, later, later])
    assert found["numRecords"] == 5
    assert found["minValues"] == {
        "timestamp": "1970-01-01T00:00:00.000Z", "a_byte": -3, "a_long": 1 << 60, "a_float": 0.5,
        "a_double": 1e22, "a_price": -0.05, "a_count": 7, "a_day": "1969-12-31",
        "a_time": "2026-01-01T12:00:00.000Z", "a_text": "a", "last": 5,
    }  # fmt: skip
    assert found["maxValues"] == {
        "timestamp": "1970-01-01T00:00:00.001Z", "a_byte": 4, "a_long": 1 << 60,
        "a_float": "Infinity", "a_double": 1e22, "a_price": 12.5, "a_count": 7,
        "a_day": "2026-01-01", "a_time": "2026-01-01T12:00:00.002Z", "a_text": "é\"\n", "last": 5,
    }  # fmt: skip
    nulls = {"a_long": 4, "a_double": 4, "a_count": 4, "last": 4}
    assert found["nullCount"] == {
        "routing_key": 5, "timestamp": 0, **dict.fromkeys(BOUNDED, 2), **nulls,
    }  # fmt: skip


def test_a_column_of_nulls_has_their_count_alone() -> None:
    assert of(pa.int8(), None, None) == (None, None, 2)
    assert "minValues" in stats(pa.schema([("c", pa.int8()), ("d", pa.int8())]), [{"d": 1}])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [1.0, float("nan")]),
        (pa.float32(), [float("nan")]),
        (pa.date32(), [date(2026, 1, 1)]),
        (pa.timestamp("us", "UTC"), [1 << 62]),
        (pa.string(), ["x" * 5_000]),
        (pa.string(), [HIGHEST * 33]),
    ],
)
def test_one_column_without_certain_bounds_leaves_the_file_without_any(
    kind: pa.DataType, values: list[Any]
) -> None:
    columns = pa.schema([("c", kind), ("d", pa.int8())])
    rows = [{"c": value, "d": 1} for value in values]
    found = stats(columns, rows)
    if pa.types.is_date(kind):  # and a day of no year that readers know
        assert found["maxValues"]["c"] == "2026-01-01"
        found = stats(columns, [*rows, {"c": 1 << 30, "d": 1}])
    assert found == {
        "numRecords": found["numRecords"],
        "nullCount": {"routing_key": found["numRecords"], "timestamp": 0},
    }  # fmt: skip


def test_zero_has_both_signs() -> None:
    chunk = staged(pa.schema([("c", pa.float64())]), [{"c": -0.0}, {"c": 0.0}])
    assert chunk.columns is not None
    assert chunk.columns[:2] == ('"c":-0.0', '"c":0.0')


@pytest.mark.medium
@given(st.lists(st.text(max_size=40) | st.text("\ud7ff\ue000" + HIGHEST, max_size=40), min_size=1))
def test_every_text_lies_in_its_bounds_which_are_short(texts: list[str]) -> None:
    low, high, _ = of(pa.string(), *texts)
    if high is None:
        assert any(text.startswith(HIGHEST * 32) for text in texts)
        return
    assert all(low.encode() <= text.encode() <= high.encode() for text in texts)
    assert max(len(low), len(high)) <= 32


@given(st.lists(st.decimals(-(10**33), 10**33, places=4), min_size=1))
def test_decimals_are_numbers_with_all_their_digits(values: list[Decimal]) -> None:
    chunk = staged(pa.schema([("c", pa.decimal128(38, 4))]), [{"c": value} for value in values])
    assert chunk.columns is not None
    low, high = (Decimal(text.removeprefix('"c":')) for text in chunk.columns[:2])
    assert (low, high) == (min(values), max(values))
