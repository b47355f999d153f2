"""A limit of the time that maintenance spends on one stream, so that it stops no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from pravega_spark.errors import TooBusy

_Value = TypeVar("_Value")

_running: dict[tuple[object, str], Future[Any]] = {}
"""Work that may still run although its limit has passed, by where it is and what it is."""


def run_within(seconds: float, run: Callable[[], _Value], what: str, where: object = "") -> _Value:
    """Return the result of a run, or raise its error, or TooBusy if it takes too long.

    A run that exceeded its limit continues in the background. While it does, no other run of the
    same begins in this process.
    """
    known = _running.get((where, what))
    if known is not None and not known.done():
        raise TooBusy(f"{what} still runs since it exceeded its limit; the next run finishes it.")
    future = Future[_Value]()

    def run_in_thread() -> None:
        try:
            future.set_result(run())
        except BaseException as error:
            future.set_exception(error)
        finally:
            if _running.get((where, what)) is future:
                del _running[where, what]

    # Not a thread of a pool: the interpreter would wait for it at exit.
    threading.Thread(target=run_in_thread, name=what.replace(" ", "-"), daemon=True).start()
    wait([future], seconds)
    if not future.done():
        _running[where, what] = future
        raise TooBusy(
            f"{what} exceeded its limit of {seconds:g} s; the next run finishes it. Raise the "
            "limit if that happens again."
        )
    return future.result()
