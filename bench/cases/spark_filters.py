"""Reads of a part of a stream by Spark: by time, and by columns, beside reads of all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.dataset import backlog, table
from bench.harness.figures import Figure
from bench.harness.measure import interleave, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import drain
from bench.harness.spark_session import spark_setting
from pravega_spark.engine.chunks.chunk_writer import stage
from pravega_spark.engine.staging_folder import version_folder
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.writing.append import append

_SWITCH = "spark.sql.python.filterPushdown.enabled"
_BEGIN_US, _MINUTE_US = 1_700_000_000_000_000, 60_000_000


@benchmark(Phase.SPARK)
def time_filter(context: Context) -> Iterator[Figure]:
    """A hundredth of the chunks by their time, beside a read of all; each chunk is a minute."""
    chunks, events = context.size(1_000, 100), context.size(16_384, 100)
    stream = _minutes(context, chunks, events)
    kept = chunks // 100
    low, high = (_time(minute) for minute in (chunks // 2, chunks // 2 + kept))

    def load(**options: str) -> Any:
        return (
            context.spark.read.format("pravega").options(root=context.root, **options).load(stream)
        )

    def hundredth() -> Any:
        condition = f"timestamp >= '{low.isoformat()}' AND timestamp < '{high.isoformat()}'"
        return load(pushFilters="true").where(condition)

    def pushed() -> None:
        with spark_setting(context.spark, _SWITCH, "true"):
            drain(hundredth())

    def between() -> None:
        drain(load(startingTimestamp=low.isoformat(), endingTimestamp=high.isoformat()))

    with spark_setting(context.spark, _SWITCH, "true"):
        assert hundredth().count() == kept * events
    sides = {"pushed": pushed, "between": between, "all": lambda: drain(load())}
    found, meters = _seconds(context, sides)
    for side, way in (("pushed", "pushFilters"), ("between", "startingTimestamp, endingTimestamp")):
        yield Figure.of_rounds(
            f"{kept} of {chunks:,} chunks of {events:,} events by time, {way}",
            [1 / seconds for seconds in found[side]],
            "reads/s",
            "a read of all chunks",
            [1 / seconds for seconds in found["all"]],
            note=compare(meters[side], meters["all"]),
            limited_by="planning in a Python process, the same for a read of a few events",
        ).within(ratio_at_least=20.0)


@benchmark(Phase.SPARK)
def two_columns(context: Context) -> Iterator[Figure]:
    """Two columns of the backlog by the option ``columns``, beside a read of all columns."""
    stream, rows = backlog(context)

    def read(**options: str) -> Callable[[], None]:
        reader = context.spark.read.format("pravega").options(root=context.root, **options)
        return lambda: drain(reader.load(stream))

    pairs = ("routing_key,event", "routing_key,timestamp")
    sides = {"all": read(), **{pair: read(columns=pair) for pair in pairs}}
    found, meters = _seconds(context, sides)
    for pair in pairs:
        yield Figure.of_rounds(
            f"DataFrame read of {rows:,} events, columns={pair}",
            [rows / seconds for seconds in found[pair]],
            "events/s",
            "all columns",
            [rows / seconds for seconds in found["all"]],
            note=compare(meters[pair], meters["all"]),
            limited_by="the bytes of the events, which are most of all columns together",
        ).within(ratio_at_least=1.5)


def _seconds(
    context: Context, sides: Mapping[str, Callable[[], None]]
) -> tuple[dict[str, list[float]], dict[str, CpuMeter]]:
    """Return the seconds of each side by round, and the meters of their processor time."""
    meters = {name: CpuMeter() for name in sides}

    def metered(name: str) -> Callable[[], float]:
        sides[name]()  # warm

        def measured() -> float:
            with meters[name]:
                return timed(sides[name])

        return measured

    return interleave(context.size(5, 1), {name: metered(name) for name in sides}), meters


def _minutes(context: Context, chunks: int, events: int) -> str:
    """Return a stream with a chunk of events for each minute, all of the same time."""
    name = context.create("minutes")
    stream = open_stream(context.root, name)
    view = stream.view()
    rows = table(events)
    column = rows.schema.get_field_index("timestamp")
    staged = []
    for minute in range(chunks):
        times = pa.array(np.full(events, _BEGIN_US + minute * _MINUTE_US))
        part = rows.set_column(
            column, rows.schema.field(column), times.view(pa.timestamp("us", "UTC"))
        )
        folder = version_folder(view.version)
        staged += stage(stream.store, stream.path, folder, 0, part, name=f"minute-{minute}")
    append(stream, view.life, view.version, staged)
    return name


def _time(minute: int) -> datetime:
    return datetime.fromtimestamp((_BEGIN_US + minute * _MINUTE_US) / 1e6, timezone.utc)
