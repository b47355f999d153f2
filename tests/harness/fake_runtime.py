"""A runtime whose clocks advance only when the code sleeps, and storage dated by them."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.harness.simulated_clock import BEGIN_MS, SimulatedClock
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import PutOutcome
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.manager import StreamManager

NOW_MS = BEGIN_MS
_tokens, _roots = itertools.count(1), itertools.count(1)


class FakeRuntime(SimulatedClock):
    """The simulated clock, with tokens that are easy to read."""

    def token(self) -> str:
        return f"token{next(_tokens):08d}"


class SkippingRuntime(Runtime):
    """The system's runtime with its threads, whose clocks a test can move forward."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self._stopped_ms: int | None = None

    def stop(self) -> None:
        """Let the wall clock stand still in milliseconds; the monotonic one goes on."""
        self._stopped_ms = self.now_ms()

    def now_ms(self) -> int:
        if self._stopped_ms is not None:
            return self._stopped_ms
        return super().now_ms() + int(self.skipped * 1_000)

    def now_ns(self) -> int:
        return time.time_ns() + int(self.skipped * 1e9)

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped

    def skip(self, seconds: float) -> None:
        self.skipped += seconds


def memory(runtime: Runtime) -> MemoryStore:
    return MemoryStore(clock_ms=runtime.now_ms)


def manager_of(runtime: FakeRuntime) -> StreamManager:
    """Return a manager of a new root in memory, whose objects are dated by the runtime's clock."""
    store = MemoryStore(f"dated-{next(_roots)}", clock_ms=runtime.now_ms)
    return StreamManager(store.url, runtime=runtime)


class DatedDisk(LocalStore):
    """A local disk that takes a runtime's clock for the host's, and dates its files by it."""

    def __init__(self, path: Path, runtime: FakeRuntime) -> None:
        super().__init__(str(path))
        self.path, self.runtime = path, runtime

    def time_ms(self) -> int:
        return self.runtime.now_ms()

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        answer = super().put_if_absent(key, data, **options)
        if answer is PutOutcome.CREATED:
            self._date(key)
        return answer

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        super().put(key, data, durable=durable)
        self._date(key)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        super().stage(objects)
        for key, _ in objects:
            self._date(key)

    def _date(self, key: str) -> None:
        os.utime(self.path / key, ns=(0, self.runtime.now_ms() * 1_000_000))
