"""Writes of one command whose outcome is still unknown, and how many are known to be durable."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, NoReturn

import click

from pravega_spark.errors import CommitUnknown, PravegaSparkError
from pravega_spark.values.units import count_text

_MOST: Final = 10_000
"""Open writes, at most: the errors of earlier ones end the command."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """SIGTERM or SIGHUP, which ends a command as an interrupt does: it says what is durable."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.status = 128 + number


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise Stopped within for SIGTERM and SIGHUP; one that is ignored, as by nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = [number for number in _SIGNALS if before[number] is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _stop(number: int, _: object) -> NoReturn:
    raise Stopped(number)


class OpenWrites:
    """The writes of one run of a command."""

    def __init__(self) -> None:
        self.begun = 0
        self._open: deque[tuple[int, Future[Any]]] = deque()
        """With the number of writes before each, so that an interrupt tears no count."""
        self.counted: Callable[[], int] = lambda: 0
        """What the writer counts as durable; an interrupt may come between a write and ``add``."""

    def add(self, write: Future[Any]) -> None:
        """Take a write that has begun; raise the error of one that failed."""
        self._open.append((self.begun, write))
        self.begun += 1
        while self._open and self._open[0][1].done():
            self._wait(len(self._open) - 1)
        self._wait(_MOST)

    def end(self) -> None:
        """Wait for all; raise the error of the first that failed."""
        self._wait(0)

    def _wait(self, most: int) -> None:
        while len(self._open) > most:
            self._open[0][1].result()
            self._open.popleft()

    def durable_text(self, what: str, error: BaseException) -> str:
        """Return how many are durable, ``what`` each, once the run has ended; "" without writes."""
        durable = self._open[0][0] if self._open else self.begun
        durable += sum(w.done() and w.exception() is None for _, w in self._open)
        durable = max(durable, self.counted())
        if not (self.begun or durable):
            return ""
        text = f" {count_text(durable, what)} of this run {'is' if durable == 1 else 'are'} durable"
        unknown = ", and of those after them it is unknown"
        return f"{text}{unknown if isinstance(error, CommitUnknown) else ''}."


def say_durable(name: str, durable: str, error: BaseException) -> None:
    """Add what is durable to an error of ours; print it for another one, or an interrupt."""
    if isinstance(error, PravegaSparkError):
        error.message += durable
    elif durable:
        click.echo(f"{name}:{durable}", err=True)
