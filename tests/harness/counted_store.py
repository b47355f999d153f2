"""A root in memory that counts its calls as an object store's, on a clock that a test moves."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from pravega_spark import StreamManager
from pravega_spark.engine.store import PutOutcome
from pravega_spark.engine.store.base import Entry
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import StoreError
from tests.harness.fake_runtime import FakeRuntime

_names = itertools.count(1)


class CountedStore(MemoryStore):
    """A store in memory that says it is distant, and counts each request that it gets."""

    is_local = False

    def __init__(self, runtime: FakeRuntime) -> None:
        super().__init__(f"counted-{next(_names)}", clock_ms=runtime.now_ms)
        self._counting = threading.Lock()
        self.calls = 0
        self.kinds: Counter[str] = Counter()
        self.fails = ""
        """Calls whose key begins so fail, if it is not empty."""

    def _count(self, kind: str, calls: int = 1, key: str = "") -> None:
        with self._counting:
            self.calls += calls
            self.kinds[kind] += calls
        if self.fails and key.startswith(self.fails):
            raise StoreError(f"{key}: the storage refused.")

    def taken(self) -> int:
        """Return the calls since this was last asked."""
        with self._counting:
            calls, self.calls = self.calls, 0
            return calls

    def time_ms(self) -> int:
        self._count("time")
        return super().time_ms()

    def modified_ms(self, key: str) -> int | None:
        self._count("head", key=key)
        return super().modified_ms(key)

    def get(self, key: str) -> bytes:
        self._count("get", key=key)
        return super().get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return super().get_range(key, start, end)  # counted by get

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self._count("get", len(keys))
        for key in keys:
            self._count("get", 0, key)
        return super().get_many(keys)

    def exists(self, key: str) -> bool:
        self._count("head", key=key)
        return super().exists(key)

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        self._count("put")
        return super().put_if_absent(key, data, **options)

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        self._count("put")
        super().put(key, data, durable=durable)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        super().stage(objects)

    def delete(self, keys: Iterable[str]) -> None:
        named = list(keys)
        self._count("delete", len(named))
        super().delete(named)

    def folders(self, prefix: str) -> list[str]:
        self._count("list", key=prefix)
        return super().folders(prefix)

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        self._count("list", key=prefix)
        return super().list(prefix, after=after, before=before)

    def open(self, key: str) -> pa.NativeFile:
        self._count("get", key=key)
        return super().open(key)


class CountedRoot:
    """A root in such a store, and the clock of all that uses it."""

    def __init__(self) -> None:
        self.runtime = FakeRuntime()
        self.store = CountedStore(self.runtime)
        self.manager = StreamManager(self.store.url, runtime=self.runtime)
        self.manager.create_scope("nyc")
