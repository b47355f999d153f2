"""Do everything that keeps the streams of a root in order, each kind of work at its own interval.

What it does:
  Works on all streams, groups and scopes, on Spark's executors: transactions, watermarks, scaling,
  folding, retention, compaction and sweeping. A stream without news costs one storage call.
  Prints what was done at each stream. docs/maintenance.md says what runs when.

When to run it:
  Always: start it every five minutes, or once with --interval. The jobs "retention", "scaling",
  "transactions" and "compaction" are this one with --kinds, where a kind needs a schedule or rights
  of its own. "pravega-spark maintain" does the same on one machine without Spark, and
  StreamManager(root, maintain="auto") does it beside an application.

Examples:
  python -m pravega_spark.jobs.maintenance --root s3://bucket/streams --dry-run
  python -m pravega_spark.jobs.maintenance --root s3://bucket/streams --once
  python -m pravega_spark.jobs.maintenance --root s3://bucket/streams --interval
  python -m pravega_spark.jobs.maintenance --root s3://bucket/streams --kinds retention,sweeping
  python -m pravega_spark.jobs.maintenance --root s3://bucket/streams --interval 60s --kinds scaling

What it never does:
  It never deletes an event that no policy of the stream gives up, and never stops the writers and
  readers of a stream. It leaves alone the kinds of work that another run is doing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import ScalingPace
from pravega_spark.config.root_settings import rule_of
from pravega_spark.config.setting_rules import SettingValue
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.store import open_store
from pravega_spark.errors import (
    InvalidConfiguration,
    InvalidInput,
    NotFound,
    PravegaSparkError,
)
from pravega_spark.jobs.command_line import duration, parser_of_root
from pravega_spark.jobs.job_runner import errors_of_spark, run_job
from pravega_spark.jobs.launcher_stderr import complain
from pravega_spark.jobs.range_compaction import COMPACTION, OUTCOME_SCHEMA, compact_streams
from pravega_spark.jobs.report import RoundProgress
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.jobs.stream_tasks import Task, find_root, map_tasks
from pravega_spark.maintenance.result import MaintenanceResult, WorkOutcome
from pravega_spark.maintenance.round import (
    MaintenanceRound,
    RoundRequest,
    parse_kinds,
    parse_request,
    split_kinds,
)
from pravega_spark.maintenance.rounds import Rounds
from pravega_spark.maintenance.work import WORKS, RoundTask, ScalingHow, WorkOptions, do_task
from pravega_spark.manager import StreamManager
from pravega_spark.metrics.textfile import MetricsTextfile, check_textfile
from pravega_spark.primitives.printable import printable
from pravega_spark.scaling.auto import PACE
from pravega_spark.values.limits import STREAM_TIMEOUT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Value = TypeVar("Value")

PROG: Final = "maintenance"
REQUIRED = ("pandas", "pyspark")
"""Packages of the extra ``jobs``; PySpark's ``mapInArrow`` needs pandas."""
AS_SET: Final = True
"""``--interval`` without a value: as often as the root's settings say."""
KINDS_OF_JOBS: Final[Mapping[str, tuple[MaintenanceKind, ...]]] = MappingProxyType(
    {
        PROG: tuple(WORKS),
        "retention": (MaintenanceKind.RETENTION, MaintenanceKind.SWEEPING),
        "scaling": (MaintenanceKind.SCALING,),
        "transactions": (MaintenanceKind.TRANSACTIONS,),
        "compaction": (MaintenanceKind.COMPACTION,),
    }
)
"""The jobs of maintenance, each with the kinds of work that it does without ``--kinds``."""
SETTING_FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--sample-every": "sample_every",
        "--expire": "expire",
        "--grace": "grace",
        "--retain": "retain",
        "--prepared-limit": "prepared_limit",
        "--target": "compact_target",
    }
)
"""The flags that decide a setting for a run, before the streams and the root."""

EXIT_STATUS: Final = """\
Exit status:
  0    done; with --interval also after a signal
  1    a stream failed, and the others were done; or a package of the extra "jobs" is missing
  2    the input cannot be used
  130  a signal stopped the only round before its end

The last line of the output is one JSON object with the sums of all rounds. The job may be killed at
any moment, repeated, and run twice at the same time. SIGTERM, SIGINT and SIGHUP stop it in order.
docs/deploy.md starts it by spark-submit, Databricks, Kubernetes, Airflow, systemd and cron.
"""
"""What the help of the jobs ends with."""


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run a job of maintenance by its name; return its exit status."""
    arguments = parse(argv, prog)

    def check() -> None:
        request, store = arguments.request, open_store(find_root(arguments.root))
        if request.scopes or request.streams:
            MaintenanceRound(store, request, lambda *_: (), StopSignal()).find_streams()

    return run_job(prog, REQUIRED, check, partial(maintain, arguments))


def parse(argv: Sequence[str] | None, prog: str = PROG) -> argparse.Namespace:
    """Parse the command line of a job, with what a round does as ``request``.

    An error in it exits with 2.
    """
    parser = _parser(prog)
    given = parser.parse_args(argv)
    if given.once and given.interval is not None:
        parser.error("--once and --interval exclude each other")
    how = ScalingHow(given.pace or PACE, given.by_keys)
    try:
        kinds = KINDS_OF_JOBS[prog]
        if given.kinds is not None:
            kinds = parse_kinds(split_kinds(given.kinds))
        if given.no_sweep:
            kinds = tuple(kind for kind in kinds if kind is not MaintenanceKind.SWEEPING)
        flags = {name: vars(given)[name] for name in SETTING_FLAGS.values() if name in given}
        if prog != PROG and given.interval not in (None, AS_SET):
            every_ms = round(1_000 * given.interval)
            flags |= {f"{kind.value}_interval": every_ms for kind in kinds}
            given.interval = AS_SET
        request = parse_request(
            kinds,
            given.scope,
            given.stream,
            dry_run=given.dry_run,
            full=given.full or how != ScalingHow(),
            limit=given.limit,
        )
    except PravegaSparkError as error:
        parser.error(str(error))
    given.request = replace(request, flags=flags, scaling=how)
    given.prog = prog
    return given


def _parser(prog: str) -> argparse.ArgumentParser:
    doc = __doc__ or ""
    if prog != PROG:
        names = ",".join(kind.value for kind in KINDS_OF_JOBS[prog])
        doc = f'The job "maintenance" with --kinds {names}.\n\n{doc}'
    parser = parser_of_root(doc, prog, EXIT_STATUS)
    add = parser.add_argument
    add("--scope", action="append", default=[], help="work on this scope; may be repeated")
    add(
        "--stream",
        action="append",
        default=[],
        metavar="SCOPE/STREAM",
        help="work on this stream; may be repeated",
    )
    add(
        "--kinds",
        action="extend",
        nargs="+",
        metavar="KIND",
        help="do only these kinds of work, such as retention,sweeping; may be repeated (default: "
        f"all of {', '.join(kind.value for kind in KINDS_OF_JOBS[prog])})",
    )
    add("--once", action="store_true", help="do one round, as without --interval")
    often = (
        "with TIME, such as 60s, look what is due after a pause of TIME, and without it when the "
        "next kind is due"
        if prog == PROG
        else "TIME, such as 60s, is the interval in place of the settings"
    )
    add(
        "--interval",
        type=duration,
        nargs="?",
        const=AS_SET,
        metavar="TIME",
        help="keep running: do each kind when its interval in the settings has passed; "
        f"{often} (default: one round)",
    )
    add("--dry-run", action="store_true", help="show what would be done, and change nothing")
    add(
        "--full",
        action="store_true",
        help="look at every stream fully, also at those that have no news and are not due",
    )
    add(
        "--limit",
        type=duration,
        default=duration(STREAM_TIMEOUT),
        metavar="TIME",
        help=f"fail a kind of work that takes longer than this at a stream (default: "
        f"{STREAM_TIMEOUT})",
    )
    add(
        "--metrics-textfile",
        type=_textfile,
        metavar="PATH",
        help="after each round, write the metrics of the root to this file *.prom for "
        "node_exporter's textfile collector (needs the extra metrics)",
    )
    for flag, name in SETTING_FLAGS.items():
        rule = rule_of(name)
        add(
            flag,
            type=partial(_setting, name),
            default=argparse.SUPPRESS,
            dest=name,
            metavar="VALUE",
            help=f"{rule.meaning} (default: the setting {name} of the stream or the root, else "
            f"{rule.default})",
        )
    add("--no-sweep", action="store_true", help="do all of these kinds except sweeping")
    add(
        "--confirm-clock",
        action="store_true",
        help="confirm that a local disk's clock is right, after a warning that it jumped",
    )
    add(
        "--cooldown",
        type=_pace,
        metavar="TIME",
        dest="pace",
        help="minimum age of a segment that is split (default: 600s); all other times of scaling "
        "are proportional to it",
    )
    add(
        "--by-keys",
        action="store_true",
        help="where a policy follows events, split a segment between its newest keys if that "
        "balances the load better than equal ranges",
    )
    return parser


def _textfile(text: str) -> str:
    return _checked(partial(check_textfile, "--metrics-textfile"), text)


def _pace(text: str) -> ScalingPace:
    return _checked(ScalingPace.of_cooldown, text)


def _setting(name: str, text: str) -> SettingValue:
    """Parse a setting of one run: above 0, and a size within its limits."""
    rule = rule_of(name)
    value = _checked(partial(rule.parse, name, is_bounded=name == "compact_target"), text)
    if value == 0 and name != "prepared_limit":
        raise argparse.ArgumentTypeError("must be longer than 0 s")
    return value


def _checked(parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except (InvalidConfiguration, InvalidInput) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def maintain(arguments: argparse.Namespace, spark: SparkSession | None, stop: StopSignal) -> int:
    """Do the rounds in a running Spark session; return the exit status.

    Without a session a signal has stopped the job before its first round.
    """
    prog, interval, manager = arguments.prog, arguments.interval, StreamManager(arguments.root)
    if arguments.confirm_clock and not arguments.dry_run:
        manager.confirm_clock()
    told, settings, errors = RoundProgress(prog), "", errors_of_spark()
    root = find_root(arguments.root)
    store = open_store(root)

    def do(request: RoundRequest) -> MaintenanceResult:
        nonlocal settings
        assert spark is not None
        execute = partial(spread, spark, root, told=told)
        one = MaintenanceRound(store, request, execute, stop)
        try:
            done = one.run()
        except errors:
            if stop.is_set:  # it has cancelled what Spark does
                return MaintenanceResult(0, 0, {}, stopped=True)
            raise
        finally:
            told.say_repeated()
        if settings != (settings := one.settings.summary()):
            print(printable(f"settings: {settings or 'all defaults'}"))
        return done

    rounds = Rounds(
        prog,
        store,
        arguments.request,
        do,
        stop,
        once=interval is None,
        pause=None if interval is AS_SET else interval,
        errors=errors,
        after=MetricsTextfile(prog, manager, arguments.metrics_textfile).write,
    )
    try:
        if spark is not None:
            rounds.run()
    except (InvalidInput, NotFound) as error:
        complain(prog, error)
        return 2
    return rounds.end(repeated=told.repeated, settings=settings)


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


if __name__ == "__main__":
    sys.exit(main())
