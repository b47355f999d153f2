"""Where the demo speaks: results to stdout, errors and the progress bar to the user's stderr."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

WIDTH = 100
"""Columns of what is printed where nobody's terminal says otherwise."""


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


def out_console() -> Console:
    """Return the console for stdout."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


@contextmanager
def stderr_into(path: str) -> Iterator[None]:
    """Let what is started inside write its stderr, for ever, to the end of a file."""
    kept = os.dup(2)
    try:
        with open(path, "ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def progress_bars(total: int) -> Iterator[Callable[[int, int], None]]:
    """Show how much was written and read, on a terminal only; give what sets it."""
    if not sys.stderr.isatty():
        yield lambda written, read: None
        return
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars = [progress.add_task(name, total=total) for name in ("written", "read")]

        def show(written: int, read: int) -> None:
            for bar, done in zip(bars, (written, read), strict=True):
                progress.update(bar, completed=min(done, total))

        yield show
