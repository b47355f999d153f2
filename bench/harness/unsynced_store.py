"""A local store without fsync, to build large inputs with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store.local import LocalStore


class UnsyncedStore(LocalStore):
    """A local store whose writes are not durable.

    With a clock, files carry that clock's time as their modification time.
    """

    def __init__(self, path: str, clock: Runtime | None = None) -> None:
        super().__init__(path)
        self._clock = clock

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        for key, data in objects:
            self.put(key, data)

    @contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        with super().writer(key) as file:
            yield file
        self._date(self._base + key)

    def _publish(self, path: str, data: bytes | pa.Buffer, **how: Any) -> bool:
        created = super()._publish(path, data, **{**how, "durable": False, "is_staged": False})
        self._date(path)
        return created

    def _date(self, path: str) -> None:
        if self._clock is not None:
            os.utime(path, ns=(0, self._clock.now_ms() * 1_000_000))


class SimulatedDisk(UnsyncedStore):
    """A local store on a simulated clock, which also is its answer to what the time is."""

    def __init__(self, path: str, clock: Runtime) -> None:
        super().__init__(path, clock)
        self._time_ms = clock.now_ms

    def time_ms(self) -> int:
        return self._time_ms()
