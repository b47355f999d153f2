"""Calls of an object store at the same time: their waits overlap."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.base import Store
from pravega_spark.values.limits import CHECK_THREADS, OBJECT_CALLS, OBJECT_HELPERS

_In = TypeVar("_In")
_Out = TypeVar("_Out")


class _Helpers:
    """The threads that help callers. They are bounded, since calls may make further calls."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Let all begin, because threads do not survive a fork."""
        self._free: list[None] = [None] * OBJECT_HELPERS

    def start(self, work: Callable[[], None]) -> Future[None] | None:
        """Begin the work in one more thread; return None if too many help."""
        free = self._free
        try:
            free.pop()
        except IndexError:
            return None

        def help_out() -> None:
            try:
                work()
            finally:
                free.append(None)

        return SYSTEM.start(help_out)


_helpers = _Helpers()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.renew)


def in_parallel(
    function: Callable[[_In], _Out], items: Sequence[_In], at_once: int = OBJECT_CALLS
) -> list[_Out]:
    """Return the results of ``function`` for the items, in order, ``at_once`` at most at a time.

    The threads belong to no pool, so this is parallel also within ``Runtime.each`` and within
    itself; the caller's thread works, too, and alone if OBJECT_HELPERS others are busy. Items begin
    in order, and after an error no further one does. When those under way have ended, the error of
    the first item that failed is raised, whichever failed earlier.
    """
    results: list[Any] = [None] * len(items)
    errors: dict[int, Exception] = {}
    positions = iter(range(len(items)))  # shared: its next() is atomic

    def skip_others() -> None:
        for _ in positions:
            pass

    def work() -> None:
        for position in positions:
            try:
                results[position] = function(items[position])
            except Exception as error:
                errors[position] = error
                skip_others()

    others: list[Future[None]] = []
    try:
        while len(others) < min(len(items), at_once) - 1:
            helper = _helpers.start(work)
            if helper is None:
                break
            others.append(helper)
        work()
        wait(others)
    except BaseException:  # this thread is interrupted
        skip_others()
        wait(others)
        raise
    for other in others:
        other.result()
    if errors:
        raise errors[min(errors)]
    return results


def in_rounds(store: Store, function: Callable[[_In], _Out], items: Sequence[_In]) -> list[_Out]:
    """Return the results of a look at each of many logs, in order, or raise the first one's error.

    On a distant store many looks wait at the same time, and on a disk one follows the other: they
    take microseconds there. Errors are those of :func:`in_parallel`.
    """
    if store.is_local:
        return [function(item) for item in items]
    return in_parallel(function, items, CHECK_THREADS)
