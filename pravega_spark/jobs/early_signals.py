"""Signals that arrive while a job imports its modules and starts Spark, which takes seconds.

Without a listener Python ends with a traceback, or without the job's last line. Imports nothing
that takes time.
"""

from __future__ import annotations

import signal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_arrived: list[int] = []


def listen() -> None:
    """Remember SIGINT, SIGTERM and SIGHUP from now on; an ignored one stays ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _remember)


def _remember(number: int, _: object) -> None:
    _arrived.append(number)


def take() -> bool:
    """Return whether a signal has arrived, and forget it."""
    arrived = bool(_arrived)
    _arrived.clear()
    return arrived
