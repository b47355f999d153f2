"""The command line ``pravega-spark``, for people and scripts. Needs neither Spark nor a JVM."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status: 0 for success, 1 for failure, 2 for misuse."""
    from pravega_spark.cli.commands import run

    return run(sys.argv[1:] if argv is None else argv)
