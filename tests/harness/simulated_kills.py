"""Kills within a test's process: a failpoint's action raises an error that no code handles."""

from __future__ import annotations

from collections.abc import Callable


class Killed(BaseException):
    """Ends a call like a kill of its process: no handler of errors catches it."""


def kill() -> None:
    """Raise Killed."""
    raise Killed


def kill_at_visit(nth: int) -> Callable[[], None]:
    """Return an action for a failpoint that raises Killed at the n-th visit."""
    remaining = nth

    def visit() -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            kill()

    return visit
