"""The open tables of this process, one for each root."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from pravega_spark.engine.open_objects import OpenObjects
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store

_Table = TypeVar("_Table")

_MOST = 64


class OpenTables(Generic[_Table]):
    """Tables of one kind that stay open: a repeated read costs one storage call."""

    def __init__(self, open_table: Callable[[Store, Runtime], _Table]) -> None:
        """Start without a table; ``open_table`` opens the one of a root."""
        self._open_table = open_table
        self._open = OpenObjects(lambda store, _: open_table(store, SYSTEM), lambda _: 1, _MOST)

    def get(self, store: Store, runtime: Runtime = SYSTEM) -> _Table:
        """Return the table of a root; with another runtime than the system's, a new one."""
        return self._open.get(store, "") if runtime is SYSTEM else self._open_table(store, runtime)
