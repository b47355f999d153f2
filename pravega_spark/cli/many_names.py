"""Look at each of many streams, groups or tables: some at a time, with a bar on a terminal."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from pravega_spark.limits import CHECK_THREADS

_Found = TypeVar("_Found")

_FEW = 200
"""Fewer names are looked at before anybody would see a bar."""


def look_at_each(
    look: Callable[[str], _Found | None], names: Sequence[str], what: str
) -> list[_Found]:
    """Return what ``look`` finds for each name, in order; None is left out.

    ``CHECK_THREADS`` calls wait for storage at the same time. The first error ends the look.
    ``what`` names the objects beside the bar, which is on standard error.
    """
    if len(names) < 2:
        return [found for name in names if (found := look(name)) is not None]
    threads = ThreadPoolExecutor(min(CHECK_THREADS, len(names)), "pravega-look")
    results, begun = list[_Found](), deque[Future[_Found | None]]()

    def end(count: int) -> None:
        for _ in range(count):
            found = begun.popleft().result()
            advance()
            if found is not None:
                results.append(found)

    try:
        with _bar(len(names), what) as advance:
            for name in names:
                end(len(begun) == 2 * CHECK_THREADS)
                begun.append(threads.submit(look, name))
            end(len(begun))
            return results
    finally:
        threads.shutdown(cancel_futures=True)


@contextmanager
def _bar(total: int, what: str) -> Iterator[Callable[[], None]]:
    """Show a bar while the block runs, if somebody sees it; yields the step."""
    if total < _FEW or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.completed:,} of {task.total:,} {task.description}")
    columns = (BarColumn(), text, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
