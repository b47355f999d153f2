"""Rounds of a job over many streams: starting Spark, reports, the last line and the exit status.

A job's work on one stream is safe to repeat, so a job may be killed at any time, and two may run
at once. The last line of the output is one JSON object with the sums of all rounds. The exit status
is 0 if no stream failed, 1 if some did or Spark is not installed, and 2 for unusable input.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.root_settings import SETTING_NAMES, EffectiveSettings, SettingSources
from pravega_spark.engine.state.settings_table import open_settings
from pravega_spark.engine.store import open_store
from pravega_spark.errors import InvalidInput, NotFound, PravegaSparkError
from pravega_spark.jobs import early_signals
from pravega_spark.jobs.command_line import AS_SET, MAINTENANCE, interval_of, setting_flags
from pravega_spark.jobs.launcher_stderr import complain, launcher_stderr
from pravega_spark.jobs.report import RoundProgress, TextTable
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.jobs.stream_tasks import find_root, find_streams
from pravega_spark.maintenance.round import RoundRecord, RoundRetries, recorded_scopes
from pravega_spark.manager import StreamManager
from pravega_spark.metrics.textfile import MetricsTextfile
from pravega_spark.primitives.printable import printable
from pravega_spark.spark.session import environment_settings, session, with_packages
from pravega_spark.spark.worker_python import worker_python
from pravega_spark.values.limits import DELTA_PACKAGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

WIDTH = 160
"""Columns of the output where no terminal sets them."""
INTERRUPTED = 130
"""The exit status of a single round that was stopped before its end."""
REQUIRED = ("pandas", "pyspark", "rich")
"""Packages of the extra ``jobs``; PySpark's ``mapInArrow`` needs pandas."""
QUIET = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}

SETTINGS_OF_JOBS = {
    "retention": (
        *("grace", "retain", "sample_every", "expire", "keep_completed", "keep_records"),
        "prepared_limit",
    ),
    "scaling": (),
    "transactions": ("prepared_limit",),
    "compaction": ("compact_target", "compact_head_after"),
    MAINTENANCE: tuple(name for name in SETTING_NAMES if name != "maintain"),
}
"""The settings that each job reads, without its interval, which its progress shows."""


@dataclass(frozen=True)
class Report:
    """The result of a round: its table, its counts, and an error for each thing that failed."""

    table: TextTable | None
    counts: dict[str, int]
    failures: dict[str, str] = field(default_factory=dict)
    pause_seconds: float | None = None
    """The time until the next round, if the work decides it."""
    error: Exception | None = None
    """Why the round could not be done at all."""
    failure_lines: dict[str, str] | None = None
    """The failures as they are printed, if failures with one cause share a line."""


@dataclass(frozen=True)
class RoundInput:
    """What a round works on."""

    root: str
    streams: Sequence[str]
    only_changes: bool = False
    """Whether to show only what changed."""
    sources: SettingSources = field(default_factory=SettingSources)
    """The root's settings, read once for the round, and those of the command line."""
    stop: StopSignal = field(default_factory=StopSignal)
    """What stops the round before its end."""
    must_exist: bool = True
    """Whether scopes and streams that are named must exist; not after a round has found them."""
    told: RoundProgress = field(default_factory=RoundProgress)
    """What tells how far the round is."""


Round = Callable[["SparkSession", RoundInput], Report]
"""Does one round."""


def run(prog: str, arguments: Namespace, work: Round, zeros: Mapping[str, int]) -> int:
    """Do one round, or with ``--interval`` rounds until a signal; return the exit status.

    ``zeros`` names all counts of a round; the sums start with them.
    """

    def every_round(spark: SparkSession | None, stop: StopSignal) -> int:
        return rounds(prog, arguments, spark=spark, work=work, zeros=zeros, stop=stop)

    return run_in_spark(prog, partial(_find, prog, arguments), every_round, required=REQUIRED)


def run_in_spark(
    prog: str,
    check: Callable[[], object],
    work: Callable[[SparkSession | None, StopSignal], int],
    *,
    required: Sequence[str],
    packages: Sequence[str] = (),
) -> int:
    """Do a job's work in a Spark session that begins and ends with it; return the exit status.

    ``check`` raises for unusable input before Spark starts. Without a session a signal has stopped
    the job before its work.
    """
    missing = [name for name in required if importlib.util.find_spec(name) is None]
    if missing:
        what = f"{', '.join(missing)} not found"
        complain(prog, f"{what}: the job needs pip install 'pravega-spark[jobs]'.")
        return 1
    early_signals.listen()
    sys.stderr = launcher_stderr()
    try:
        check()
    except PravegaSparkError as error:
        return _refused(prog, error)
    stop = StopSignal()
    spark = None if stop.take_early() else start_listening(prog, stop, packages)
    try:
        return work(spark, stop)
    finally:
        stop.disarm()
        if spark is not None and not is_on_databricks():
            with contextlib.suppress(Exception):
                spark.stop()


def _find(prog: str, arguments: Namespace, *, must_exist: bool = True) -> tuple[str, list[str]]:
    """Return the root as a URL for executors, and the streams that a round is for.

    A maintenance round finds its streams itself, when it knows which ones are due. Raises NotFound
    for what is named if it ``must_exist``.
    """
    named = arguments.scope, arguments.stream
    if prog == MAINTENANCE and not (must_exist and any(named)):
        return find_root(arguments.root), []
    return find_streams(arguments.root, *named, must_exist=must_exist)


def start_listening(
    prog: str, stop: StopSignal, packages: Sequence[str] = ()
) -> SparkSession | None:
    """Return a Spark session that signals stop in order; None if one arrived during the start.

    Such a signal may have reached the JVM, too, and Spark has a handler that raises in Python.
    """
    try:
        spark = start_spark(prog, packages)
        stop.listen(spark)
    except KeyboardInterrupt:
        stop.request()
        return None
    except Exception:
        if stop.take_early():
            return None
        raise
    stop.take_early()
    return spark


def start_spark(prog: str, packages: Sequence[str] = ()) -> SparkSession:
    """Return a Spark session, and leave a shared server's settings alone.

    A JVM that this process starts fetches the packages of Maven that it was not given as jars; one
    that already runs, such as that of spark-submit, has what its own command names. With Delta
    among the packages the session has Delta's extension and catalog, too, unless the user named
    another catalog.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"pravega-{prog}")
    is_served = os.environ.get("SPARK_REMOTE", "").startswith("sc://")
    if is_served or is_on_databricks():
        return builder.getOrCreate()
    if DELTA_PACKAGE in packages:
        return session(builder, **QUIET)
    for key, value in {**QUIET, **with_packages(packages)}.items():
        builder = builder.config(key, value)
    with worker_python(environment_settings()):
        return builder.getOrCreate()


def is_on_databricks() -> bool:
    """Whether the session is Databricks' own, with its settings and its end."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def rounds(
    prog: str,
    arguments: Namespace,
    spark: SparkSession | None,
    work: Round,
    zeros: Mapping[str, int],
    stop: StopSignal | None = None,
) -> int:
    """Do the rounds in a running Spark session, and print the last line; return the exit status.

    Without a session a signal has stopped the job before its first round.
    """
    from rich.console import Console

    stop = stop or StopSignal()
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    started, sums, number = time.monotonic(), Counter(zeros), 0
    settings, retries = _JobSettings(prog, arguments, console), RoundRetries()
    has_found, textfile, told = False, _textfile(prog, arguments), RoundProgress(prog)
    try:
        while spark is not None and not stop.is_set:
            at = time.monotonic()
            done = _round(
                prog,
                arguments,
                spark,
                work,
                console=console,
                stop=stop,
                settings=settings,
                told=told,
                must_exist=not has_found,
            )
            told.say_repeated()
            if done is None:
                break
            has_found |= done.error is None
            if prog == MAINTENANCE and done.error is not None and arguments.interval is not None:
                if retries.is_new(done.error):
                    complain(prog, done.error)
                every = None if arguments.interval is AS_SET else arguments.interval
                stop.wait(retries.pause_seconds(every))
                continue
            if done.error is not None:
                complain(prog, done.error)
            retries.end()
            counts = done.counts
            sums.update(counts)
            textfile.write()
            number += 1
            if arguments.interval is None:
                break
            took = time.monotonic() - at
            pause = done.pause_seconds
            if pause is None:
                pause = max(0.0, settings.interval_seconds - took)
            _print_progress(console, number, counts, took=took, pause=pause)
            stop.wait(pause)
    except (InvalidInput, NotFound) as error:
        return _refused(prog, error)
    seconds = round(time.monotonic() - started, 3)
    sums["failed"] += bool(retries.attempts)
    record = {**sums, "failed": sums["failed"], "dry_run": arguments.dry_run}
    record |= {"rounds": number, "repeated": told.repeated}
    record |= {"seconds": seconds, "settings": settings.shown}
    print(json.dumps(record), flush=True)
    if not number and arguments.interval is None:
        return INTERRUPTED
    return 1 if sums["failed"] else 0


def _textfile(prog: str, arguments: Namespace) -> MetricsTextfile:
    path = getattr(arguments, "metrics_textfile", None)
    return MetricsTextfile(prog, StreamManager(arguments.root), path)


class _JobSettings:
    """The settings of a job: its flags, above those of the root, which each round reads again."""

    def __init__(self, prog: str, arguments: Namespace, console: Console) -> None:
        self._flags = setting_flags(prog, arguments)
        self._interval = interval_of(prog)
        self._console = console
        self._names = SETTINGS_OF_JOBS[prog]
        self._newest = EffectiveSettings()
        self.shown = ""
        """The settings given when the last round began."""

    def read(self, root: str) -> SettingSources:
        """Read the settings for a round; print those that were given, if they changed."""
        sources = SettingSources(open_settings(open_store(root)).read(), self._flags)
        self._newest = sources.of_root()
        shown = self._newest.summary(self._names)
        if shown != self.shown:
            line = printable(f"settings: {shown or 'all defaults'}")
            self._console.print(line, soft_wrap=True, markup=False)
            self.shown = shown
        return sources

    @property
    def interval_seconds(self) -> float:
        """The pause between the starts of two rounds."""
        assert self._interval is not None, "a maintenance round decides the pause itself"
        value = self._newest.value(self._interval)
        assert isinstance(value, int)
        return value / 1_000


def _round(
    prog: str,
    arguments: Namespace,
    spark: SparkSession,
    work: Round,
    console: Console,
    stop: StopSignal,
    settings: _JobSettings,
    told: RoundProgress,
    *,
    must_exist: bool,
) -> Report | None:
    """Do one round; return its report, or None if a signal cancelled it.

    An error of the storage or of Spark fails the round, and the job continues. So does a table of
    settings that cannot be read: no round works with defaults in its place. A scope or stream that
    is named and does not exist ends the job, unless a round has found it before.
    """
    keeps_running = arguments.interval is not None
    try:
        root, streams = _find(prog, arguments, must_exist=must_exist)
        sources = settings.read(root)
        given = RoundInput(
            root=root,
            streams=streams,
            only_changes=keeps_running,
            sources=sources,
            stop=stop,
            must_exist=must_exist,
            told=told,
        )
        report = _recorded(prog, arguments, given, partial(work, spark, given))
    except errors_of_spark() as error:
        if stop.is_set:
            return None
        if (
            isinstance(error, NotFound if keeps_running else (InvalidInput, NotFound))
            and must_exist
        ):
            raise
        return Report(None, {"failed": 1}, error=error)
    if report.table is not None:
        console.print(report.table.render())
    for what, why in (report.failure_lines or report.failures).items():
        complain(prog, f"{what}: {why}")
    return replace(report, counts={**report.counts, "failed": len(report.failures)})


def _recorded(
    prog: str, arguments: Namespace, given: RoundInput, work: Callable[[], Report]
) -> Report:
    """Do a round, and record it; a maintenance round records its kinds itself."""
    if prog == MAINTENANCE:
        return work()
    named = arguments.scope, arguments.stream
    scopes = recorded_scopes(*named, dry_run=arguments.dry_run)
    with RoundRecord(open_store(given.root), MaintenanceKind(prog), scopes) as record:
        record.claim(given.stop)
        report = work()
        if not given.stop.is_set:
            record.finish(report.counts["streams"], report.failures)
    return report


def errors_of_spark() -> tuple[type[Exception], ...]:
    """Return the errors with which work in Spark fails, which are imported only then."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PravegaSparkError, PySparkException, Py4JError


def _print_progress(
    console: Console, number: int, counts: dict[str, int], took: float, pause: float
) -> None:
    done = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    line = f"{datetime.now():%H:%M:%S} round {number}: {done} in {took:.1f} s"
    console.print(f"{line}, next in {pause:.0f} s", soft_wrap=True, markup=False)


def _refused(prog: str, error: Exception) -> int:
    complain(prog, error)
    return 2
