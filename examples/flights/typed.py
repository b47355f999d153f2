"""The flights once more, as a typed stream: columns, where the first stream has JSON."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from flights.checks import Finding, same_table
from flights.dataset import Dataset
from flights.workspace import Workspace
from pravega_spark import StreamConfiguration, StreamManager

COLUMNS = ["carrier", "flight", "tailnum", "origin", "dest", "scheduled", "departure", "dep_delay"]
COLUMNS += ["arr_delay", "distance"]
FIELDS = "carrier STRING, dep_delay BIGINT"


@dataclass(frozen=True)
class TypedResult:
    """Seconds of the write, and of the same query over columns and over JSON; the comparison."""

    stream: str
    seconds: dict[str, float]
    finding: Finding


def compare_typed(spark: SparkSession, dataset: Dataset, workspace: Workspace) -> TypedResult:
    """Write all flights into a typed stream; ask both streams for the delays of each carrier."""
    rows, manager = dataset.rows.select(COLUMNS), StreamManager(workspace.root)
    manager.create_stream(workspace.typed, StreamConfiguration(schema=rows.schema))
    times = [time.monotonic()]
    with manager.create_writer(workspace.typed) as writer:
        writer.write_table(rows, routing_key="carrier").result()
    times.append(time.monotonic())
    reader = spark.read.format("pravega").option("root", workspace.root)
    columns = delays(reader.option("columns", "carrier,dep_delay").load(workspace.typed))
    times.append(time.monotonic())
    flight = F.from_json(F.col("event").cast("string"), FIELDS).alias("flight")
    events = reader.option("columns", "event").load(workspace.stream)
    parsed = delays(events.select(flight).select("flight.*"))
    times.append(time.monotonic())
    took = (round(end - begin, 1) for begin, end in pairwise(times))
    seconds = dict(zip(("write", "columns", "json"), took, strict=True))
    return TypedResult(workspace.typed, seconds, same_table("typed_matches", columns, parsed))


def delays(flights: DataFrame) -> pa.Table:
    """Return departures and minutes by carrier; the event that ends the stream has no carrier."""
    by_carrier = flights.where("carrier IS NOT NULL").groupBy("carrier")
    return by_carrier.agg(F.count("dep_delay"), F.sum("dep_delay")).toArrow()
