"""Command-line options that all jobs share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

from pravega_spark.config.root_settings import SETTING_NAMES, parse_flags, rule_of
from pravega_spark.config.setting_rules import NEVER, SettingValue
from pravega_spark.errors import InvalidConfiguration, InvalidInput
from pravega_spark.metrics.textfile import check_textfile
from pravega_spark.values.units import parse_duration_ms

MAINTENANCE: Final = "maintenance"
"""The job that does all kinds of maintenance, each at its own interval."""
AS_SET: Final = True
"""``--interval`` without a value: as often as the root's settings say."""

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
"""The end of every job's help."""


def parser_of_root(doc: str, prog: str, epilog: str) -> argparse.ArgumentParser:
    """Return a parser with the option ``--root``; its help is ``doc`` and ends with ``epilog``."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description=doc,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--root", required=True, help="folder or URL of the streams, such as s3://bucket/streams"
    )
    return parser


def make_parser(doc: str, prog: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all jobs; ``doc`` is what its help says of the job."""
    parser = parser_of_root(doc, prog, EXIT_STATUS)
    parser.add_argument(
        "--scope",
        action="append",
        default=[],
        help="work on all streams of this scope; may be repeated",
    )
    parser.add_argument(
        "--stream",
        action="append",
        default=[],
        metavar="SCOPE/STREAM",
        help="work on this stream; may be repeated",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what the job would do, and change nothing"
    )
    parser.add_argument(
        "--interval",
        type=duration,
        nargs="?",
        const=AS_SET,
        metavar="TIME",
        help=f"keep running: {_when_rounds_start(prog)} (default: one round)",
    )
    parser.add_argument(
        "--metrics-textfile",
        type=_textfile,
        metavar="PATH",
        help="after each round, write the metrics of the root to this file *.prom for "
        "node_exporter's textfile collector (needs the extra metrics)",
    )
    return parser


def _textfile(text: str) -> str:
    try:
        return check_textfile("--metrics-textfile", text)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def interval_of(prog: str) -> str | None:
    """Return the name of the setting with the interval of a job; None if each kind has its own."""
    return None if prog == MAINTENANCE else f"{prog}_interval"


def _when_rounds_start(prog: str) -> str:
    name = interval_of(prog)
    if name is not None:
        often = f"as often as the setting {name} says"
        return f"start a round every TIME, such as 60s; without TIME {often}"
    return (
        "do each kind when its interval in the settings has passed; with TIME, such as 60s, look "
        "what is due after a pause of TIME, and without it when the next kind is due"
    )


def add_setting(
    parser: argparse.ArgumentParser,
    flag: str,
    name: str,
    meaning: str,
    *,
    parse: Callable[[str], float | str] | None = None,
) -> None:
    """Add a flag that decides a setting for this run."""
    default = rule_of(name).default
    parser.add_argument(
        flag,
        type=parse or (duration_or_never if default == NEVER else duration),
        dest=name,
        metavar="TIME",
        help=f"{meaning} (default: the setting {name} of the stream or the root, else {default})",
    )


def setting_flags(prog: str, arguments: argparse.Namespace) -> dict[str, SettingValue]:
    """Return the settings that a command line decides."""
    given = {name: getattr(arguments, name, None) for name in SETTING_NAMES}
    name = interval_of(prog)
    if name is not None and arguments.interval is not AS_SET:
        given[name] = arguments.interval
    return parse_flags(given)


def duration_or_never(text: str) -> float | str:
    """Parse a duration into seconds; keep the word ``never``."""
    return NEVER if text.strip() == NEVER else duration(text)


def duration(text: str) -> float:
    """Parse a duration above 0 into seconds."""
    found = duration_or_zero(text)
    if not found:
        raise argparse.ArgumentTypeError("must be longer than 0 s")
    return found


def duration_or_zero(text: str) -> float:
    """Parse a duration into seconds."""
    try:
        return parse_duration_ms("the time", text) / 1_000
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(str(error)) from None
