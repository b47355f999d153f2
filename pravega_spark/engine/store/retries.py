"""Calls that are repeated while the storage does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import thread as pools
from typing import TypeVar
from weakref import WeakSet

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.observers import observers
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.errors import StoreUnavailable
from pravega_spark.values.limits import WRITER_EXIT_SECONDS
from pravega_spark.values.units import duration_text

logger = own_logger(__name__)

_Result = TypeVar("_Result")

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
"""An outage's end is noticed within this time."""
_WARN_SECONDS = 1.0
"""An outage that is shorter is not worth a line in the log."""

_exiting = threading.Event()
"""Set when the process ends: it waits for the threads of pools, whose calls may be repeated."""

# As the pools' own hook, which waits for their threads; this one runs before it.
pools.threading._register_atexit(_exiting.set)  # type: ignore[attr-defined]


def pause_seconds(
    runtime: Runtime, failures: int, longest: float = _LONGEST_PAUSE_SECONDS
) -> float:
    """Return how long to wait after this many failures (at least 1) in a row.

    Exponential back-off with full jitter: a random time up to a limit that doubles, so that
    processes which failed at the same moment do not come back at the same moment.
    """
    limit = _FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16)
    return runtime.random() * min(limit, longest)


_known: WeakSet[Retries] = WeakSet()


def is_silent(url: str) -> bool:
    """Return whether a storage of this process has given no answer for a while, by its URL."""
    return any(found.is_silent for found in list(_known) if found.url == url)


class Retries:
    """Repeats calls of one store for a time; logs one warning per outage, and one line at its end.

    A call without a failure costs nothing here. Thread-safe.
    """

    def __init__(self, url: str, seconds: float, runtime: Runtime = SYSTEM) -> None:
        """Take the store's root and for how many seconds a call is repeated."""
        self.url = url
        self.seconds = seconds
        self._runtime = runtime
        self._waiting: set[object] = set()
        self._outage: dict[str, list[float]] = {}
        """When the outage began about which a warning was logged. Changed by single operations
        of the dict, which are atomic: a lock would not survive a fork."""
        _known.add(self)

    @property
    def is_silent(self) -> bool:
        """Whether a call is being repeated, or waits for an answer for long."""
        return bool(self._waiting or self._outage)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Return the function's result; repeat it after StoreUnavailable, until time is up.

        Only for calls that may be made twice. The last attempt begins when the time is up, so an
        outage of that length is sat out. Other errors are raised at once.
        """
        try:
            result = function()
        except StoreUnavailable as error:
            result = self._repeat(function, error)
        self.note_answer()
        return result

    def note_answer(self) -> None:
        """Note that a call has been answered: the end of an outage."""
        if self._outage:
            self._end()

    def note_silence(self, seconds: float) -> None:
        """Warn of an outage because a call, which still waits, has no answer for ``seconds``."""
        error = StoreUnavailable(f"a call has had no answer for {seconds:.0f} s.", url=self.url)
        self._warn(self._runtime.monotonic() - seconds, error)

    def _repeat(self, function: Callable[[], _Result], error: StoreUnavailable) -> _Result:
        began, failures, token = self._runtime.monotonic(), 1, object()
        self._waiting.add(token)
        try:
            while True:
                now = self._runtime.monotonic()
                left = began + self._limit() - now
                if now - began >= _WARN_SECONDS or left <= 0:
                    self._warn(began, error)
                if left <= 0:
                    raise self._given_up(error) from error
                for observer in observers:
                    observer.call_repeated(self.url)
                self._runtime.sleep(min(pause_seconds(self._runtime, failures), left))
                try:
                    return function()
                except StoreUnavailable as again:
                    error, failures = again, failures + 1
        finally:
            self._waiting.discard(token)

    def _limit(self) -> float:
        """Return for how many seconds a call is repeated; less while the process exits."""
        return min(self.seconds, WRITER_EXIT_SECONDS) if _exiting.is_set() else self.seconds

    def _given_up(self, error: StoreUnavailable) -> StoreUnavailable:
        limit = duration_text(round(self.seconds * 1_000))
        return StoreUnavailable(
            f"{error.message} Calls were repeated for {limit}, as the storage option "
            "retry_timeout says. Call again when the storage answers, or set a longer one.",
            url=error.url,
        )

    def _warn(self, began: float, error: StoreUnavailable) -> None:
        mine = [began]
        if self._outage.setdefault("began", mine) is mine:
            logger.warning(
                "%s does not answer; each call is repeated for up to %g s (retry_timeout): %s",
                self.url,
                self.seconds,
                error,
                extra=log_fields("retry", root=self.url),
            )

    def _end(self) -> None:
        """Log the end of an outage, unless a call of another thread still has no answer."""
        if not self._waiting:
            began = self._outage.pop("began", None)
            if began is not None:
                passed = self._runtime.monotonic() - began[0]
                logger.info(
                    "%s answers again, after %.1f s",
                    self.url,
                    passed,
                    extra=log_fields("retry", root=self.url),
                )
