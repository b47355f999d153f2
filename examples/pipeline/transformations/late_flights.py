"""A streaming table, a view over it, and a flow that writes another stream exactly once."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
ROOT = str(spark.conf.get("spark.pipeline.root"))


def flights() -> DataFrame:
    """Return the stream nyc/flights from its first event on."""
    source = spark.readStream.format("pravega").option("root", ROOT)
    return source.option("startingOffsets", "earliest").load("nyc/flights")


@dp.table
def departures() -> DataFrame:
    """Return every flight with its place in the stream."""
    return flights().selectExpr(
        "routing_key AS carrier",
        "get_json_object(CAST(event AS STRING), '$.delay') AS delay",
        "segment_id",
        "offset",
    )


@dp.materialized_view
def carriers() -> DataFrame:
    """Return how many flights each carrier has."""
    return spark.read.table("departures").groupBy("carrier").count()


dp.create_sink("delayed_flights", "pravega", {"root": ROOT, "scope": "nyc", "stream": "delayed"})


@dp.append_flow(target="delayed_flights")
def delayed() -> DataFrame:
    """Return the flights that are late by an hour or more."""
    late = "CAST(get_json_object(CAST(event AS STRING), '$.delay') AS INT) >= 60"
    return flights().where(late).select("routing_key", "event")
