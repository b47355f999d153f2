"""Root: one root as this process has opened it, and the way to all that is in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.state.scopes import ACTIVE, Scope, open_scope
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.store.root_marker import scope_folders
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.errors import NoSuchScope

_Found = TypeVar("_Found")


class Root(NamedTuple):
    """The storage of one root, with the clocks and threads that work on it."""

    store: Store
    runtime: Runtime = SYSTEM

    def scope(self, name: str) -> Scope:
        """Return a scope, which need not exist. Raises InvalidName."""
        return open_scope(self.store, name, self.runtime)

    def stream(self, name: str) -> StreamLog:
        """Return the log of a stream, which need not exist. Raises InvalidName."""
        return open_stream(self.store, name, self.runtime)

    def scopes(self, *states: str) -> list[str]:
        """Return the names of the scopes in one of these states, by default ACTIVE, sorted."""
        folders = scope_folders(self.store)
        found = in_rounds(self.store, lambda name: self.scope(name).state(), folders)
        wanted = states or (ACTIVE,)
        return [name for name, state in zip(folders, found, strict=True) if state in wanted]

    def in_scopes(
        self,
        look: Callable[[str], Iterable[_Found]],
        scopes: Sequence[str] | None = None,
        *,
        must_exist: bool = True,
    ) -> list[_Found]:
        """Return what a look finds in each of these scopes, or of all of the root, in their order.

        Many are read at the same time on an object store. Raises NoSuchScope for one of ``scopes``
        that must exist.
        """
        if scopes is None:
            scopes, must_exist = self.scopes(), False

        def found(scope: str) -> list[_Found]:
            with contextlib.suppress(*(() if must_exist else (NoSuchScope,))):
                return list(look(scope))
            return []  # deleted since it was listed

        return [one for each in in_rounds(self.store, found, scopes) for one in each]
