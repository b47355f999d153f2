"""The root that a server shows: its manager, and its opened streams."""

from __future__ import annotations

from typing import Final

from pravega_spark.engine.root import Root
from pravega_spark.engine.store.open_objects import OpenObjects
from pravega_spark.engine.stream.repair import begun_view
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import without_credentials
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.serve.call_budget import BudgetedStore, charged_runtime
from pravega_spark.values.limits import OPEN_STREAM_BYTES

_UNSEEN_MS: Final = 60_000
"""After so long without a look the storage may have answered meanwhile."""


class ServedRoot:
    """The state that all routes share; thread-safe. Its calls are charged to a poll's budget."""

    def __init__(self, manager: StreamManager) -> None:
        """Take the manager of the root; nothing is read yet."""
        self.manager = manager
        store, runtime = root_of(manager)
        self.opened = Root(BudgetedStore(store), charged_runtime(runtime))
        self.store, self.runtime = self.opened
        self._logs = OpenObjects(
            lambda store, name: StreamLog(store, name, self.runtime),
            lambda stream: stream.log.held_bytes,
            OPEN_STREAM_BYTES,
        )
        self._away: tuple[int, int] | None = None
        """When the storage was first and last found not to answer."""

    def storage_failed(self) -> int:
        """Note that the storage as a whole does not answer; return since when, as far as known."""
        now_ms, known = self.runtime.now_ms(), self._away
        is_same = known is not None and now_ms - known[1] <= _UNSEEN_MS
        since_ms = known[0] if known is not None and is_same else now_ms
        self._away = since_ms, now_ms
        return since_ms

    def storage_answered(self) -> None:
        """Note that it answers."""
        self._away = None

    @property
    def url(self) -> str:
        """The URL of the root, without credentials."""
        return without_credentials(self.manager.root)

    def log(self, stream: str) -> StreamLog:
        """Return an open stream, which need not exist. Raises InvalidName."""
        return self._logs.get(self.store, stream)

    def view(self, stream: str) -> StreamView:
        """Return the newest view of a stream: one storage call if it is known.

        Raises NoSuchStream.
        """
        return begun_view(self.log(stream))
