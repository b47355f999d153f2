"""Writes of one command whose outcome is still unknown, and how many are known to be durable."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any, Final

import click

from pravega_spark.errors import CommitUnknown, PravegaSparkError
from pravega_spark.units import count_text

_MOST: Final = 10_000
"""Open writes, at most: the errors of earlier ones end the command."""


class OpenWrites:
    """The writes of one run of a command."""

    def __init__(self) -> None:
        """Begin without writes."""
        self.begun = 0
        self._durable = 0
        self._open: deque[Future[Any]] = deque()

    def add(self, write: Future[Any]) -> None:
        """Take a write that has begun; raise the error of one that failed."""
        self._open.append(write)
        self.begun += 1
        while self._open and self._open[0].done():
            self._wait(len(self._open) - 1)
        self._wait(_MOST)

    def end(self) -> None:
        """Wait for all; raise the error of the first that failed."""
        self._wait(0)

    def _wait(self, most: int) -> None:
        while len(self._open) > most:
            self._open[0].result()
            self._open.popleft()
            self._durable += 1

    def durable_text(self, what: str, error: BaseException) -> str:
        """Return how many are durable, ``what`` each, once the run has ended; "" without writes."""
        if not self.begun:
            return ""
        durable = self._durable + sum(w.done() and w.exception() is None for w in self._open)
        text = f" {count_text(durable, what)} of this run {'is' if durable == 1 else 'are'} durable"
        unknown = ", and of those after them it is unknown"
        return f"{text}{unknown if isinstance(error, CommitUnknown) else ''}."


def say_durable(name: str, durable: str, error: BaseException) -> None:
    """Add what is durable to an error of ours; print it for another one, or an interrupt."""
    if isinstance(error, PravegaSparkError):
        error.message += durable
    elif durable:
        click.echo(f"{name}:{durable}", err=True)
