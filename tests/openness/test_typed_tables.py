"""The table of a typed stream has columns for every Delta reader, also after the schema grew."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
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
