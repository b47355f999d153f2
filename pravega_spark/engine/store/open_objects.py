"""What a process opened once and keeps: one object for each store and name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from pravega_spark.engine.runtime.eviction import ChanceCache
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store import Store
from pravega_spark.primitives.process_locks import new_lock

_Object = TypeVar("_Object")


class OpenObjects(Generic[_Object]):
    """The open objects of one kind; a forked child starts with none. Thread-safe.

    An object is kept while anybody uses it, and also when nobody does, as long as all that are kept
    fit into ``most_bytes``. So all users of an object in a process know what one has changed.
    """

    def __init__(
        self,
        open_one: Callable[[Store, str], _Object],
        size_bytes: Callable[[_Object], int],
        most_bytes: int,
    ) -> None:
        """Start with none; ``size_bytes`` says about how much memory an object takes."""
        self._open_one, self._size_bytes, self._most_bytes = open_one, size_bytes, most_bytes
        self._lock = new_lock()
        self.reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Keep none of the present objects."""
        self._used = WeakValueDictionary[tuple[Store, str], _Object]()
        self.kept = ChanceCache[tuple[Store, str], _Object](
            self._most_bytes, SYSTEM.random, self._size_bytes
        )

    def known(self, store: Store, name: str) -> _Object | None:
        """Return the object of that name if it is open."""
        with self._lock:
            return self._used.get((store, name))

    def get(self, store: Store, name: str) -> _Object:
        """Return the open object of that name, or open it; it need not exist in the storage."""
        key = (store, name)
        with self._lock:
            found = self.kept.get(key)
            if found is None:
                found = self._used.get(key) or self._open_one(store, name)
                self._used[key] = found
                self.kept.put(key, found)
            return found
