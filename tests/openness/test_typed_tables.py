"""The table of a typed stream has columns for every Delta reader, also after the schema grew."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from tests.harness import delta_engines

S = "nyc/flights"
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
PLAIN = pa.schema(
    [
        pa.field("carrier", pa.string(), False, {"comment": "two letters"}),
        ("on_time", pa.bool_()),
        ("gate", pa.int8()),
        ("delay", pa.int16()),
        ("number", pa.int32()),
        ("distance", pa.int64()),
        ("speed", pa.float32()),
        ("fuel", pa.float64()),
        ("price", pa.decimal128(20, 4)),
        ("photo", pa.binary()),
        ("day", pa.date32()),
        ("departed", pa.timestamp("us", "UTC")),
    ]
)
NESTED = [
    pa.field("crew", pa.struct([("pilot", pa.string()), ("years", pa.int32())])),
    pa.field("stops", pa.list_(pa.string())),
    pa.field("seats", pa.map_(pa.string(), pa.int32())),
]
GROWN = pa.schema([*PLAIN, *NESTED])
ROW: dict[str, Any] = {
    "carrier": "UA", "on_time": True, "gate": -3, "delay": 300, "number": 1, "distance": 1 << 40,
    "speed": 0.5, "fuel": 0.25, "price": Decimal("1.2345"), "photo": b"\x00\xff",
    "day": date(2026, 1, 1), "departed": NOON,
}  # fmt: skip
MORE = {**ROW, "crew": {"pilot": "A", "years": 7}, "stops": ["ORD", None], "seats": {"first": 8}}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("typed")
    manager = StreamManager(root)
    manager.create_scope("nyc")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(2), schema=PLAIN))
    with manager.create_writer(S) as writer:
        writer.write_event(ROW, "UA").result()
        writer.write_event({"carrier": "AA"}, "AA").result()
        manager.update_stream(S, schema=GROWN)
        writer.write_table(pa.Table.from_pylist([ROW] * 50, PLAIN), routing_key="carrier").result()
        writer.write_event(MORE, "UA").result()
    return str(root / S / "events")


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with maps as dicts, in a fixed order."""
    made = [{**row, "seats": dict(row["seats"]) if row["seats"] else None} for row in rows]
    return sorted(made, key=lambda row: (row["carrier"], row["crew"] is not None))


EMPTY = dict.fromkeys(GROWN.names)
WANTED = plain([{**EMPTY, "carrier": "AA"}, *[{**EMPTY, **ROW}] * 51, {**EMPTY, **MORE}])


def test_delta_rs_reads_typed_rows(table: str) -> None:
    found = DeltaTable(table).to_pyarrow_table(columns=GROWN.names)
    assert plain(found.to_pylist()) == WANTED


def test_duckdb_reads_typed_rows(table: str) -> None:
    names = ", ".join(GROWN.names)
    with delta_engines.connect_duckdb() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        query = f"SELECT {names} FROM delta_scan('{table}')"
        found = connection.execute(query).to_arrow_table()
        (late,) = connection.execute(
            f"SELECT count(*) FROM delta_scan('{table}') WHERE crew.years = 7 AND delay > 299"
        ).fetchone() or (None,)
    assert plain(found.to_pylist()) == WANTED
    assert late == 1


def test_polars_reads_typed_rows(table: str) -> None:
    found = pl.read_delta(table, use_pyarrow=True).select(GROWN.names)
    assert plain(found.to_arrow().to_pylist()) == WANTED
    own = pl.scan_delta(table).filter(pl.col("delay") == 300).select("carrier", "crew").collect()
    assert own.height == 52
    assert own["crew"].drop_nulls().to_list() == [{"pilot": "A", "years": 7}]


@pytest.mark.spark
def test_delta_spark_reads_typed_rows_and_comments(table: str, spark: SparkSession) -> None:
    frame = delta_engines.spark_frame(spark, table)
    assert plain(frame.select(GROWN.names).toArrow().to_pylist()) == WANTED
    assert frame.schema["carrier"].metadata["comment"] == "two letters"
    assert frame.where("crew.years = 7 and delay > 299").count() == 1


FILES = 6
BOUNDED = pa.schema(
    [
        ("n", pa.int32()),
        ("word", pa.string()),
        ("price", pa.decimal128(20, 2)),
        ("speed", pa.float64()),
        ("day", pa.date32()),
        ("landed", pa.timestamp("us", "UTC")),
    ]
)


def numbered(number: int) -> dict[str, Any]:
    """Return a row whose every column grows with its number; the fourth file has a NaN."""
    return {
        "n": number,
        "word": "w" * 40 + f"{number:02d}" if number < 20 else f"x{number:02d}",
        "price": Decimal(number) - Decimal("10.05"),
        "speed": float("nan") if number == 35 else number / 2,
        "day": date(2026, 1, 1) + timedelta(days=number),
        "landed": NOON + timedelta(microseconds=700 * number),
    }


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of files of ten rows each, the second one with nulls; then its schema grows."""
    root = tmp_path_factory.mktemp("bounded")
    manager = StreamManager(root)
    manager.create_scope("nyc")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1), schema=BOUNDED))
    with manager.create_writer(S) as writer:
        for first in range(0, 10 * FILES, 10):
            rows = [numbered(number) for number in range(first, first + 10)]
            if first == 10:
                rows[1] = {}
                rows = [{**row, "price": None} for row in rows]
            if first == 50:
                manager.update_stream(S, schema=BOUNDED.append(pa.field("gate", pa.string())))
                rows = [{**row, "gate": "A"} for row in rows]
            writer.write_table(pa.Table.from_pylist(rows)).result()
    return str(root / S / "events")


CONDITIONS = {
    "n = 7": 1,
    "n >= 50": 1,
    "n < 10": 1,
    "n IS NULL": 1,
    "word = 'x42'": 1,
    "word < 'x'": 2,
    "price > 30": 2,
    "price IS NULL": 1,
    "speed < 3": 1,
    "speed > 27.4": 1,
    "day < DATE '2026-01-03'": 1,
    "landed > TIMESTAMP '2026-01-01 12:00:00.041Z'": 1,
    "gate = 'A'": 1,
    "gate IS NULL": FILES - 1,
}
"""Conditions, and the files that have such a row."""


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the rows of ``bounded`` in a table of its own, ``held``."""
    rows = [{**numbered(n), "gate": "A" if n >= 50 else None} for n in range(10 * FILES)]
    for n in range(10, 20):
        rows[n]["price"] = None
    rows[11] = dict.fromkeys(rows[11])
    held = pa.Table.from_pylist(rows, BOUNDED.append(pa.field("gate", pa.string())))
    with delta_engines.connect_duckdb() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        # Of its own: DuckDB has Arrow filter a table of Arrow, for which NaN is above nothing.
        connection.register("given", held)
        connection.execute("CREATE TABLE held AS SELECT * FROM given")
        yield connection


@pytest.fixture(scope="module")
def table_of_bounds(bounded: str) -> DeltaTable:
    return DeltaTable(bounded)


def numbers(duck: duckdb.DuckDBPyConnection, table: str, condition: str) -> set[int | None]:
    return {n for (n,) in duck.execute(f"SELECT n FROM {table} WHERE {condition}").fetchall()}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_duckdb_and_polars_and_delta_rs_find_every_row_by_a_condition(
    bounded: str, table_of_bounds: DeltaTable, duck: duckdb.DuckDBPyConnection, condition: str
) -> None:
    wanted = numbers(duck, "held", condition)
    assert numbers(duck, f"delta_scan('{bounded}')", condition) == wanted
    table = table_of_bounds
    asked = QueryBuilder().register("t", table).execute(f"SELECT n FROM t WHERE {condition}")
    assert set(pa.table(asked.read_all()).column("n").to_pylist()) == wanted
    expression = ARROW.get(condition)
    if expression is not None:
        dataset = table.to_pyarrow_dataset()
        fragments = [*dataset.get_fragments(filter=expression)]
        assert set(dataset.to_table(filter=expression).column("n").to_pylist()) == wanted
        # The file with a NaN has no bounds at all: otherwise delta-rs would skip it.
        assert CONDITIONS[condition] <= len(fragments) <= CONDITIONS[condition] + 1
    if condition.startswith("n "):
        frame = pl.scan_delta(bounded).filter(pl.sql_expr(condition)).select("n").collect()
        assert set(frame["n"].to_list()) == wanted


ARROW = {
    "n = 7": pc.field("n") == 7,
    "n >= 50": pc.field("n") >= 50,
    "n < 10": pc.field("n") < 10,
    "n IS NULL": pc.field("n").is_null(),
    "word = 'x42'": pc.field("word") == "x42",
    "word < 'x'": pc.field("word") < "x",
    "price IS NULL": pc.field("price").is_null(),
    "speed < 3": pc.field("speed") < 3.0,
}


@pytest.mark.spark
def test_delta_spark_skips_files_by_the_bounds_of_typed_columns(
    bounded: str, duck: duckdb.DuckDBPyConnection, spark: SparkSession
) -> None:
    frame = delta_engines.spark_frame(spark, bounded)
    for condition, files in CONDITIONS.items():
        chosen = frame.where(condition)
        found = {row.n for row in chosen.select("n").collect()}
        assert found == numbers(duck, "held", condition), condition
        # Beside the file with a NaN, which has no bounds; and none are of a column that was added.
        most = FILES if "gate" in condition else files + 1
        assert files <= len(chosen.inputFiles()) <= most, condition
