"""Reads of a part of a stream by Spark: by time, and by columns, beside reads of all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.dataset import backlog, table
from bench.harness.figures import Figure
from bench.harness.measure import interleave, ratio, timed
from bench.harness.ready_source import ReadyBatches, ready_options
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import drain
from bench.harness.spark_session import spark_setting
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.stream.stream_log import open_stream
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
    """Two columns of the backlog by the option ``columns``, beside a read of all columns.

    And both as a source has them that yields ready batches: what no read through Python can save.
    """
    stream, rows = backlog(context)
    pairs = ("routing_key,event", "routing_key,timestamp")
    sides: dict[str, Callable[[], None]] = {}
    counts: dict[str, int] = {}
    for name, options in {"all": {}, **{pair: {"columns": pair} for pair in pairs}}.items():
        reader = context.spark.read.format("pravega").options(root=context.root, **options)
        sides[name] = partial(_drain, reader, stream)
        ready, counts[name] = ready_options(context, stream, rows, **options)
        floor = context.spark.read.format(ReadyBatches.name()).options(**ready)
        sides[f"ready {name}"] = partial(_drain, floor)
    found, meters = _seconds(context, sides)

    def rates(name: str) -> list[float]:
        count = counts[name.removeprefix("ready ")] if name.startswith("ready ") else rows
        return [count / seconds for seconds in found[name]]

    for pair in pairs:
        of_floor = ratio(rates(f"ready {pair}"), rates("ready all"))
        yield Figure.of_rounds(
            f"DataFrame read of {rows:,} events, columns={pair}",
            rates(pair),
            "events/s",
            "all columns",
            rates("all"),
            note=f"{compare(meters[pair], meters['all'])}; ready batches of these columns "
            f"{of_floor:.2f}x of ready batches of all",
            limited_by="Arrow's columns into Spark's rows, and the bytes of the events, which are "
            "most of all columns together",
        ).within(ratio_at_least=_GAINS[pair])
    for name in ("all", *pairs):
        yield Figure.of_rounds(
            f"DataFrame read of {rows:,} events, {name if name == 'all' else f'columns={name}'}",
            rates(name),
            "events/s",
            "a source of ready batches",
            rates(f"ready {name}"),
            note=compare(meters[name], meters[f"ready {name}"]),
            limited_by="planning, decoding and checks",
        )


_GAINS = {"routing_key,event": 1.3, "routing_key,timestamp": 1.5}
"""What two columns gain at least; ready batches of a key and its event gain no more, either."""


def _drain(reader: Any, *what: str) -> None:
    drain(reader.load(*what))


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
