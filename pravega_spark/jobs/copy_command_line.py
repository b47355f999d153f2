"""Command-line options that the jobs of import and export share."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Final

import click

from pravega_spark.engine.store import open_store
from pravega_spark.errors import StoreRefused
from pravega_spark.jobs.command_line import JobCommand, duration, flag, option
from pravega_spark.spark.frames.range_log import check_outside
from pravega_spark.spark.option_values import KEY_ENCODINGS
from pravega_spark.values.names import split_stream

KAFKA: Final = "kafka"
DELTA: Final = "delta"
CSV: Final = "csv"
JSON: Final = "json"
FILES: Final = ("parquet", CSV, JSON)
FORMATS: Final = (KAFKA, DELTA, *FILES)
"""The kinds of sources and targets."""

COPY_EXIT_STATUS: Final = """\
Exit status:
  0    done; with --interval also after a signal
  1    the query failed, and the next run continues where it ended; or a package of the extra "jobs"
       or a jar is missing
  2    the input cannot be used
  130  a signal stopped the only run before its end

The last line of the output is one JSON object with the sums of the run. The job may be killed at
any moment, and continues from --checkpoint. SIGTERM, SIGINT and SIGHUP stop it in order. The jars
of Kafka and Delta are fetched; spark-submit takes them by --packages.
docs/deploy.md starts jobs by spark-submit, Databricks, Kubernetes, Airflow, systemd and cron.
"""


def copy_command(prog: str, doc: str, options: Sequence[click.Option]) -> JobCommand:
    """Return the command of a copying job: its own options, and those of both jobs."""
    shared = [
        option(
            "--path", help="The folder or URL of the Delta table or of the files; not for Kafka."
        ),
        option(
            "--servers",
            metavar="HOST:PORT",
            help="Kafka's bootstrap servers, separated by commas.",
        ),
        option(
            "--checkpoint",
            metavar="FOLDER",
            help="A folder or URL for this job alone, where Spark keeps its progress; required "
            "except with --dry-run.",
        ),
        option(
            "--option",
            multiple=True,
            metavar="NAME=VALUE",
            help="An option of Spark's format for the source or target, such as header=true or "
            "kafka.security.protocol=SSL; may be repeated.",
        ),
        option(
            "--key-encoding",
            type=click.Choice(KEY_ENCODINGS),
            default="utf8",
            help="With percent, keys that are not UTF-8 are text in the stream, and bytes in "
            "Kafka; else such a key is an error.",
        ),
        option(
            "--interval",
            parse=duration,
            metavar="TIME",
            help="Keep running, with a batch every TIME, such as 10s.  [default: copy all that is "
            "there, and end]",
        ),
        flag(
            "--dry-run",
            help="Read a few rows, show them as they would be written, and write nothing.",
        ),
    ]
    return JobCommand(prog, doc, COPY_EXIT_STATUS, [*options, *shared])


def check_copy(arguments: SimpleNamespace, kind: str) -> None:
    """Raise UsageError if options of a format are missing, or are of another one."""
    if kind == KAFKA:
        _require(arguments, "servers", f"{kind} needs --servers")
        _refuse(arguments, "path", f"{kind} has no --path")
    else:
        _require(arguments, "path", f"{kind} needs --path")
        _refuse(arguments, "servers", f"--servers is for Kafka, and this is {kind}")
    if arguments.checkpoint is None and not arguments.dry_run:
        raise click.UsageError(
            "--checkpoint is required: a folder for this job alone, where it keeps its progress."
        )
    if arguments.checkpoint is not None:
        with contextlib.suppress(StoreRefused):  # Spark has other file systems, too
            url = open_store(arguments.checkpoint).url
            check_outside(arguments.checkpoint, url, arguments.root)
    arguments.options = {}
    for text in arguments.option:
        name, is_given, value = text.partition("=")
        if not (name and is_given):
            raise click.UsageError(f"--option is NAME=VALUE, such as header=true; got {text!r}.")
        arguments.options[name] = value


def stream_name(text: str) -> str:
    """Return a stream's full name."""
    split_stream(text)
    return text


COUNT: Final = click.IntRange(min=1)


def kafka_options(arguments: SimpleNamespace) -> Mapping[str, str]:
    """Return the options of Spark's Kafka source and sink."""
    return {"kafka.bootstrap.servers": arguments.servers, **arguments.options}


def _require(arguments: SimpleNamespace, name: str, why: str) -> None:
    if getattr(arguments, name) is None:
        raise click.UsageError(f"{why}.")


def _refuse(arguments: SimpleNamespace, name: str, why: str) -> None:
    if getattr(arguments, name) is not None:
        raise click.UsageError(f"{why}; remove --{name}.")
