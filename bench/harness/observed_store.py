"""A wrapper around a store whose subclass sees each object that is put."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pravega_spark.engine.store.base import WrappedStore


class ObservedStore(WrappedStore):
    """A store around another one that puts objects one by one; a subclass counts or spoils them."""

    def put(self, key: str, data: bytes | pa.Buffer, *, durable: bool = True) -> None:
        self.inner.put(key, data, durable=durable)

    def put_many(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create or overwrite the objects, one after the other."""
        for key, data in objects:
            self.put(key, data)

    def stage(self, objects: Sequence[tuple[str, bytes | pa.Buffer]]) -> None:
        """Create the objects, each by a put that the subclass sees."""
        self.put_many(objects)
