"""The stderr of whoever started a job, also under spark-submit."""

from __future__ import annotations

import io
import os
from typing import Any, TextIO


def user_stderr() -> TextIO:
    """Return the stderr of the command that was started.

    Under spark-submit a Python script's own stderr is a pipe that ends in the JVM's stdout, so
    that neither a redirection nor a terminal is seen; the JVM's is the one that is meant.
    """
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return open(os.dup(2), "w", buffering=1)  # not moved by `stderr_into`
    try:
        terminal = open(f"/proc/{os.getppid()}/fd/2", "a", buffering=1)  # noqa: SIM115 (kept)
    except OSError:
        return _JvmStderr()
    # A file is left to the JVM, which would write over what another appends.
    return terminal if terminal.isatty() else _JvmStderr()


class _JvmStderr(io.TextIOBase, TextIO):
    """Writes through the JVM that started this script."""

    def write(self, text: str) -> int:
        """Print the text there."""
        from pyspark import SparkContext

        SparkContext._ensure_initialized()
        gateway: Any = SparkContext._gateway
        gateway.jvm.java.lang.System.err.print(text)
        return len(text)
