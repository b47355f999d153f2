"""Outages of a store on a simulated clock: its calls fail, or hang until the outage is over."""

from __future__ import annotations

from pravega_spark.engine.store import Store
from pravega_spark.errors import StoreError
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.spy_store import Spy

HANG, FAIL = "hang", "fail"


class Outages:
    """The outages of one storage, and the stores by which processes reach it."""

    def __init__(self, inner: Store, runtime: FakeRuntime) -> None:
        self._inner, self._runtime = inner, runtime
        self._until = 0.0
        self._kind = FAIL

    def begin(self, seconds: float, kind: str) -> float:
        """Begin an outage of all stores; return when it ends by the elapsed time."""
        self._until, self._kind = self._runtime.monotonic() + seconds, kind
        return self._until

    def process(self) -> Spy:
        """Return the store of another process, which has seen nothing yet."""
        store = Spy(self._inner)
        store.hook = self._call
        return store

    def _call(self, operation: str, key: str) -> None:
        left = self._until - self._runtime.monotonic()
        if left > 0 and self._kind is FAIL:
            raise StoreError(f"{key}: no answer to {operation}")
        if left > 0:
            self._runtime.sleep(left)
