"""Where the demo speaks: results to stdout, errors and the progress bar to the user's stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

WIDTH = 100
"""Columns of what is printed where nobody's terminal says otherwise."""


def user_stderr() -> TextIO:
    """Return the stderr of the command that was started.

    Under spark-submit a Python script's own stderr is a pipe that ends in the JVM's stdout, so
    that neither a redirection nor a terminal is seen; the JVM's is the one that is meant.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        try:
            return open(f"/proc/{os.getppid()}/fd/2", "w", encoding="utf-8", buffering=1)
        except OSError:
            pass
    return sys.stderr


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
def progress_bars(stderr: TextIO, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show how much was written and read, on a terminal only; yield what sets it."""
    if not stderr.isatty():
        yield lambda written, read: None
        return
    columns = (
        TextColumn("{task.description:>8}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(file=stderr), transient=True) as progress:
        bars = [progress.add_task(name, total=total) for name in ("written", "read")]

        def show(written: int, read: int) -> None:
            for bar, done in zip(bars, (written, read), strict=True):
                progress.update(bar, completed=min(done, total))

        yield show
