"""Finish what dead writers left: abort abandoned transactions, carry out decided ones, clear up.

    spark-submit jobs/transactions.py --root s3://bucket/streams --dry-run
    spark-submit jobs/transactions.py --root s3://bucket/streams --interval 60s

Looks at all streams, in all scopes or in the named ones, on Spark's executors. Prints what each
transaction is and what was decided about it; the last line is one JSON object. A stream also is
tended by its writers, now and then; the job is for streams to which nobody writes any more.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from rich import box
from rich.markup import escape
from rich.table import Table

from pravega_spark.config import PREPARED_LIMIT, parse_duration_ms
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.jobs import runner
from pravega_spark.jobs.fan_out import map_streams
from pravega_spark.jobs.runner import Report
from pravega_spark.jobs.transaction_rows import ABORT, COMMIT, KEEP, ROW_SCHEMA, tend

PROG = "transactions"
Row = Mapping[str, Any]
COLUMNS = {
    "stream": "left",
    "transaction": "left",
    "status": "left",
    "age": "right",
    "writer": "left",
    "events": "right",
    "bytes": "right",
    "decision": "left",
    "reason": "left",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status."""
    arguments = parse(argv)
    return runner.run(PROG, arguments, partial(tend_streams, arguments), counts(()))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; a fault in it exits with 2."""
    parser = runner.options(__doc__ or "", PROG)
    parser.add_argument(
        "--prepared-limit",
        type=limit,
        default=PREPARED_LIMIT,
        metavar="TIME",
        help="abort a prepared transaction that nobody has decided for so long (default: "
        f"{PREPARED_LIMIT})",
    )
    return parser.parse_args(argv)


def limit(text: str) -> str:
    """Check a duration and return it as it is."""
    try:
        parse_duration_ms("the time", text)
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def tend_streams(
    arguments: argparse.Namespace,
    spark: SparkSession,
    root: str,
    streams: Sequence[str],
    only_news: bool,
) -> Report:
    """Tend the streams' transactions, or say what would be done in a dry run."""
    work = partial(tend, prepared_limit=arguments.prepared_limit, dry_run=arguments.dry_run)
    frame = map_streams(spark, root, streams, work, ROW_SCHEMA)
    rows = sorted(frame.toArrow().to_pylist(), key=lambda row: row["stream"])
    failures = {f"stream {row['stream']}": row["error"] for row in rows if row["error"]}
    shown = [row for row in rows if row["transaction"] is not None or row["error"] is not None]
    if only_news:
        shown = [row for row in shown if row["decision"] != KEEP]
    return Report(_table(shown) if shown else None, counts(rows), failures)


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Return how many streams there were, what is open, and what was done, or would be."""
    decisions = Counter(row["decision"] for row in rows if row["decision"] is not None)
    return {
        "streams": len({row["stream"] for row in rows}),
        "open": decisions[KEEP],
        "committed": decisions[COMMIT],
        "aborted": decisions[ABORT],
        "cleared": sum(row["cleared"] or 0 for row in rows),
    }


def _table(rows: Sequence[Row]) -> Table:
    """Return the rows for people."""
    table = Table(box=box.SIMPLE_HEAD)
    for heading, side in COLUMNS.items():
        table.add_column(heading, justify="right" if side == "right" else "left")
    for row in rows:
        if row["error"] is not None:
            blank = [""] * (len(COLUMNS) - 3)
            table.add_row(row["stream"], *blank, "[red]failed[/]", escape(row["error"]))
            continue
        decision = str(row["decision"])
        table.add_row(
            row["stream"],
            row["transaction"],
            row["status"],
            age(row["age_seconds"]),
            escape(row["writer"] or ""),
            f"{row['events']:,}",
            f"{row['size_bytes']:,}",
            decision if decision == KEEP else f"[bold]{decision}[/]",
            escape(row["reason"] or ""),
        )
    return table


def age(seconds: float) -> str:
    """Return a time as its largest unit tells it: 42 s, 3.5 h."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
