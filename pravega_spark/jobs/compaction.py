"""Merge the small files of streams into large ones, and drop what was truncated from their heads.

What it does:
  Works on all streams, or on those of the named scopes; Spark's executors share the ranges of all
  streams. Prints for each stream the files before and after. docs/maintenance.md says which files
  are merged.

When to run it:
  About every 15 minutes, unless the job "maintenance" runs, which does this and the rest. A dry run
  says how many files it would merge, and about how many bytes it would read and write.

Examples:
  python -m pravega_spark.jobs.compaction --root s3://bucket/streams --dry-run
  python -m pravega_spark.jobs.compaction --root s3://bucket/streams
  python -m pravega_spark.jobs.compaction --root s3://bucket/streams --interval 10min
  python -m pravega_spark.jobs.compaction --root s3://bucket/streams --target "256 MiB"

What it never does:
  It never changes an event, its offset, its time or its order; cuts and pointers stay valid. It
  never deletes a file: a sweep does so, once no retained version needs it. It never merges files of
  the last minute, and leaves a damaged file as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.root_settings import rule_of
from pravega_spark.config.setting_rules import SettingValue
from pravega_spark.errors import InvalidConfiguration
from pravega_spark.jobs import job_runner
from pravega_spark.jobs.command_line import duration, make_parser
from pravega_spark.jobs.job_runner import Report, RoundInput
from pravega_spark.jobs.range_compaction import compact_streams
from pravega_spark.jobs.report import FAILED, Cell, Side, TextTable, bold
from pravega_spark.maintenance.result import FIGURES, WorkOutcome
from pravega_spark.maintenance.work import WorkOptions
from pravega_spark.values.limits import STREAM_TIMEOUT
from pravega_spark.values.units import size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROG = "compaction"
COLUMNS: Mapping[str, Side] = {
    "stream": "left",
    "files": "right",
    "after": "right",
    "read": "right",
    "written": "right",
    "done": "left",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status."""
    arguments = parse(argv)
    return job_runner.run(PROG, arguments, partial(compact, arguments), counts(()))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; an error in it exits with 2."""
    parser = make_parser(__doc__ or "", PROG)
    rule = rule_of("compact_target")
    parser.add_argument(
        "--target",
        type=target_size,
        metavar="SIZE",
        help="merge chunks to files of about this size (default: the setting compact_target of the "
        f"stream or the root, else {rule.default})",
    )
    parser.add_argument(
        "--limit",
        type=duration,
        default=duration(STREAM_TIMEOUT),
        metavar="TIME",
        help=f"fail a range that takes longer than this (default: {STREAM_TIMEOUT})",
    )
    return parser.parse_args(argv)


def target_size(text: str) -> SettingValue:
    """Parse a target size within the limits of the setting."""
    try:
        return rule_of("compact_target").parse("compact_target", text)
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def compact(arguments: argparse.Namespace, spark: SparkSession, given: RoundInput) -> Report:
    """Compact the streams, or in a dry run report what a compaction would do and save."""
    flags = {} if arguments.target is None else {"compact_target": arguments.target}
    options = WorkOptions(given.sources.root, flags, arguments.dry_run, arguments.limit)
    outcomes = list(compact_streams(spark, given.root, given.streams, options, given.told))
    outcomes.sort(key=lambda outcome: outcome.unit)
    failures = {what: why for found in outcomes for what, why in found.failures.items()}
    shown = [found for found in outcomes if found.did or found.failures]
    table = TextTable(COLUMNS, [_cells(found) for found in shown]) if shown else None
    return Report(table, counts(outcomes), failures)


def counts(outcomes: Sequence[WorkOutcome]) -> dict[str, int]:
    """Count the streams, and what the job did or would do."""
    sums = Counter(dict.fromkeys(FIGURES[MaintenanceKind.COMPACTION], 0))
    for found in outcomes:
        sums.update(found.figures)
    compacted = sum(bool(found.did) for found in outcomes)
    return {"streams": len(outcomes), "compacted": compacted, **sums}


def _cells(found: WorkOutcome) -> list[Cell]:
    if found.failures and not found.figures:
        return [found.unit, FAILED, *[""] * (len(COLUMNS) - 3), "; ".join(found.failures.values())]
    figures = found.figures
    sizes = (size_text(figures[name]) for name in ("bytes_read", "bytes_written"))
    files = f"{figures['files_before']:,}", f"{figures['files_after']:,}"
    done = "; ".join([found.did, *found.failures.values()])
    return [found.unit, *files, *sizes, bold(done)]


if __name__ == "__main__":
    sys.exit(main())
