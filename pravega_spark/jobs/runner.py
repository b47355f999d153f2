"""What the jobs over many streams share: their options, Spark, the rounds, and the last line.

A job's work on one stream is safe to repeat, so it may be killed at any time and run twice at
once. Its output ends with one JSON object, the sums of all rounds; its exit status is 0 if all
streams were worked on, 1 if some failed, and 2 for input that cannot be used.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console, RenderableType

from pravega_spark.config import parse_duration_ms
from pravega_spark.errors import InvalidConfiguration, InvalidInput, NotFound, PravegaSparkError
from pravega_spark.jobs.fan_out import find_streams
from pravega_spark.jobs.launcher_stderr import user_stderr
from pravega_spark.jobs.signals import Ending

WIDTH = 160
"""Columns of what is printed where no terminal says otherwise."""
INTERRUPTED = 130
"""The exit status of a single round that was told to end before it was done."""
QUIET = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True)
class Report:
    """One round: what to show, how much was done, and what failed (``stream s/t``) with what."""

    table: RenderableType | None
    counts: dict[str, int]
    failures: dict[str, str] = field(default_factory=dict)


Work = Callable[[SparkSession, str, Sequence[str], bool], Report]
"""Given Spark, root, streams, and whether only news are to be shown: what was done in a round."""


def options(doc: str, prog: str) -> argparse.ArgumentParser:
    """Return a parser that knows the options of all jobs."""
    parser = argparse.ArgumentParser(prog=prog, description=doc.splitlines()[0])
    parser.add_argument("--root", required=True, help="folder or URL, as s3://bucket/streams")
    parser.add_argument("--scope", action="append", default=[], help="all streams of it; repeat it")
    parser.add_argument(
        "--stream", action="append", default=[], metavar="SCOPE/STREAM", help="this one; repeat it"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be done, and change nothing"
    )
    parser.add_argument(
        "--interval",
        type=duration,
        metavar="TIME",
        help="keep running, one round every so often (60s)",
    )
    return parser


def duration(text: str) -> float:
    """Read a duration above 0 as seconds."""
    try:
        found = parse_duration_ms("the time", text)
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not found:
        raise argparse.ArgumentTypeError("must be longer than 0 s")
    return found / 1_000


def run(prog: str, arguments: argparse.Namespace, work: Work, zeros: Mapping[str, int]) -> int:
    """Do the rounds; return the exit status. Without ``--interval`` there is one.

    ``zeros`` are the counts of no rounds, which the last line begins with.
    """
    sys.stderr = user_stderr()
    try:
        find_streams(arguments.root, arguments.scope, arguments.stream)
    except PravegaSparkError as error:
        return _refused(prog, error)
    spark = start(prog)
    ending = Ending()
    ending.listen(spark)
    try:
        return rounds(prog, arguments, spark, work, zeros, ending)
    finally:
        ending.over()
        with contextlib.suppress(Exception):
            spark.stop()


def start(prog: str) -> SparkSession:
    """Return a Spark session; it needs no jar, and on somebody else's server sets nothing."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"pravega-{prog}")
    is_served = os.environ.get("SPARK_REMOTE", "").startswith("sc://")
    if not is_served and "DATABRICKS_RUNTIME_VERSION" not in os.environ:
        for key, value in QUIET.items():
            builder = builder.config(key, value)
    return builder.getOrCreate()


def rounds(
    prog: str,
    arguments: argparse.Namespace,
    spark: SparkSession,
    work: Work,
    zeros: Mapping[str, int],
    ending: Ending | None = None,
) -> int:
    """Do the rounds on a Spark that runs; return the exit status."""
    ending = ending or Ending()
    console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    begun, sums, number = time.monotonic(), Counter(zeros), 0
    try:
        while not ending.is_told:
            at = time.monotonic()
            counts = _round(prog, arguments, spark, work, console, ending)
            if counts is None:
                break
            sums.update(counts)
            number += 1
            if arguments.interval is None:
                break
            took = time.monotonic() - at
            rest = max(0.0, arguments.interval - took)
            _progress(console, number, counts, took, rest)
            ending.wait(rest)
    except (InvalidInput, NotFound) as error:
        return _refused(prog, error)
    seconds = round(time.monotonic() - begun, 3)
    record = {**sums, "failed": sums["failed"], "dry_run": arguments.dry_run}
    record |= {"rounds": number, "seconds": seconds}
    print(json.dumps(record), flush=True)
    if not number and arguments.interval is None:
        return INTERRUPTED
    return 1 if sums["failed"] else 0


def _round(
    prog: str,
    arguments: argparse.Namespace,
    spark: SparkSession,
    work: Work,
    console: Console,
    ending: Ending,
) -> dict[str, int] | None:
    """Do one round; a storage or a Spark that fails is a failure of the round, not the end.

    None if it was cancelled, since the job was told to end.
    """
    try:
        root, streams = find_streams(arguments.root, arguments.scope, arguments.stream)
        report = work(spark, root, streams, arguments.interval is not None)
    except (PravegaSparkError, PySparkException, Py4JError) as error:
        if ending.is_told:
            return None
        if isinstance(error, (InvalidInput, NotFound)) and arguments.interval is None:
            raise
        print(f"{prog}: {error}", file=sys.stderr)
        return {"failed": 1}
    if report.table is not None:
        console.print(report.table)
    for what, why in report.failures.items():
        print(f"{prog}: {what}: {why}", file=sys.stderr)
    return {**report.counts, "failed": len(report.failures)}


def _progress(
    console: Console, number: int, counts: dict[str, int], took: float, rest: float
) -> None:
    done = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    line = f"{datetime.now():%H:%M:%S} round {number}: {done} in {took:.1f} s, next in {rest:.0f} s"
    console.print(line, soft_wrap=True, markup=False)


def _refused(prog: str, error: Exception) -> int:
    print(f"{prog}: {error}", file=sys.stderr)
    return 2
