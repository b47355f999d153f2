"""A store that records its calls and fails by rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pravega_spark.engine.store import PutOutcome, Store
from pravega_spark.engine.store.memory import MemoryStore
from tests.harness.fault_plans import Rules
from tests.harness.faulty_store import FaultyStore


class Spy(FaultyStore):
    """A store that records its calls and fails by the rules that a test adds."""

    def __init__(self, inner: Store | None = None, *, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.calls: list[tuple[str, str]] = []
        self.sent: list[tuple[str, bytes]] = []
        self.hook: Callable[[str, str], None] | None = None
        super().__init__(inner or MemoryStore(), self._plan)

    def _plan(self, operation: str, key: str) -> Any:
        self.calls.append((operation, key))
        if self.hook is not None:
            self.hook(operation, key)
        return self.rules(operation, key)

    def put_if_absent(self, key: str, data: bytes, **options: Any) -> PutOutcome:
        self.sent.append((key, data))
        return super().put_if_absent(key, data, **options)

    def count(self, operation: str, part: str = "") -> int:
        return sum(op == operation and part in key for op, key in self.calls)
