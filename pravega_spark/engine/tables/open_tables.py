"""The open tables of this process, one for each root."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store

_Table = TypeVar("_Table")

_MOST = 64


class OpenTables(Generic[_Table]):
    """Tables of one kind that stay open: a repeated read costs one storage call.

    A forked child opens its own, so the keys contain the process id.
    """

    def __init__(self, open_table: Callable[[Store, Runtime], _Table]) -> None:
        """Start without a table; ``open_table`` opens the one of a root."""
        self._open_table = open_table
        self._tables: dict[tuple[int, str], tuple[Store, _Table]] = {}

    def get(self, store: Store, runtime: Runtime = SYSTEM) -> _Table:
        """Return the table of a root; with another runtime than the system's, a new one."""
        if runtime is not SYSTEM:
            return self._open_table(store, runtime)
        key = (os.getpid(), store.url)
        found = self._tables.get(key)
        if found is None or found[0] is not store:
            if len(self._tables) >= _MOST:
                self._tables.clear()
            found = self._tables[key] = store, self._open_table(store, runtime)
        return found[1]
