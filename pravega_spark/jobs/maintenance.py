"""Do everything that keeps the streams of a root in order, each kind of work at its own interval.

What it does:
  Works on all streams, groups and scopes, on Spark's executors: transactions, watermarks, scaling,
  folding, retention, compaction and sweeping. A stream without news costs one storage call.
  Prints what was done at each stream. docs/maintenance.md says what runs when.

When to run it:
  Always: this one job does what all the others do. Start it every five minutes, or once with
  --interval. "pravega-spark maintain" does the same on one machine without Spark, and
  StreamManager(root, maintain="auto") does it beside an application.

Examples:
  python -m pravega_spark.jobs.maintenance --root s3://bucket/streams --dry-run
  python -m pravega_spark.jobs.maintenance --root s3://bucket/streams --once
  python -m pravega_spark.jobs.maintenance --root s3://bucket/streams --interval
  python -m pravega_spark.jobs.maintenance --root s3://bucket/streams --kinds retention,sweeping

What it never does:
  It never deletes an event that no policy of the stream gives up, and never stops the writers and
  readers of a stream. It leaves alone the kinds of work that another run is doing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.store import open_store
from pravega_spark.errors import InvalidInput
from pravega_spark.jobs import job_runner
from pravega_spark.jobs.command_line import AS_SET, MAINTENANCE, duration, make_parser
from pravega_spark.jobs.job_runner import Report, RoundInput
from pravega_spark.jobs.range_compaction import COMPACTION, OUTCOME_SCHEMA, compact_streams
from pravega_spark.jobs.report import Cell, RoundProgress, Side, TextTable, bold
from pravega_spark.jobs.stream_tasks import Task, map_tasks
from pravega_spark.maintenance.result import MaintenanceResult, WorkOutcome, no_counts
from pravega_spark.maintenance.round import (
    MaintenanceRound,
    RoundRequest,
    parse_kinds,
    parse_request,
    split_kinds,
)
from pravega_spark.maintenance.schedule import KindSchedule
from pravega_spark.maintenance.work import WORKS, RoundTask, WorkOptions, do_task
from pravega_spark.values.limits import STREAM_TIMEOUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROG = MAINTENANCE
COLUMNS: dict[str, Side] = {"stream": "left", "kind": "left", "done": "left"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status."""
    arguments = parse(argv)
    work = partial(maintain_streams, arguments, _Schedules())
    return job_runner.run(PROG, arguments, work, no_counts(arguments.kinds))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; an error in it exits with 2."""
    parser = make_parser(__doc__ or "", PROG)
    parser.add_argument(
        "--once", action="store_true", help="do one round of all kinds, as without --interval"
    )
    parser.add_argument(
        "--kinds",
        action="extend",
        nargs="+",
        metavar="KIND",
        help=f"do only these kinds of work, such as retention,sweeping; may be repeated (default: "
        f"all of {', '.join(kind.value for kind in WORKS)})",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="look at every stream fully, also at those that have no news and are not due",
    )
    parser.add_argument(
        "--limit",
        type=duration,
        default=duration(STREAM_TIMEOUT),
        metavar="TIME",
        help=f"fail a kind of work that takes longer than this at a stream (default: "
        f"{STREAM_TIMEOUT})",
    )
    arguments = parser.parse_args(argv)
    if arguments.once and arguments.interval is not None:
        parser.error("--once and --interval exclude each other")
    try:
        given = None if arguments.kinds is None else split_kinds(arguments.kinds)
        arguments.kinds = parse_kinds(given)
    except InvalidInput as error:
        parser.error(str(error))
    return arguments


class _Schedules:
    """The schedule of a job that keeps running; made when the root is known."""

    def __init__(self) -> None:
        self._known: KindSchedule | None = None

    def of(self, root: str, kinds: Sequence[MaintenanceKind]) -> KindSchedule:
        self._known = self._known or KindSchedule(open_store(root), kinds)
        return self._known


def maintain_streams(
    arguments: argparse.Namespace, schedules: _Schedules, spark: SparkSession, given: RoundInput
) -> Report:
    """Do one round on executors; in a job that keeps running, of the kinds that are due."""
    kinds, schedule = arguments.kinds, None
    if arguments.interval is not None:
        schedule = schedules.of(given.root, kinds)
        recorded = not (arguments.stream or arguments.scope or arguments.dry_run)
        kinds = schedule.due(recorded=recorded)
    request = parse_request(
        kinds or arguments.kinds,
        arguments.scope,
        arguments.stream,
        dry_run=arguments.dry_run,
        full=arguments.full,
        limit=arguments.limit,
    )
    request = replace(request, must_exist=given.must_exist)
    counts, failures, table = no_counts(arguments.kinds), dict[str, str](), None
    lines = None
    if kinds:
        try:
            result = _run(spark, given, request)
        except Exception:
            if schedule is not None:
                schedule.undo()
            raise
        counts |= result.counts()
        failures, table = result.failures, _table(result)
        lines = result.failure_lines
    pause = None
    if schedule is not None:
        is_set = arguments.interval is AS_SET
        pause = schedule.pause_seconds() if is_set else float(arguments.interval)
    return Report(table, counts, failures, pause, failure_lines=lines)


def _run(spark: SparkSession, given: RoundInput, request: RoundRequest) -> MaintenanceResult:
    execute = partial(spread, spark, given.root, told=given.told)
    return MaintenanceRound(open_store(given.root), request, execute, given.stop).run()


def spread(
    spark: SparkSession,
    root: str,
    tasks: Sequence[RoundTask],
    options: WorkOptions,
    told: RoundProgress | None = None,
) -> Iterator[WorkOutcome]:
    """Do the tasks of a round on executors; yield their outcomes.

    Compaction comes last, since executors share the ranges of all streams.
    """
    begun, compacted = list[Task](), list[str]()
    for task in tasks:
        others = [kind.value for kind in task.kinds if kind is not COMPACTION]
        if others:
            begun.append(Task(task.unit, to_json(others)))
        if COMPACTION in task.kinds:
            compacted.append(task.unit)
    work = partial(_do, options=options)
    for row in map_tasks(spark, root, tasks=begun, work=work, schema=OUTCOME_SCHEMA, told=told):
        yield WorkOutcome.of_row(json.loads(row["outcome"]))
    yield from compact_streams(spark, root, compacted, options, told)


def _do(root: str, task: Task, *, options: WorkOptions) -> Iterator[Mapping[str, str]]:
    kinds = tuple(map(MaintenanceKind, json.loads(task.text)))
    outcomes = do_task(open_store(root), RoundTask(task.stream, kinds), options)
    yield from ({"outcome": to_json(outcome.row())} for outcome in outcomes)


def _table(result: MaintenanceResult) -> TextTable | None:
    rows = result.rows()
    return TextTable(COLUMNS, [_cells(*row) for row in rows]) if rows else None


def _cells(unit: str, kind: str, done: str) -> list[Cell]:
    return [unit, kind, (done, "red") if done.startswith("failed: ") else bold(done)]


if __name__ == "__main__":
    sys.exit(main())
