"""What command lines of the tests ask of their options, and how they end."""

from __future__ import annotations

import math
import signal
from argparse import ArgumentTypeError


def at_least_one(text: str) -> int:
    """Return a whole number, of 1 at least: a type for argparse."""
    number = int(text)
    if number < 1:
        raise ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def above_zero(text: str) -> float:
    """Return a finite number above 0: a type for argparse."""
    number = float(text)
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"must be a number above 0, got {text}")
    return number


def end_with_the_reader() -> None:
    """Let the process end quietly when nobody reads its output any more, as ``head`` may.

    For a command that has nothing to clean up.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
