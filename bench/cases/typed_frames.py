"""What a query over columns saves: a typed stream beside one whose events are parsed as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.harness.context import Context
from bench.harness.cpu_time import compare
from bench.harness.figures import Figure
from bench.harness.measure import interleave
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import as_json, cached_flights
from bench.harness.spark_tables import MeteredReads
from pravega_spark import frame


@benchmark(Phase.SPARK)
def typed_aggregation(context: Context) -> Iterator[Figure]:
    """Means of one of ten columns by another, by native frames, at two sizes ten apart."""
    for rows in (context.size(400_000, 2_000), context.size(4_000_000, 20_000)):
        yield _aggregation(context, rows)


def _aggregation(context: Context, rows: int) -> Figure:
    """Compare both streams; the parser of the raw one looks for the two columns alone."""
    typed, raw = _flights(context, rows)
    expected = sorted(_means(_columns(context, typed)))

    def read(events: Any) -> None:
        assert sorted(_means(events)) == expected, "the streams have other means"

    sides = {
        "typed": MeteredReads(rows, lambda name: read(_columns(context, name)), typed),
        "raw": MeteredReads(rows, lambda name: read(_parsed(context, name)), raw),
    }
    found = interleave(context.size(7, 1), sides)
    return Figure.of_rounds(
        f"typed native frame of {rows:,} rows, 2 of 10 columns aggregated",
        found["typed"],
        "rows/s",
        "raw native frame, from_json",
        found["raw"],
        note=compare(sides["typed"].meter, sides["raw"].meter),
        limited_by="planning and the tasks of the aggregation, which both sides have: 0.15 s",
    ).within(ratio_at_least=5.0 if rows >= 4_000_000 else 3.0)


def _flights(context: Context, rows: int) -> tuple[str, str]:
    """Write the same rows into a typed stream and, as JSON, into one of bytes."""
    flights = cached_flights(context, rows)
    streams = f"bench/typed-flights-{rows}", f"bench/raw-flights-{rows}"
    for name, events in zip(streams, (flights, as_json(flights, "carrier")), strict=True):
        writer = events.write.format("pravega").mode("append").option("root", context.root)
        if events is flights:
            writer = writer.options(schema="infer", routingKey="carrier")
        writer.option("numSegments", 4).save(name)
    flights.unpersist()
    return streams


def _columns(context: Context, stream: str) -> Any:
    return frame(context.spark, stream, root=context.root)


def _parsed(context: Context, stream: str) -> Any:
    fields = "from_json(cast(event as string), 'carrier string, delay double') as flight"
    return _columns(context, stream).selectExpr(fields).select("flight.*")


def _means(flights: Any) -> list[tuple[str, float]]:
    return [(row[0], row[1]) for row in flights.groupBy("carrier").avg("delay").collect()]
