"""Command-line options that all jobs share."""

from __future__ import annotations

import argparse

from pravega_spark.errors import InvalidConfiguration
from pravega_spark.values.units import parse_duration_ms


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


def duration(text: str) -> float:
    """Parse a duration above 0 into seconds."""
    try:
        found = parse_duration_ms("the time", text) / 1_000
    except InvalidConfiguration as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not found:
        raise argparse.ArgumentTypeError("must be longer than 0 s")
    return found
