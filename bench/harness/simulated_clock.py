"""A runtime whose clocks advance only when the code sleeps, so that a year takes minutes."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from pravega_spark.engine.runtime.folder_watch import FolderWatch
from pravega_spark.engine.runtime.system import Runtime

BEGIN_MS = 1_700_000_000_000
_ODD = 0x9E3779B97F4A7C15F39CC061
_tokens = itertools.count(1)


class SimulatedClock(Runtime):
    """Clocks that advance by ``sleep`` alone; work in the background is done in the foreground.

    ``wall_ms`` is the time of day, ``elapsed`` the other clock in seconds; both may be set.
    """

    has_threads = False

    def __init__(self, seed: int = 0) -> None:
        self.wall_ms: float = BEGIN_MS
        self.elapsed = 1_000.0
        self._random = random.Random(seed)
        self._later: list[tuple[float, Callable[[], object]]] = []

    def now_ms(self) -> int:
        return int(self.wall_ms)

    def now_ns(self) -> int:
        return int(self.wall_ms * 1_000) * 1_000

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += seconds
        self.wall_ms += seconds * 1_000

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        """Sleep so long, unless the event is set: there is no other thread that could set it."""
        assert seconds is not None, "nothing can end this wait"
        if not event.is_set():
            self.sleep(seconds)

    def watch_folder(
        self, folder: str, changed: Callable[[], object], is_used: Callable[[], object]
    ) -> FolderWatch | None:
        return None

    def token(self) -> str:
        """Return a token that no clock of this process has returned; it looks random."""
        return f"{next(_tokens) * _ODD % (1 << 96):024x}"

    def random(self) -> float:
        return self._random.random()

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [function(item) for item in items]

    def later(self, seconds: float, function: Callable[[], object]) -> None:
        """Keep the function for :meth:`run_later`: a simulation says when the background works."""
        self._later.append((self.elapsed + seconds, function))

    def run_later(self, seconds: float = 0.0) -> None:
        """Sleep so long, and meanwhile run each function that :meth:`later` got when it is due."""
        until = self.elapsed + seconds
        while due := [item for item in self._later if item[0] <= until]:
            first = min(due, key=lambda item: item[0])
            self._later.remove(first)
            self.sleep(max(0.0, first[0] - self.elapsed))
            first[1]()
        self.sleep(until - self.elapsed)

    def start(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        return future
