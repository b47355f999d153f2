"""Command-line options that all jobs share."""

from __future__ import annotations

import argparse

from pravega_spark.errors import InvalidConfiguration
from pravega_spark.units import parse_duration_ms


def make_parser(doc: str, prog: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all jobs; the first line of ``doc`` describes the job."""
    parser = argparse.ArgumentParser(prog=prog, description=doc.splitlines()[0])
    parser.add_argument(
        "--root", required=True, help="folder or URL of the streams, such as s3://bucket/streams"
    )
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
        metavar="TIME",
        help="keep running, and start a round every TIME, such as 60s (default: one round)",
    )
    return parser


def duration(text: str) -> float:
    """Parse a duration above 0 into seconds."""
    try:
        found = parse_duration_ms("the time", text)
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not found:
        raise argparse.ArgumentTypeError("must be longer than 0 s")
    return found / 1_000
