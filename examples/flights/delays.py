"""The demo's second query: delays from the stream, with the weather, by key and hour, into Delta.

``expected_delays`` computes the same table from the source with Arrow, without stream and Spark.
"""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from flights.dataset import TIME, Dataset

LATENESS = timedelta(hours=24)
"""How long an hour waits for its flights: the latest of 2013 left 21 h 41 min late."""

FIELDS = "_hour TIMESTAMP, origin STRING, dep_delay INT"
"""Fields that the query reads of an event; events of the user's own have only the hour."""


def delays_by_hour(events: DataFrame, weather: DataFrame | None) -> DataFrame:
    """Count events by key and hour; with the weather, also departures and their delays.

    The hour is the event time. Every batch of this query ends where a batch of the ingest ended, so
    no segment runs ahead of the others in time, and the watermark drops nothing.
    """
    hourly = events.select(
        "routing_key", F.from_json(F.col("event").cast("string"), FIELDS).alias("row")
    ).select(F.col("routing_key").alias("key"), F.col("row._hour").alias("hour"), "row.*")
    hourly = hourly.drop("_hour").withWatermark("hour", f"{LATENESS.total_seconds():.0f} seconds")
    measures = [F.count("*").alias("events")]
    if weather is not None:
        hourly = hourly.join(F.broadcast(weather), ["origin", "hour"], "left")
        measures += [
            F.count("dep_delay").alias("departed"),
            _total(F.col("dep_delay")).alias("delay_minutes"),
            F.count(F.when(F.col("rain"), F.col("dep_delay"))).alias("rain_departed"),
            _total(F.when(F.col("rain"), F.col("dep_delay"))).alias("rain_delay_minutes"),
        ]
    return hourly.groupBy("key", "hour").agg(*measures)


def start_delays(
    spark: SparkSession,
    *,
    root: str,
    stream: str,
    group: str,
    weather: pa.Table | None,
    table: str,
    checkpoint: str,
) -> StreamingQuery:
    """Start the query, which appends an hour to the table when the watermark has passed it.

    The query is a subscriber of the stream, which keeps what the query has not consumed.
    """
    events = (
        spark.readStream.format("pravega")
        .option("root", root)
        .option("startingOffsets", "earliest")
        .option("readerGroup", group)
        .option("readerGroupMode", "subscriber")
        .load(stream)
    )
    sky = None if weather is None else spark.createDataFrame(weather)
    return (
        delays_by_hour(events, sky)
        .writeStream.format("delta")
        .queryName("delays")
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="500 milliseconds")
        .start(table)
    )


def closing_event(dataset: Dataset) -> str:
    """Return the event that ends the stream and moves the watermark past the last hour.

    The watermark never passes the event's own hour, so the event is never counted.
    """
    hour = dataset.last_hour + LATENESS + timedelta(hours=1)
    return f'{{"_hour":"{hour:%Y-%m-%dT%H:%M:%S.000Z}"}}'


def expected_delays(dataset: Dataset) -> pa.Table:
    """Return the table that the query must write, computed from the source."""
    rows = dataset.rows.rename_columns({"_key": "key", "_hour": "hour_of"})
    keys = ["key", "hour_of"]
    if dataset.weather is None:
        counted = rows.select(keys).group_by(keys).aggregate([([], "count_all")])
        return counted.rename_columns(["key", "hour", "events"])
    sky = dataset.weather.rename_columns(["origin", "hour_of", "rain"])
    rows = rows.select([*keys, "origin", "dep_delay"])
    rows = rows.join(sky, ["origin", "hour_of"], join_type="left outer")
    wet = pc.if_else(pc.fill_null(rows["rain"], False), rows["dep_delay"], None)
    summed = rows.append_column("wet", wet).group_by(keys).aggregate(
        [
            ([], "count_all"),
            ("dep_delay", "count"),
            ("dep_delay", "sum"),
            ("wet", "count"),
            ("wet", "sum"),
        ]
    )  # fmt: skip
    names = ["events", "departed", "delay_minutes", "rain_departed", "rain_delay_minutes"]
    table = summed.rename_columns(["key", "hour", *names])
    for column in ("delay_minutes", "rain_delay_minutes"):
        filled = pc.fill_null(table[column], 0)
        table = table.set_column(table.column_names.index(column), column, filled)
    assert table["hour"].type == TIME
    return table


def _total(minutes: Column) -> Column:
    return F.coalesce(F.sum(minutes), F.lit(0).cast("bigint"))
