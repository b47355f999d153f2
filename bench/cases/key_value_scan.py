"""Scans of a key-value table in Spark, beside a Delta table of equal rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bench.harness.context import Context
from bench.harness.cpu_time import CpuMeter, compare
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave, timed
from bench.harness.registry import Phase, benchmark
from bench.harness.spark_frames import drain
from pravega_spark import KeyValueTableConfiguration, key_value_frame
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table

Frame = Callable[..., Any]
_TEXTS = "the texts of versions, made for each row, and the plan"
_CHANGES = "the driver's way of the changes into the tasks"
_LOOKUPS = "a look-up of each folded row by its key, and the way of the changes"
_IN_RANGE, _SPREAD = 0.8, 0.5
"""The targets of a table of which one key in a hundred has changed."""
_LARGE, _OF_SMALL = 1_000_000, 0.7
"""Of fewer keys than that most of a scan is planning: then this part of each target counts."""
_WAYS = "rows on their way from Python into the JVM, and from Arrow into its rows"


def _rows(context: Context, low: int, high: int) -> Any:
    """Return keys of 17 characters and values of 100 bytes, as no codec makes them small."""
    digits = ", ".join(f"lpad(hex(xxhash64(id, {n})), 16, '0')" for n in range(6))
    return context.spark.range(low, high, 1, 2).selectExpr(
        "concat('user-', lpad(cast(id as string), 12, '0')) as key",
        f"cast(concat({digits}, 'tail') as binary) as value",
    )


def _write(context: Context, table: str, rows: Any) -> None:
    writer = rows.write.format("pravega_kvt").mode("append").option("root", context.root)
    writer.option("duplicateKeys", "last").save(table)


@benchmark(Phase.SPARK)
def key_value_scan(context: Context) -> Iterator[Figure]:
    """All entries of a folded table; then with one key in a hundred changed since a fold."""
    for keys in (400_000, 4_000_000) if not context.quick else (20_000,):
        yield from _of_size(context, keys)


def _of_size(context: Context, keys: int) -> Iterator[Figure]:
    spark, name = context.spark, f"bench/scanned-{keys}"
    context.manager.create_key_value_table(
        name, KeyValueTableConfiguration(key_type="string", partitions=2)
    )
    _write(context, name, _rows(context, 0, keys))
    table = context.manager.key_value_table(name)
    fold(table._stream, folded_table(table._stream, table.configuration))
    peer = str(context.folder / f"scanned-delta-{keys}")
    rows = key_value_frame(spark, name, root=context.root)
    rows.sortWithinPartitions("key").write.format("delta").option("compression", "zstd").save(peer)

    def source(*columns: str) -> Any:
        reader = spark.read.format("pravega_kvt").option("root", context.root)
        return (reader.option("columns", ",".join(columns)) if columns else reader).load(name)

    def frame(*columns: str) -> Any:
        found = key_value_frame(spark, name, root=context.root)
        return found.select(*columns) if columns else found

    def delta(*columns: str) -> Any:
        found = spark.read.format("delta").load(peer)
        return found.select(*columns) if columns else found

    yield from _figures(context, keys, "folded", 0.9, _TEXTS, source, frame, delta)
    # The first hundredth lies in one range, the keys with these last digits all over the table.
    _write(context, name, _rows(context, 0, keys // 100))
    assert frame().count() == keys
    changed = "1 % changed in a range"
    yield from _figures(context, keys, changed, _IN_RANGE, _CHANGES, source, frame, delta)
    fold(table._stream, folded_table(table._stream, table.configuration))
    _write(context, name, _rows(context, 0, keys).where("key LIKE '%33'"))
    assert frame().count() == keys
    changed = "1 % changed, spread"
    yield from _figures(context, keys, changed, _SPREAD, _LOOKUPS, source, frame, delta)


def _figures(
    context: Context, keys: int, state: str, least: float, limit_of_frame: str, *ways: Frame
) -> Iterator[Figure]:
    for columns in ((), ("key", "value")):
        what = "all columns" if not columns else " and ".join(columns)
        meters = {name: CpuMeter() for name in ("source", "frame", "delta")}

        def side(way: Frame, meter: CpuMeter, columns: tuple[str, ...] = columns) -> Side:
            drain(way(*columns))  # warm

            def scan() -> None:
                with meter:
                    drain(way(*columns))

            return lambda: keys / timed(scan)

        sides = zip(meters.items(), ways, strict=True)
        found = interleave(
            context.size(3, 1), {name: side(way, meter) for (name, meter), way in sides}
        )
        for name, label, limit in (
            ("frame", "key_value_frame", limit_of_frame),
            ("source", 'format("pravega_kvt")', _WAYS),
        ):
            figure = Figure.of_rounds(
                f"{keys:,} keys, {what}, {state}: {label}",
                found[name],
                "entries/s",
                "Delta of equal rows",
                found["delta"],
                note=compare(meters[name], meters["delta"]),
                limited_by=limit,
            )
            wanted = least if keys > _LARGE else _OF_SMALL * least
            yield figure.within(ratio_at_least=wanted) if name == "frame" else figure
