"""Split the streams' segments that are too fast and merge those that are cold, as Pravega does.

    spark-submit jobs/scaling.py --root s3://bucket/streams --dry-run
    spark-submit jobs/scaling.py --root s3://bucket/streams --interval 60s

Looks at all streams whose policy follows the rate of events or bytes, in all scopes or in the
named ones, on Spark's executors. Prints rates, decision and reason for each segment; the last line
is one JSON object. What the rates are, and when a segment is split or merged: docs/scaling.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from rich import box
from rich.markup import escape
from rich.table import Table

from pravega_spark.config import ScalingPace
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.jobs import runner
from pravega_spark.jobs.fan_out import map_streams
from pravega_spark.jobs.runner import Report
from pravega_spark.scaling.auto import ROW_SCHEMA, rows_of
from pravega_spark.scaling.decision import NAMES, Action

PROG = "scaling"
Row = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status."""
    arguments = parse(argv)
    zeros = counts((), dry_run=arguments.dry_run)
    return runner.run(PROG, arguments, partial(scale_streams, arguments), zeros)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; a fault in it exits with 2."""
    parser = runner.options(__doc__ or "", PROG)
    parser.add_argument(
        "--cooldown",
        type=pace,
        default=ScalingPace(),
        metavar="TIME",
        dest="pace",
        help="a segment's least age before it is split (default: 600s); all other times of "
        "scaling are in proportion to it",
    )
    parser.add_argument(
        "--by-keys",
        action="store_true",
        help="where a policy follows events, split a segment where its newest keys fall, if that "
        "evens the load better than equal ranges",
    )
    return parser.parse_args(argv)


def pace(text: str) -> ScalingPace:
    """Read a cool-down as the pace that has it."""
    try:
        return ScalingPace.of_cooldown(text)
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def scale_streams(
    arguments: argparse.Namespace,
    spark: SparkSession,
    root: str,
    streams: Sequence[str],
    only_news: bool,
) -> Report:
    """Decide on the streams, and scale them unless it is a dry run."""
    work = partial(
        rows_of, pace=arguments.pace, dry_run=arguments.dry_run, use_keys=arguments.by_keys
    )
    frame = map_streams(spark, root, streams, work, ROW_SCHEMA)
    found = frame.toArrow().to_pylist()
    rows = sorted(found, key=lambda row: (row["stream"], row["key_low"] or 0.0))
    failures = {f"stream {row['stream']}": row["error"] for row in rows if row["error"]}
    shown = [row for row in rows if not only_news or _is_news(row)]
    table = _table(shown) if shown else None
    return Report(table, counts(rows, dry_run=arguments.dry_run), failures)


def _is_news(row: Row) -> bool:
    return row["request"] is not None or row["error"] is not None


def counts(rows: Sequence[Row], *, dry_run: bool) -> dict[str, int]:
    """Return how many streams and segments there were, and what was done, or would be."""
    sound = [row for row in rows if row["error"] is None]

    def scales(action: Action) -> int:
        made = (r for r in sound if dry_run or r["epoch"] is not None)
        return len({(r["stream"], r["request"]) for r in made if r["action"] == action.value})

    dropped = {(row["stream"], row["request"]) for row in sound if row["dropped"] is not None}
    return {
        "streams": len({row["stream"] for row in rows}),
        "segments": len(sound),
        "splits": scales(Action.SPLIT),
        "merges": scales(Action.MERGE),
        "dropped": len(dropped),
    }


def _table(rows: Sequence[Row]) -> Table:
    """Return the rows for people; rates are in the unit of the stream's policy."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("stream", "segment", "keys", *NAMES, "decision", "reason"):
        table.add_column(heading, justify="right" if heading in NAMES else "left")
    for row in rows:
        if row["error"] is not None:
            blank = [""] * (2 + len(NAMES))
            table.add_row(row["stream"], *blank, "[red]failed[/]", escape(row["error"]))
            continue
        rates = ("" if row[name] is None else f"{row[name]:,.1f}" for name in NAMES)
        keys = f"[{row['key_low']:.4g}, {row['key_high']:.4g})"
        table.add_row(
            row["stream"], row["segment"], escape(keys), *rates, _decision(row), escape(_why(row))
        )
    return table


def _decision(row: Row) -> str:
    action = str(row["action"])
    return f"[bold]{action}[/]" if row["request"] is not None else action


def _why(row: Row) -> str:
    if row["dropped"] is not None:
        return f"{row['reason']}; dropped: {row['dropped']}"
    return f"{row['reason']}; done, epoch {row['epoch']}" if row["epoch"] else str(row["reason"])


if __name__ == "__main__":
    sys.exit(main())
