"""Runs the ``main`` of a job, or of the demo, in the tests' process, as its command line would."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from pravega_spark.jobs.early_signals import SIGNALS


class Launched(NamedTuple):
    """How it ended, and what it printed."""

    status: object
    out: str
    err: str


def launched(
    main: Callable[[Sequence[str]], int],
    arguments: Sequence[str],
    capfd: pytest.CaptureFixture[str],
) -> Launched:
    """Run it; then restore the handlers of signals, and the standard error that it replaces."""
    handlers, stderr = {number: signal.getsignal(number) for number in SIGNALS}, sys.stderr
    try:
        status: object = main(arguments)
    except SystemExit as end:
        status = end.code
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if sys.stderr is not stderr:
            sys.stderr.close()
            sys.stderr = stderr
    return Launched(status, *capfd.readouterr())
