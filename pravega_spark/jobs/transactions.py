"""Abort expired transactions, commit decided ones, and delete what finished ones left behind.

What it does:
  Works on all streams, or on those of the named scopes, on Spark's executors. Prints each
  transaction with its decision. docs/transactions.md says what crashed processes leave.

When to run it:
  Every minute to every ten minutes, unless the job "maintenance" runs, which does this and the
  rest. Transactional writers sweep their own stream from time to time; this job serves streams that
  have no writer any more.

Examples:
  python -m pravega_spark.jobs.transactions --root s3://bucket/streams --dry-run
  python -m pravega_spark.jobs.transactions --root s3://bucket/streams
  python -m pravega_spark.jobs.transactions --root s3://bucket/streams --interval 60s
  python -m pravega_spark.jobs.transactions --root s3://bucket/streams --prepared-limit 1day

What it never does:
  It never aborts a transaction whose lease is still extended, or a prepared one before
  --prepared-limit. It never changes a decision: what was decided to commit is committed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pravega_spark.jobs import job_runner
from pravega_spark.jobs.command_line import add_setting, duration_or_zero, make_parser
from pravega_spark.jobs.job_runner import Report, RoundInput
from pravega_spark.jobs.report import FAILED, Cell, Side, TextTable, bold
from pravega_spark.jobs.stream_tasks import map_streams
from pravega_spark.jobs.transaction_rows import ABORT, COMMIT, KEEP, ROW_SCHEMA, sweep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROG = "transactions"
Row = Mapping[str, Any]
COLUMNS: Mapping[str, Side] = {
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
    return job_runner.run(PROG, arguments, partial(sweep_streams, arguments), counts(()))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; an error in it exits with 2."""
    parser = make_parser(__doc__ or "", PROG)
    add_setting(
        parser,
        "--prepared-limit",
        "prepared_limit",
        "abort a prepared transaction that has been undecided for this long",
        parse=duration_or_zero,
    )
    return parser.parse_args(argv)


def sweep_streams(arguments: argparse.Namespace, spark: SparkSession, given: RoundInput) -> Report:
    """Sweep the streams' transactions, or in a dry run report what a sweep would do."""
    work = partial(sweep, sources=given.sources, dry_run=arguments.dry_run)
    found = map_streams(
        spark, given.root, streams=given.streams, work=work, schema=ROW_SCHEMA, told=given.told
    )
    rows = sorted(found, key=lambda row: row["stream"])
    failures = {f"stream {row['stream']}": row["error"] for row in rows if row["error"]}
    shown = [row for row in rows if row["transaction"] is not None or row["error"] is not None]
    if given.only_changes:
        shown = [row for row in shown if row["decision"] != KEEP]
    table = TextTable(COLUMNS, [_cells(row) for row in shown]) if shown else None
    return Report(table, counts(rows), failures)


def counts(rows: Sequence[Row]) -> dict[str, int]:
    """Count the streams, the open transactions, and what the sweep did or would do."""
    decisions = Counter(row["decision"] for row in rows if row["decision"] is not None)
    return {
        "streams": len({row["stream"] for row in rows}),
        "open": decisions[KEEP],
        "committed": decisions[COMMIT],
        "aborted": decisions[ABORT],
        "cleared": sum(row["cleared"] or 0 for row in rows),
    }


def _cells(row: Row) -> list[Cell]:
    if row["error"] is not None:
        return [row["stream"], *[""] * (len(COLUMNS) - 3), FAILED, row["error"]]
    decision = str(row["decision"])
    return [
        row["stream"],
        row["transaction"],
        row["status"],
        age(row["age_seconds"]),
        row["writer"] or "",
        f"{row['events']:,}",
        f"{row['size_bytes']:,}",
        decision if decision == KEEP else bold(decision),
        row["reason"] or "",
    ]


def age(seconds: float) -> str:
    """Format a time in its largest unit: 42 s, 3.5 h."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
