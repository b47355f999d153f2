"""An object store in memory that counts the chunks that readers fetch from it, and their bytes."""

from __future__ import annotations

from collections.abc import Sequence

from pravega_spark.engine.store import Store
from pravega_spark.manager import StreamManager, manager_over
from pravega_spark.values.units import MIB
from tests.harness.spy_store import Spy

_CHUNKS = "/events/data/"


class CountedChunks(Spy):
    """A handle of a store as a process has one: with what it keeps of chunks."""

    is_local = False

    def __init__(self, inner: Store, cache_bytes: int = 64 * MIB) -> None:
        super().__init__(inner)
        self._cache_bytes = cache_bytes
        self.fetched: list[tuple[str, int]] = []
        """The chunks, each with the bytes of its answer."""

    @property
    def cache_bytes(self) -> int:
        return self._cache_bytes

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        found = super().get_many(keys)
        self.fetched += [
            (key, len(data or b"")) for key, data in zip(keys, found, strict=True) if _CHUNKS in key
        ]
        return found

    def gets(self) -> tuple[int, int]:
        """Return the chunks that were fetched since the last call, and their bytes."""
        fetched, self.fetched = self.fetched, []
        return len(fetched), sum(size for _, size in fetched)


def process_on(inner: Store, cache_bytes: int = 64 * MIB) -> tuple[StreamManager, CountedChunks]:
    """Open a root as another process does, and return its manager and its counts."""
    store = CountedChunks(inner, cache_bytes)
    return manager_over(store), store
