"""Spark's daemon of Python workers, which collects its ended workers so that their time counts.

PySpark's own daemon ignores SIGCHLD. The kernel then drops the processor time of a worker that
ends, and no measurement finds it. Here the time is added to that of the daemon's children.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType
from typing import Any

from pyspark import daemon

_set_handler = signal.signal


def _collect(_number: int, _frame: FrameType | None) -> None:
    """Wait for all children that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _signal(number: int, handler: Any) -> Any:
    """Collect ended children where PySpark ignores their end."""
    if (number, handler) == (signal.SIGCHLD, signal.SIG_IGN):
        handler = _collect
    return _set_handler(number, handler)


if __name__ == "__main__":
    signal.signal = _signal  # type: ignore[assignment]
    daemon.manager()
