"""Named places where a test may kill, hold or fail the process: ``failpoint("append.staged")``.

In production a crash point is one dictionary look-up in an empty dictionary. A test registers a
callable by name, or sets ``PRAVEGA_SPARK_CRASH_AT=name[:n]`` to have the process killed (SIGKILL)
when it reaches the point for the n-th time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

CRASH_VARIABLE = "PRAVEGA_SPARK_CRASH_AT"

_actions: dict[str, Callable[[], None]] = {}


def failpoint(name: str) -> None:
    """Run what a test registered for this place, if anything."""
    if _actions:
        action = _actions.get(name)
        if action is not None:
            action()


def register(name: str, action: Callable[[], None] | None) -> None:
    """Set the action of a crash point, or remove it with None."""
    if action is None:
        _actions.pop(name, None)
    else:
        _actions[name] = action


def kill_at(place: str) -> None:
    """Have this process killed when it comes to a place (``name[:n]``) for the n-th time."""
    name, _, nth = place.partition(":")
    if not name:
        return
    left = [int(nth or 1)]

    def kill() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    register(name, kill)


kill_at(os.environ.get(CRASH_VARIABLE, ""))
