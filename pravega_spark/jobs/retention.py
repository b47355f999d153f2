"""Truncate streams by their retention policies and what their subscribers have consumed.

    spark-submit jobs/retention.py --root s3://bucket/streams --dry-run
    spark-submit jobs/retention.py --root s3://bucket/streams --interval 30min

Looks at all streams, in all scopes or in the named ones, on Spark's executors. Prints for each
stream what goes, what stays and who or what holds it; the last line is one JSON object. What the
rules are: docs/retention.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich import box
from rich.markup import escape
from rich.table import Table

from pravega_spark.config import SAMPLE_FREQUENCY, STREAM_LIMIT
from pravega_spark.jobs import runner
from pravega_spark.jobs.fan_out import map_streams
from pravega_spark.jobs.runner import Report, duration
from pravega_spark.manager import StreamManager
from pravega_spark.retention.auto import options, rows_of
from pravega_spark.retention.decision import Rule
from pravega_spark.retention.explain import size_text, time_text
from pravega_spark.retention.run import ROW_SCHEMA

PROG = "retention"
Row = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status."""
    arguments = parse(argv)
    zeros = counts((), dry_run=arguments.dry_run)
    return runner.run(PROG, arguments, partial(retain_streams, arguments), zeros)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; a fault in it exits with 2."""
    parser = runner.options(__doc__ or "", PROG)
    parser.add_argument(
        "--sample-every",
        type=duration,
        default=duration(SAMPLE_FREQUENCY),
        metavar="TIME",
        help=f"a sample of the tail for the retention set when the newest is older (default: "
        f"{SAMPLE_FREQUENCY})",
    )
    parser.add_argument(
        "--expire",
        type=duration,
        metavar="TIME",
        help="remove subscribers that have published nothing for so long (default: never)",
    )
    parser.add_argument(
        "--no-sweep",
        action="store_true",
        help="truncate only, and leave the deletion of files to another job",
    )
    parser.add_argument(
        "--grace",
        type=duration,
        default=duration("1 day"),
        metavar="TIME",
        help="longer than any job that writes to the streams (default: 1 day)",
    )
    parser.add_argument(
        "--retain",
        type=duration,
        default=duration("30 days"),
        metavar="TIME",
        help="how long old versions, with what was truncated since, can be read (default: 30 days)",
    )
    parser.add_argument(
        "--confirm-clock",
        action="store_true",
        help="the clock of a local disk is right now: after a warning that it jumped",
    )
    parser.add_argument(
        "--limit",
        type=duration,
        default=duration(STREAM_LIMIT),
        metavar="TIME",
        help=f"a stream that takes longer fails (default: {STREAM_LIMIT})",
    )
    return parser.parse_args(argv)


def decisions(
    arguments: argparse.Namespace, spark: SparkSession, root: str, streams: Sequence[str]
) -> DataFrame:
    """Return the decisions as a DataFrame, a row for each stream; what computes it carries out."""
    work = partial(
        rows_of,
        options=options(
            sample_every=arguments.sample_every,
            expire=arguments.expire,
            sweep=not arguments.no_sweep,
            grace=arguments.grace,
            retain=arguments.retain,
        ),
        dry_run=arguments.dry_run,
        limit_seconds=arguments.limit,
    )
    return map_streams(spark, root, streams, work, ROW_SCHEMA)


def retain_streams(
    arguments: argparse.Namespace,
    spark: SparkSession,
    root: str,
    streams: Sequence[str],
    only_news: bool,
) -> Report:
    """Decide on the streams, and truncate and sweep them unless it is a dry run.

    Reader groups that were left half made are finished first: what they hold is kept then.
    """
    if arguments.confirm_clock and not arguments.dry_run:
        StreamManager(root).confirm_clock()
        arguments.confirm_clock = False  # once, also with --interval
    failures = {} if arguments.dry_run else _unfinished(root)
    found = decisions(arguments, spark, root, streams).toArrow().to_pylist()
    rows = sorted(found, key=lambda row: str(row["stream"]))
    failures |= {f"stream {row['stream']}": row["error"] for row in rows if row["error"]}
    shown = [row for row in rows if not only_news or _is_news(row)]
    table = _table(shown) if shown else None
    return Report(table, counts(rows, dry_run=arguments.dry_run), failures)


def _unfinished(root: str) -> dict[str, str]:
    """Return the reader groups that cannot be finished, with the error of each."""
    errors = StreamManager(root).tend_reader_groups()
    return {f"reader group {group}": why for group, why in errors.items()}


def _is_news(row: Row) -> bool:
    return row["error"] is not None or row["cut"] is not None or bool(row["expired"])


def counts(rows: Sequence[Row], *, dry_run: bool) -> dict[str, int]:
    """Return how many streams there were, and what was done, or would be."""
    sound = [row for row in rows if row["error"] is None]
    moved = [row for row in sound if row["cut"] is not None]
    truncated = [row for row in moved if dry_run or row["version"] is not None]
    return {
        "streams": len(rows),
        "policies": sum(row["decision"] != Rule.NO_POLICY.value for row in sound),
        "truncated": len(truncated),
        "events": sum(row["goes_events"] for row in truncated),
        "bytes": sum(row["goes_bytes"] for row in truncated),
        "sampled": sum(bool(row["sampled"]) for row in sound),
        "passed": sum(bool(row["passed"]) for row in truncated),
        "expired": sum(bool(row["expired"]) for row in sound),
        "swept_files": sum(row["swept_files"] for row in sound),
    }


def _table(rows: Sequence[Row]) -> Table:
    """Return the rows for people."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("stream", "policy", "goes", "why", "stays", "held by"):
        table.add_column(heading)
    for row in rows:
        if row["error"] is not None:
            blank = [""] * 3
            table.add_row(row["stream"], "[red]failed[/]", *blank, escape(row["error"]))
            continue
        goes = _amount(row["goes_events"], row["goes_bytes"])
        stays = _amount(row["stays_events"], row["stays_bytes"], row["stays_seconds"])
        bold = f"[bold]{goes}[/]" if row["cut"] is not None else goes
        cells = row["policy"], bold, escape(row["decision"]), stays, escape(_held(row))
        table.add_row(row["stream"], *cells)
    return table


def _amount(events: int, size_bytes: int, seconds: float | None = None) -> str:
    if not events:
        return "nothing"
    age = "" if seconds is None else f", {time_text(seconds)}"
    return f"{events:,} events, {size_text(size_bytes)}{age}"


def _held(row: Row) -> str:
    parts = [str(row["held_by"])] if row["held_by"] else []
    if row["passed"]:
        parts.append(f"loses data to the maximum: {row['passed']}")
    if row["expired"]:
        parts.append(f"expires: {row['expired']}")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
