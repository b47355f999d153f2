"""The command line ``pravega-spark``, for people and scripts. Needs neither Spark nor a JVM."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; return the exit status: 0 for success, 1 for failure, 2 for misuse."""
    try:
        from pravega_spark.cli.exit_status import run
    except KeyboardInterrupt:  # these imports take as long as many a command
        return INTERRUPTED
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell, as with >&-
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 -- open until the end
    return run(sys.argv[1:] if argv is None else argv)
