"""Command-line options that the jobs of import and export share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

from pravega_spark.errors import InvalidInput
from pravega_spark.jobs.command_line import duration, parser_of_root
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


def make_copy_parser(doc: str, prog: str) -> argparse.ArgumentParser:
    """Return a parser with the options of both jobs; ``doc`` is what its help says of the job."""
    parser = parser_of_root(doc, prog, COPY_EXIT_STATUS)
    parser.add_argument(
        "--path", help="folder or URL of the Delta table or of the files; not for Kafka"
    )
    parser.add_argument(
        "--servers", metavar="HOST:PORT", help="Kafka's bootstrap servers, separated by commas"
    )
    parser.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="folder or URL for this job alone, where Spark keeps its progress; required except "
        "with --dry-run",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of Spark's format for the source or target, such as header=true or "
        "kafka.security.protocol=SSL; may be repeated",
    )
    parser.add_argument(
        "--key-encoding",
        choices=KEY_ENCODINGS,
        default="utf8",
        help="percent: keys that are not UTF-8 are text in the stream, and bytes in Kafka "
        "(default: such a key is an error)",
    )
    parser.add_argument(
        "--interval",
        type=duration,
        metavar="TIME",
        help="keep running, with a batch every TIME, such as 10s (default: copy all that is "
        "there, and end)",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="read a few rows, show them as they would be written, and write nothing",
    )
    return parser


def check_copy(parser: argparse.ArgumentParser, arguments: argparse.Namespace, kind: str) -> None:
    """End with status 2 if options of a format are missing, or are of another one."""
    if kind == KAFKA:
        _require(parser, arguments, "servers", f"{kind} needs --servers")
        _refuse(parser, arguments, "path", f"{kind} has no --path")
    else:
        _require(parser, arguments, "path", f"{kind} needs --path")
        _refuse(parser, arguments, "servers", f"--servers is for Kafka, and this is {kind}")
    if arguments.checkpoint is None and not arguments.dry_run:
        parser.error(
            "--checkpoint is required: a folder for this job alone, where it keeps its progress"
        )
    arguments.options = {}
    for text in arguments.option:
        name, is_given, value = text.partition("=")
        if not (name and is_given):
            parser.error(f"--option is NAME=VALUE, such as header=true; got {text!r}")
        arguments.options[name] = value


def stream_name(text: str) -> str:
    """Return a stream's full name."""
    try:
        split_stream(text)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def count(text: str) -> int:
    """Parse a whole number above 0."""
    try:
        found = int(text)
    except ValueError:
        found = 0
    if found < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return found


def kafka_options(arguments: argparse.Namespace) -> Mapping[str, str]:
    """Return the options of Spark's Kafka source and sink."""
    return {"kafka.bootstrap.servers": arguments.servers, **arguments.options}


def _require(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, name: str, why: str
) -> None:
    if getattr(arguments, name) is None:
        parser.error(f"{why}.")


def _refuse(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace, name: str, why: str
) -> None:
    if getattr(arguments, name) is not None:
        parser.error(f"{why}; remove --{name}.")
