"""Reports of the engine's work in this process, for those that observe it, such as metrics.

Nobody observes by default. A report then costs a look at an empty list, and is made for a batch, a
commit or a read batch, never for each event. Nothing of a metrics library is imported here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol
from weakref import WeakSet


class Observer:
    """Takes reports, from any thread; a method that is not overridden does nothing.

    The engine's thread makes the call, so a method must neither raise nor wait.
    """

    def appended(self, stream: str, events: int, size_bytes: int, seconds: float) -> None:
        """Report a writer's batch that is durable, ``seconds`` after a thread took it."""

    def transactions_committed(self, stream: str, events: int, size_bytes: int) -> None:
        """Report the events of transactions that a commit of this process made visible."""

    def append_failed(self, stream: str, events: int) -> None:
        """Report events that a writer accepted and could not commit."""

    def events_read(self, stream: str, events: int, size_bytes: int) -> None:
        """Report events that were read from the storage."""

    def committed(self, path: str, operation: str) -> None:
        """Report a commit of this process to the table at ``path``, below the root."""

    def race_lost(self, path: str) -> None:
        """Report a commit that another process preceded; it is decided again."""

    def call_repeated(self, url: str) -> None:
        """Report a storage call under the root ``url`` that got no answer and is repeated."""


observers: list[Observer] = []
"""Those that observe this process; a forked child begins without any."""


class ObservedReader(Protocol):
    """An open reader, as far as metrics concern it."""

    def known_lag(self) -> Mapping[str, int]:
        """Return the unread events by stream, as of the newest version that was read."""

    @property
    def observed_as(self) -> tuple[str, str]:
        """The names of its group and of itself; both are empty for a reader without a group."""


open_readers: WeakSet[ObservedReader] = WeakSet()
"""The readers of this process that are in use."""


def readers() -> list[ObservedReader]:
    """Return the readers, also while other threads open some."""
    while True:
        try:
            return list(open_readers)
        except RuntimeError:  # one was added in this moment
            continue


def _reset() -> None:
    """Observe nothing in a forked child: a lock of an observer may be held there forever."""
    observers.clear()
    open_readers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)
