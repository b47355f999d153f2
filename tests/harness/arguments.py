"""What command lines of the tests ask of their options, and how they end."""

from __future__ import annotations

import math
import signal
from argparse import ArgumentTypeError
from pathlib import Path


def at_least_one(text: str) -> int:
    """Return a whole number, of 1 at least: a type for argparse."""
    return _whole(text, 1)


def at_least_zero(text: str) -> int:
    """Return a whole number, of 0 at least: a type for argparse."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise ArgumentTypeError(f"must be a whole number, {least} or more, got {text!r}")
    return number


def above_zero(text: str) -> float:
    """Return a finite number above 0: a type for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def folder_name(text: str) -> Path:
    """Return a folder, which may be made: a type for argparse."""
    if not text:
        raise ArgumentTypeError("must name a folder, got ''")
    if Path(text).exists() and not Path(text).is_dir():
        raise ArgumentTypeError(f"must be a folder, and {text} is none")
    return Path(text)


def end_with_the_reader() -> None:
    """Let the process end quietly when nobody reads its output any more, as ``head`` may.

    For a command that has nothing to clean up.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
