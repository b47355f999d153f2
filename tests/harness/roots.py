"""Managers of a store that a test has made: one that counts, fails, or is another process's."""

from __future__ import annotations

from pathlib import Path

from pravega_spark.engine.root import Root
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager, manager_over


class KeptRoot(Root):
    """A root whose streams stay open, as with the system's clock."""

    def stream(self, name: str) -> StreamLog:
        known: dict[str, StreamLog] = self.__dict__.setdefault("known", {})
        if name not in known:
            known[name] = super().stream(name)
        return known[name]


def manager_at(root: Path) -> StreamManager:
    """Return a manager of a local root as another process has it, with its own store."""
    return manager_over(LocalStore(str(root)))
