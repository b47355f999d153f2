"""Split segments that are too fast and merge cold ones, as Pravega's auto-scaling does.

What it does:
  Works on all streams, or on those of the named scopes, whose policy follows the rate of events or
  bytes, on Spark's executors. Computes the rates from the stream's own log, and commits splits and
  merges. Prints rates, decision and reason for each segment. docs/scaling.md defines the rates and
  says when a segment is split or merged.

When to run it:
  Every one to five minutes, unless the job "maintenance" runs, which does this and the rest. It has
  nothing to do if no stream has a policy by event rate or byte rate.

Examples:
  python -m pravega_spark.jobs.scaling --root s3://bucket/streams --dry-run
  python -m pravega_spark.jobs.scaling --root s3://bucket/streams
  python -m pravega_spark.jobs.scaling --root s3://bucket/streams --interval 60s
  python -m pravega_spark.jobs.scaling --root s3://bucket/streams --scope nyc --by-keys

What it never does:
  It never scales a stream with a fixed number of segments, never goes below the minimum of a
  policy, and never moves or rewrites an event. The events of a key stay in order.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pravega_spark.config.policies import ScalingPace
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.jobs import job_runner
from pravega_spark.jobs.command_line import make_parser
from pravega_spark.jobs.job_runner import Report, RoundInput
from pravega_spark.jobs.report import FAILED, Cell, Side, TextTable, bold
from pravega_spark.jobs.stream_tasks import map_streams
from pravega_spark.scaling.auto import ROW_SCHEMA, scaling_rows
from pravega_spark.scaling.decision import AVERAGE_NAMES, Action

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROG = "scaling"
Row = Mapping[str, Any]
COLUMNS: Mapping[str, Side] = {
    "stream": "left",
    "segment": "left",
    "keys": "left",
    **dict.fromkeys(AVERAGE_NAMES, "right"),
    "decision": "left",
    "reason": "left",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status."""
    arguments = parse(argv)
    zeros = counts((), dry_run=arguments.dry_run)
    return job_runner.run(PROG, arguments, partial(scale_streams, arguments), zeros)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; an error in it exits with 2."""
    parser = make_parser(__doc__ or "", PROG)
    parser.add_argument(
        "--cooldown",
        type=pace,
        default=ScalingPace(),
        metavar="TIME",
        dest="pace",
        help="minimum age of a segment that is split (default: 600s); all other times of scaling "
        "are proportional to it",
    )
    parser.add_argument(
        "--by-keys",
        action="store_true",
        help="where a policy follows events, split a segment between its newest keys if that "
        "balances the load better than equal ranges",
    )
    return parser.parse_args(argv)


def pace(text: str) -> ScalingPace:
    """Parse a cool-down into the pace that has it."""
    try:
        return ScalingPace.of_cooldown(text)
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def scale_streams(arguments: argparse.Namespace, spark: SparkSession, given: RoundInput) -> Report:
    """Decide for each segment of the streams, and scale them unless it is a dry run."""
    work = partial(
        scaling_rows, pace=arguments.pace, dry_run=arguments.dry_run, use_keys=arguments.by_keys
    )
    found = map_streams(
        spark, given.root, streams=given.streams, work=work, schema=ROW_SCHEMA, told=given.told
    )
    rows = sorted(found, key=lambda row: (row["stream"], row["key_low"] or 0.0))
    failures = {f"stream {row['stream']}": row["error"] for row in rows if row["error"]}
    shown = [row for row in rows if not given.only_changes or _is_change(row)]
    table = TextTable(COLUMNS, [_cells(row) for row in shown]) if shown else None
    return Report(table, counts(rows, dry_run=arguments.dry_run), failures)


def _is_change(row: Row) -> bool:
    return row["request"] is not None or row["error"] is not None


def counts(rows: Sequence[Row], *, dry_run: bool) -> dict[str, int]:
    """Count the streams, the segments, and what the job did or would do."""
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


def _cells(row: Row) -> list[Cell]:
    """Return the cells of a row; rates are in the unit of the stream's policy."""
    if row["error"] is not None:
        return [row["stream"], *[""] * (len(COLUMNS) - 3), FAILED, row["error"]]
    rates = ("" if row[name] is None else f"{row[name]:,.1f}" for name in AVERAGE_NAMES)
    keys = f"[{row['key_low']:.4g}, {row['key_high']:.4g})"
    action = str(row["action"])
    decision = bold(action) if row["request"] is not None else action
    return [row["stream"], row["segment"], keys, *rates, decision, _reason(row)]


def _reason(row: Row) -> str:
    if row["dropped"] is not None:
        return f"{row['reason']}; dropped: {row['dropped']}"
    return f"{row['reason']}; done, epoch {row['epoch']}" if row["epoch"] else str(row["reason"])


if __name__ == "__main__":
    sys.exit(main())
