"""Look at each of many streams, groups or tables: some at a time, with a bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from pravega_spark.engine.store.parallel_calls import in_parallel
from pravega_spark.errors import Damaged, ForeignTable, PravegaSparkError
from pravega_spark.values.limits import CHECK_THREADS

_Found = TypeVar("_Found")
_Look = Callable[[str], _Found | None]

_FEW = 200
"""Fewer names are looked at before anybody would see a bar."""


class DamagedNames(Exception):
    """Some of many names are damaged; the others were looked at and shown."""

    def __init__(self, errors: Sequence[PravegaSparkError]) -> None:
        super().__init__(*errors)
        self.errors = errors


@contextmanager
def look_at_each(look: _Look[_Found], names: Sequence[str], what: str) -> Iterator[list[_Found]]:
    """Let the block show what ``look`` finds for each name, in order; None is left out.

    Damage of one name ends no look: DamagedNames is raised when the block has shown the others. Any
    other error ends it. ``CHECK_THREADS`` calls wait for storage at the same time. ``what`` names
    the objects beside the bar, which is on standard error.
    """
    errors = list[PravegaSparkError]()

    def looked(name: str) -> _Found | None:
        try:
            return look(name)
        except (Damaged, ForeignTable) as error:
            errors.append(error)
            return None
        finally:
            advance()

    with _bar(len(names), what) as advance:
        results = in_parallel(looked, names, CHECK_THREADS)
    yield [found for found in results if found is not None]
    if errors:
        raise DamagedNames(sorted(errors, key=str))


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
