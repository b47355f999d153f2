"""What every wrapper around a store passes on unchanged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from pravega_spark.engine.store import Store
from pravega_spark.engine.store.base import Dated


class WrappedStore:
    """A store around another one; a subclass adds the calls that it counts or spoils."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def storage(self) -> str:
        return self.inner.storage

    @property
    def is_local(self) -> bool:
        return self.inner.is_local

    @property
    def has_clock(self) -> bool:
        return self.inner.has_clock

    @property
    def dated(self) -> Dated | None:
        return self.inner.dated

    @property
    def retry_seconds(self) -> float:
        return self.inner.retry_seconds

    def stamp(self, key: str) -> object:
        return self.inner.stamp(key)

    def hold_to(self, check: Callable[[], None]) -> None:
        self.inner.hold_to(check)

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        self.inner.put(key, data, durable=durable)

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or overwrite the objects, one after the other."""
        for key, data in objects:
            self.put(key, data)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create the objects, each by a put that the subclass sees."""
        self.put_many(objects)
