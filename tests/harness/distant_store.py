"""A local store that says it is distant: which calls it gets, and how many at the same time."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from pravega_spark.engine.store.local import LocalStore
from pravega_spark.errors import StoreError
from pravega_spark.values.limits import STORAGE_THREADS
from tests.harness.spy_store import Spy


class Distant(Spy):
    """A store that says it is distant, and knows how many of its calls are under way at once."""

    is_local = False

    def __init__(self, root: str, prefix: str) -> None:
        """Take the root's folder, and how the keys begin of which calls are counted."""
        super().__init__(LocalStore(root))
        self.hook = self._call
        self._prefix = prefix
        self.refused: tuple[str, ...] = ()
        """Calls for these streams fail."""
        self._now = self._most = self._wanted = 0
        self._only = ""
        self._changed = threading.Condition()

    def _call(self, operation: str, key: str) -> None:
        if key.startswith(self.refused):
            raise StoreError(f"{key}: refused")
        if not key.startswith(self._prefix) or not operation.startswith(self._only):
            return
        with self._changed:
            self._now += 1
            self._most = max(self._most, self._now)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._most >= self._wanted, 5):
                self._wanted = 0  # one after the other, and the test has failed
            self._now -= 1

    @contextmanager
    def together(self, count: int, operation: str = "") -> Iterator[None]:
        """Let calls wait until so many are under way; fail if there are never so many."""
        self._most, self._wanted, self._only = 0, count, operation
        yield
        assert self._wanted == count, "calls went one after the other"
        assert count <= self._most <= count + STORAGE_THREADS

    def asked(self, depth: int = 2) -> dict[str, Counter[str]]:
        """Return the operations by stream, or by folder, since the last call of this."""
        found: dict[str, Counter[str]] = {}
        for operation, key in self.calls:
            if key.startswith(self._prefix) and operation != "make_durable":
                found.setdefault("/".join(key.split("/")[:depth]), Counter())[operation] += 1
        self.calls.clear()
        return found
