"""A runtime whose clocks advance only when the code sleeps, and storage dated by them."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa

from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Put
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.manager import StreamManager

NOW_MS = 1_700_000_000_000
_tokens = itertools.count(1)


class FakeRuntime(Runtime):
    """Clocks that advance only when the code sleeps, and random numbers from a seed."""

    def __init__(self, seed: int = 0) -> None:
        self.wall_ms: float = NOW_MS
        self.elapsed = 1_000.0
        self._random = random.Random(seed)

    def now_ms(self) -> int:
        return int(self.wall_ms)

    def now_us(self) -> int:
        return int(self.wall_ms * 1_000)

    def monotonic(self) -> float:
        return self.elapsed

    def sleep(self, seconds: float) -> None:
        self.elapsed += seconds
        self.wall_ms += seconds * 1_000

    def token(self) -> str:
        return f"token{next(_tokens):08d}"

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


class SkippingRuntime(Runtime):
    """The system's runtime with its threads, whose clocks a test can move forward."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + int(self.skipped * 1_000)

    def now_us(self) -> int:
        return super().now_us() + int(self.skipped * 1_000_000)

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped

    def skip(self, seconds: float) -> None:
        self.skipped += seconds


def memory(runtime: Runtime) -> MemoryStore:
    return MemoryStore(clock_ms=runtime.now_ms)


def manager_of(runtime: FakeRuntime) -> StreamManager:
    """Return a manager of a new root in memory, whose objects are dated by the runtime's clock."""
    store = MemoryStore(f"dated-{next(_tokens)}", clock_ms=runtime.now_ms)
    return StreamManager(store.url, runtime=runtime)


class DatedDisk(LocalStore):
    """A local disk that takes a runtime's clock for the host's, and dates its files by it."""

    def __init__(self, path: Path, runtime: FakeRuntime) -> None:
        super().__init__(str(path))
        self.path, self.runtime = path, runtime

    def time_ms(self) -> int:
        return self.runtime.now_ms()

    def put_if_absent(self, key: str, data: bytes, *, after: str | None = None) -> Put:
        answer = super().put_if_absent(key, data, after=after)
        if answer is Put.CREATED:
            self._date(key)
        return answer

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        super().put(key, data, durable=durable)
        self._date(key)

    def _date(self, key: str) -> None:
        os.utime(self.path / key, ns=(0, self.runtime.now_ms() * 1_000_000))
