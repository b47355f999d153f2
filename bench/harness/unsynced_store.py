"""A local store without fsync, to build large inputs with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pravega_spark.engine.runtime import Runtime
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

    def _publish(self, path: str, data: bytes | pa.Buffer, **how: Any) -> bool:
        created = super()._publish(path, data, **{**how, "durable": False})
        if self._clock is not None:
            os.utime(path, ns=(0, self._clock.now_ms() * 1_000_000))
        return created
