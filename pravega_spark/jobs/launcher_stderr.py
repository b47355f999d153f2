"""The stderr of the command that started a job, also under spark-submit."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from pravega_spark.primitives.printable import printable_lines


def complain(prog: str, what: object) -> None:
    """Print what a job has to say for a person, on stderr."""
    print(f"{prog}: {printable_lines(str(what))}", file=sys.stderr)


def launcher_stderr() -> TextIO:
    """Return the stderr of the command that was started.

    Under spark-submit a Python script's own stderr is a pipe into the JVM's stdout, which hides
    redirections and terminals. The stderr that the user meant is the JVM's.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return open(os.dup(2), "w", buffering=1)  # stays when descriptor 2 is redirected later
    try:
        terminal = open(f"/proc/{os.getppid()}/fd/2", "a", buffering=1)  # noqa: SIM115 (kept)
    except OSError:
        return _JvmStderr()
    # A file is written by the JVM alone: it would overwrite what another process appends.
    return terminal if terminal.isatty() else _JvmStderr()


class _JvmStderr(io.TextIOBase, TextIO):
    """Writes to stderr through the JVM that started this script."""

    def write(self, text: str) -> int:
        from pyspark import SparkContext

        SparkContext._ensure_initialized()
        gateway: Any = SparkContext._gateway
        gateway.jvm.java.lang.System.err.print(text)
        return len(text)
