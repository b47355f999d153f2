"""A limit of the time that maintenance spends on one stream, so that it stops no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.errors import TooBusy

_Value = TypeVar("_Value")

_running: dict[tuple[object, str], tuple[str, Future[Any]]] = {}
"""Work that may still run although its limit has passed, by where and at what it works."""


def run_within(
    seconds: float,
    run: Callable[[], _Value],
    what: str,
    where: object = "",
    *,
    unit: str | None = None,
) -> _Value:
    """Return the result of a run, or raise its error, or TooBusy if it takes too long.

    A run that exceeded its limit continues in the background. While it does, no other run at the
    same ``unit`` begins in this process, so that a unit that hangs costs one limit and no more.
    By default the unit is the work itself.
    """
    key = where, what if unit is None else unit
    hanging = still_running(*key)
    if hanging is not None:
        raise hanging
    future = Future[_Value]()

    def run_in_thread() -> None:
        thread = threading.current_thread()
        idle, thread.name = thread.name, what.replace(" ", "-")  # for dumps of a run that hangs
        try:
            future.set_result(run())
        except BaseException as error:
            future.set_exception(error)
        finally:
            if _running.get(key, (what, None))[1] is future:
                del _running[key]
            thread.name = idle

    SYSTEM.start(run_in_thread)  # at exit the process waits for it, but not long
    wait([future], seconds)
    if not future.done():
        _running[key] = what, future
        raise TooBusy(
            f"{what} exceeded its limit of {seconds:g} s. If it is only slow, raise the limit or "
            "run it again; if it hangs, check that the storage answers."
        )
    return future.result()


def still_running(where: object, unit: str) -> TooBusy | None:
    """Return why no work at a unit begins: earlier work exceeded its limit and has not ended."""
    before, known = _running.get((where, unit), ("", None))
    if known is None or known.done():
        return None
    return TooBusy(f"not begun, because {before} exceeded its limit before and still runs.")
