"""A runtime whose clocks advance only when the code sleeps, so that a year takes minutes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from pravega_spark.engine.runtime import Runtime

_BEGIN_MS = 1_700_000_000_000


class SimulatedClock(Runtime):
    """Clocks that advance by ``sleep`` alone; work in the background is done in the foreground."""

    def __init__(self, seed: int = 0) -> None:
        self._elapsed_ms = 0.0
        self._random = random.Random(seed)
        self._tokens = itertools.count(1)

    def now_ms(self) -> int:
        return _BEGIN_MS + int(self._elapsed_ms)

    def now_us(self) -> int:
        return 1_000 * self.now_ms()

    def monotonic(self) -> float:
        return 1_000.0 + self._elapsed_ms / 1_000

    def sleep(self, seconds: float) -> None:
        self._elapsed_ms += 1_000 * seconds

    def token(self) -> str:
        return f"{next(self._tokens):024x}"

    def random(self) -> float:
        return self._random.random()

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [function(item) for item in items]

    def start(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        return future
