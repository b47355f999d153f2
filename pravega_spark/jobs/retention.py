"""Truncate streams by their retention policies and by what their subscribers have consumed.

What it does:
  Works on all streams, or on those of the named scopes, on Spark's executors. Moves the head of a
  stream as far as its policy allows, samples its tail, and then sweeps: deletes the files that no
  retained version needs. Prints for each stream what goes, what stays and what holds it.
  docs/retention.md has the rules.

When to run it:
  About every 30 minutes, unless the job "maintenance" runs, which does this and the rest.
  Start with --dry-run.

Examples:
  python -m pravega_spark.jobs.retention --root s3://bucket/streams --dry-run
  python -m pravega_spark.jobs.retention --root s3://bucket/streams
  python -m pravega_spark.jobs.retention --root s3://bucket/streams --interval 30min
  python -m pravega_spark.jobs.retention --root s3://bucket/streams --stream nyc/flights --no-sweep

What it never does:
  It never truncates a stream that has no policy. Under a policy by consumption it never deletes
  what a subscriber still needs, unless the policy's maximum is exceeded; then it names that
  subscriber. It never deletes a file that is younger than --grace without a commit, or that a
  version within --retain or a backup still needs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store import open_store
from pravega_spark.jobs import job_runner
from pravega_spark.jobs.command_line import add_setting, duration, make_parser
from pravega_spark.jobs.job_runner import Report, RoundInput
from pravega_spark.jobs.report import FAILED, Cell, Side, TextTable, bold
from pravega_spark.jobs.stream_tasks import map_streams
from pravega_spark.manager import StreamManager
from pravega_spark.retention.decision import RetentionRule
from pravega_spark.retention.run import ROW_SCHEMA, RetentionOptions
from pravega_spark.retention.stream_retention import retention_rows
from pravega_spark.values.limits import STREAM_TIMEOUT
from pravega_spark.values.units import count_text, size_text, time_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROG = "retention"
Row = Mapping[str, Any]
COLUMNS: Mapping[str, Side] = dict.fromkeys(
    ("stream", "policy", "goes", "why", "stays", "held by"), "left"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status."""
    arguments = parse(argv)
    zeros = counts((), dry_run=arguments.dry_run)
    return job_runner.run(PROG, arguments, partial(retain_streams, arguments), zeros)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; an error in it exits with 2."""
    parser = make_parser(__doc__ or "", PROG)
    add_setting(
        parser,
        "--sample-every",
        "sample_every",
        "add a sample of the tail to the retention set when the newest one is older than this",
    )
    add_setting(
        parser,
        "--expire",
        "expire",
        "remove subscribers that have published nothing for this long, or 'never'",
    )
    parser.add_argument(
        "--no-sweep",
        action="store_true",
        help="truncate only; another job deletes the files",
    )
    add_setting(
        parser,
        "--grace",
        "grace",
        "must exceed the run time of the longest job that writes to a stream",
    )
    add_setting(
        parser,
        "--retain",
        "retain",
        "how long old versions, with events truncated since, stay readable",
    )
    parser.add_argument(
        "--confirm-clock",
        action="store_true",
        help="confirm that a local disk's clock is right, after a warning that it jumped",
    )
    parser.add_argument(
        "--limit",
        type=duration,
        default=duration(STREAM_TIMEOUT),
        metavar="TIME",
        help=f"fail a stream that takes longer than this (default: {STREAM_TIMEOUT})",
    )
    return parser.parse_args(argv)


def decisions(arguments: argparse.Namespace, spark: SparkSession, given: RoundInput) -> list[Row]:
    """Decide for each stream and carry the decisions out; return a row for each stream."""
    work = partial(
        retention_rows,
        options=RetentionOptions(
            given.sources.flags, sweep=not arguments.no_sweep, root=given.sources.root
        ),
        dry_run=arguments.dry_run,
        limit_seconds=arguments.limit,
    )
    return [
        *map_streams(
            spark, given.root, streams=given.streams, work=work, schema=ROW_SCHEMA, told=given.told
        )
    ]


def retain_streams(arguments: argparse.Namespace, spark: SparkSession, given: RoundInput) -> Report:
    """Decide for each stream, and truncate and sweep the streams unless it is a dry run.

    Interrupted changes of reader groups are completed first, so that the groups' data is kept.
    """
    if arguments.confirm_clock and not arguments.dry_run:
        StreamManager(given.root).confirm_clock()
        arguments.confirm_clock = False  # only once, even with --interval
    failures = {} if arguments.dry_run else _complete_groups(given.root)
    found = decisions(arguments, spark, given)
    rows = sorted(found, key=lambda row: str(row["stream"]))
    failures |= {f"stream {row['stream']}": row["error"] for row in rows if row["error"]}
    if not arguments.dry_run and not arguments.no_sweep:
        open_settings(open_store(given.root)).sweep(given.sources.of_root())
    shown = [row for row in rows if not given.only_changes or _is_change(row)]
    table = TextTable(COLUMNS, [_cells(row) for row in shown]) if shown else None
    return Report(table, counts(rows, dry_run=arguments.dry_run), failures)


def _complete_groups(root: str) -> dict[str, str]:
    """Complete interrupted changes of reader groups; return the error of each that failed."""
    errors = StreamManager(root).repair_reader_groups()
    return {f"reader group {group}": why for group, why in errors.items()}


def _is_change(row: Row) -> bool:
    return row["error"] is not None or row["cut"] is not None or bool(row["expired"])


def counts(rows: Sequence[Row], *, dry_run: bool) -> dict[str, int]:
    """Count the streams, and what the job did or would do."""
    sound = [row for row in rows if row["error"] is None]
    moved = [row for row in sound if row["cut"] is not None]
    truncated = [row for row in moved if dry_run or row["version"] is not None]
    return {
        "streams": len(rows),
        "policies": sum(row["decision"] != RetentionRule.NO_POLICY.value for row in sound),
        "truncated": len(truncated),
        "events": sum(row["goes_events"] for row in truncated),
        "bytes": sum(row["goes_bytes"] for row in truncated),
        "sampled": sum(bool(row["sampled"]) for row in sound),
        "passed": sum(bool(row["passed"]) for row in truncated),
        "expired": sum(bool(row["expired"]) for row in sound),
        "swept_files": sum(row["swept_files"] for row in sound),
        "pending_files": sum(row["pending_files"] for row in sound),
        "unmoved": sum(bool(row["unmoved"]) for row in sound),
    }


def _cells(row: Row) -> list[Cell]:
    if row["error"] is not None:
        return [row["stream"], FAILED, *[""] * (len(COLUMNS) - 3), row["error"]]
    goes = _amount(row["goes_events"], row["goes_bytes"])
    stays = _amount(row["stays_events"], row["stays_bytes"], row["stays_seconds"])
    moves = row["cut"] is not None
    cells = row["policy"], bold(goes) if moves else goes, row["decision"], stays, _held(row)
    return [row["stream"], *cells]


def _amount(events: int, size_bytes: int, seconds: float | None = None) -> str:
    if not events:
        return "nothing"
    age = "" if seconds is None else f", {time_text(seconds)}"
    return f"{count_text(events, 'event')}, {size_text(size_bytes)}{age}"


def _held(row: Row) -> str:
    parts = [str(row["held_by"])] if row["held_by"] else []
    if row["passed"]:
        parts.append(f"loses unread data: {row['passed']}")
    if row["expired"]:
        parts.append(f"expires: {row['expired']}")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
