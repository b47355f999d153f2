"""Output of the demo: results on stdout, the progress bar on the user's stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

WIDTH = 100
"""Columns of the output where no terminal sets them."""


def out_console() -> Console:
    """Return the console for stdout."""
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


@contextmanager
def stderr_into(path: str) -> Iterator[None]:
    """Append the stderr of processes that start inside to a file, for as long as they run."""
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
    """Show on a terminal how much was written and read; yield the function that updates it."""
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
