"""Actions at the package's failpoints: run a function once, fail, hold, or kill the process.

A test in the same process calls :func:`register` or enters :class:`at_failpoint`. A child process
is killed at a failpoint if it was started with the :func:`variables`: they put the folder
``kill_on_start`` on the child's path, whose ``sitecustomize`` calls :func:`kill_at`. So the child
runs the package unchanged, whether it is a script, a module, a Spark driver or a Spark worker.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pravega_spark.engine.runtime import failpoints

KILL_VARIABLE = "PRAVEGA_SPARK_TEST_KILL_AT"
PROJECT = Path(__file__).parents[2]
_SITE = Path(__file__).parent / "kill_on_start"

_actions: dict[str, Callable[[], object]] = {}


def _run(name: str) -> None:
    action = _actions.get(name)
    if action is not None:
        action()


def register(name: str, action: Callable[[], object] | None) -> None:
    """Set the action of a failpoint, or remove it with None."""
    if action is None:
        _actions.pop(name, None)
    else:
        _actions[name] = action
    failpoints.install(_run if _actions else None)


class at_failpoint:
    """Run an action the first time this process reaches a failpoint; count the visits.

    Threads that earlier tests left may visit it, too: with ``own`` only visits of the thread that
    made this count, so a test that counts them exactly, or kills, gives it where its own thread
    does the work.
    """

    def __init__(self, name: str, action: Callable[[], object], *, own: bool = False) -> None:
        self.name, self.action, self.hits = name, action, 0
        self._thread = threading.get_ident() if own else None

    def __enter__(self) -> at_failpoint:
        register(self.name, self._hit)
        return self

    def _hit(self) -> None:
        if self._thread not in (None, threading.get_ident()):
            return
        self.hits += 1
        if self.hits == 1:
            self.action()

    def __exit__(self, *_: object) -> None:
        register(self.name, None)


@contextmanager
def at_each_visit(name: str, action: Callable[[], object]) -> Iterator[None]:
    """Run an action each time this process reaches a failpoint."""
    register(name, action)
    try:
        yield
    finally:
        register(name, None)


class held_at:
    """Hold all visits until the event is set: the first may be that of another thread."""

    def __init__(self, name: str) -> None:
        self.name, self.release = name, threading.Event()

    def __enter__(self) -> threading.Event:
        register(self.name, lambda: self.release.wait(120))
        return self.release

    def __exit__(self, *_: object) -> None:
        self.release.set()
        register(self.name, None)


def kill_at(visit: str) -> None:
    """Kill this process at the n-th visit of a failpoint: ``name[:n]``. Empty text: never."""
    name, _, nth = visit.partition(":")
    if not name:
        return
    remaining = int(nth or 1)

    def kill() -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    register(name, kill)


def variables(visit: str) -> dict[str, str]:
    """Return the environment variables with which a child process is killed at ``name[:n]``.

    Empty text gives no variables: that child is not killed.
    """
    if not visit:
        return {}
    path = [str(_SITE), str(PROJECT), os.environ.get("PYTHONPATH", "")]
    return {KILL_VARIABLE: visit, "PYTHONPATH": os.pathsep.join(filter(None, path))}
