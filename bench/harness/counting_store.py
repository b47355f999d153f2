"""A store that counts its calls and bytes, around any other store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from bench.harness.observed_store import ObservedStore
from pravega_spark.engine.store import PutOutcome, Store
from pravega_spark.engine.store.base import Entry


class CountingStore(ObservedStore):
    """Passes every call on, and counts it; each object of one call counts as a call."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.listed = 0
        """Objects that listings returned."""
        self.read_bytes = self.written_bytes = 0

    @property
    def total(self) -> int:
        """The number of calls so far."""
        return self.calls.total()

    def time_ms(self) -> int:
        self.calls["time"] += 1
        return self.inner.time_ms()

    def modified_ms(self, key: str) -> int | None:
        self.calls["modified"] += 1
        return self.inner.modified_ms(key)

    def get(self, key: str) -> bytes:
        self.calls["get"] += 1
        found = self.inner.get(key)
        self.read_bytes += len(found)
        return found

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self.calls["get"] += 1
        found = self.inner.get_range(key, start, end)
        self.read_bytes += len(found)
        return found

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.calls["get"] += len(keys)
        found = self.inner.get_many(keys)
        self.read_bytes += sum(len(data) for data in found if data is not None)
        return found

    def exists(self, key: str) -> bool:
        self.calls["exists"] += 1
        return self.inner.exists(key)

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        self.calls["put"] += 1
        self.written_bytes += len(data)
        return self.inner.put_if_absent(key, data, **options)

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        self.calls["put"] += 1
        self.written_bytes += len(data)
        self.inner.put(key, data, durable=durable)

    @contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        self.calls["put"] += 1
        with self.inner.writer(key) as file:
            yield file
            self.written_bytes += file.tell()

    def delete(self, keys: Iterable[str]) -> None:
        doomed = list(keys)
        self.calls["delete"] += len(doomed)
        self.inner.delete(doomed)

    def discard_unfinished(self, prefix: str, older_ms: int, *, deep: bool = True) -> list[Entry]:
        self.calls["list"] += 1
        return self.inner.discard_unfinished(prefix, older_ms, deep=deep)

    def folders(self, prefix: str) -> list[str]:
        self.calls["list"] += 1
        return self.inner.folders(prefix)

    def list(
        self, prefix: str, *, after: str | None = None, before: str | None = None
    ) -> list[Entry]:
        self.calls["list"] += 1
        found = self.inner.list(prefix, after=after, before=before)
        self.listed += len(found)
        return found

    def open(self, key: str) -> pa.NativeFile:
        self.calls["get"] += 1
        return self.inner.open(key)

    def make_durable(self, prefix: str) -> None:
        self.calls["durable"] += 1
        self.inner.make_durable(prefix)
