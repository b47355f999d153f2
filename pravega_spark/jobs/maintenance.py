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

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Final

import click

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import ScalingPace
from pravega_spark.config.root_settings import rule_of
from pravega_spark.config.setting_rules import SettingValue
from pravega_spark.engine.runtime.json_codec import to_json
from pravega_spark.engine.store import open_store
from pravega_spark.errors import InvalidConfiguration, InvalidInput, NotFound
from pravega_spark.jobs.command_line import JobCommand, duration, flag, option
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

PROG: Final = "maintenance"
REQUIRED = ("pandas", "pyspark")
"""Packages of the extra ``jobs``; PySpark's ``mapInArrow`` needs pandas."""
AS_SET: Final = True
"""``--interval`` without a value: as often as the root's settings say."""
_AS_SET_TEXT: Final = "as set"
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


def parse(argv: Sequence[str] | None, prog: str = PROG) -> SimpleNamespace:
    """Parse the command line of a job, with what a round does as ``request``.

    An error in it exits with 2.
    """
    with _command(prog).parsed(argv) as given:
        if given.once and given.interval is not None:
            raise click.UsageError("--once and --interval exclude each other.")
        if given.more_kinds and not given.kinds:
            raise click.UsageError(
                f"got an argument that belongs to no option: {given.more_kinds[0]}"
            )
        how = ScalingHow(given.pace or PACE, given.by_keys)
        kinds = KINDS_OF_JOBS[prog]
        if given.kinds:
            kinds = parse_kinds(split_kinds([*given.kinds, *given.more_kinds]))
        if given.no_sweep:
            kinds = tuple(kind for kind in kinds if kind is not MaintenanceKind.SWEEPING)
        flags = {name: vars(given)[name] for name in SETTING_FLAGS.values() if name in given.given}
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
        given.request = replace(request, flags=flags, scaling=how)
        given.prog = prog
    return given


def _command(prog: str) -> JobCommand:
    doc = __doc__ or ""
    names = ", ".join(kind.value for kind in KINDS_OF_JOBS[prog])
    if prog != PROG:
        doc = f'The job "maintenance" with --kinds {names.replace(" ", "")}.\n\n{doc}'
    often = (
        "With TIME, such as 60s, look what is due after a pause of TIME; without it, when the next "
        "kind is due."
        if prog == PROG
        else "TIME, such as 60s, is the interval in place of the settings."
    )
    options = [
        option("--scope", multiple=True, help="Work on this scope; may be repeated."),
        option(
            "--stream",
            multiple=True,
            metavar="SCOPE/STREAM",
            help="Work on this stream; may be repeated.",
        ),
        option(
            "--kinds",
            multiple=True,
            metavar="KIND...",
            help="Do only these kinds of work, such as retention,sweeping; may be repeated.  "
            f"[default: {names}]",
        ),
        flag("--once", help="Do one round, as without --interval."),
        option(
            "--interval",
            is_flag=False,
            flag_value=_AS_SET_TEXT,
            parse=_interval,
            metavar="[TIME]",
            help="Keep running: do each kind when its interval in the settings has passed. "
            f"{often}  [default: one round]",
        ),
        flag("--dry-run", help="Show what would be done, and change nothing."),
        flag(
            "--full",
            help="Look at every stream fully, also at those that have no news and are not due.",
        ),
        option(
            "--limit",
            parse=duration,
            default=STREAM_TIMEOUT,
            metavar="TIME",
            help="Fail a kind of work that takes longer than this at a stream.  [default: "
            f"{STREAM_TIMEOUT}]",
        ),
        option(
            "--metrics-textfile",
            parse=partial(check_textfile, "--metrics-textfile"),
            metavar="PATH",
            help="After each round, write the metrics of the root to this file *.prom for "
            "node_exporter's textfile collector. Needs the extra metrics.",
        ),
        *map(_setting_option, SETTING_FLAGS),
        flag("--no-sweep", help="Do all of these kinds except sweeping."),
        flag(
            "--confirm-clock",
            help="Confirm that a local disk's clock is right, after a warning that it jumped.",
        ),
        option(
            "--cooldown",
            "pace",
            parse=ScalingPace.of_cooldown,
            metavar="TIME",
            help="The minimum age of a segment that is split; all other times of scaling are "
            "proportional to it.  [default: 600s]",
        ),
        flag(
            "--by-keys",
            help="Where a policy follows events, split a segment between its newest keys if that "
            "balances the load better than equal ranges.",
        ),
    ]
    command = JobCommand(prog, doc, EXIT_STATUS, options)
    command.params.append(click.Argument(["more_kinds"], nargs=-1, metavar=""))
    return command


def _setting_option(name: str) -> click.Option:
    """Return the flag that decides a setting for a run."""
    setting = SETTING_FLAGS[name]
    rule = rule_of(setting)
    meaning = rule.meaning[0].upper() + rule.meaning[1:]
    return option(
        name,
        setting,
        parse=partial(_setting, setting),
        metavar="VALUE",
        help=f"{meaning}.  [default: the setting {setting} of the stream or the root, else "
        f"{rule.default}]",
    )


def _interval(text: str) -> float | bool:
    return AS_SET if text == _AS_SET_TEXT else duration(text)


def _setting(name: str, text: str) -> SettingValue:
    """Parse a setting of one run: above 0, and a size within its limits."""
    rule = rule_of(name)
    value = rule.parse(name, text, is_bounded=name == "compact_target")
    if value == 0 and name != "prepared_limit":
        raise InvalidConfiguration("must be longer than 0 s.")
    return value


def maintain(arguments: SimpleNamespace, spark: SparkSession | None, stop: StopSignal) -> int:
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
