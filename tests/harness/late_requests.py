"""Requests to a bucket that are carried out once more, long after the process that sent them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.root_marker import MARKER_KEY

Request = Callable[[], object]


def requests_to(root: Store, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[Request]:
    """Return a list that fills with the requests of these kinds that a store gets from now on.

    A bucket may carry one out again, long after its process gave it up, repeated it, or died. Those
    to write the marker are left out: one that lands late closes the copy, and opens it again.
    """
    asked = list[Request]()

    def noted(name: str) -> None:
        real = getattr(MemoryStore, name)

        def call(store: MemoryStore, given: Any, *more: Any, **options: Any) -> object:
            given = given if isinstance(given, str) else list(given)
            if store.url == root.url and given != MARKER_KEY:
                asked.append(lambda: real(store, given, *more, **options))
            return real(store, given, *more, **options)

        monkeypatch.setattr(MemoryStore, name, call)

    for name in names:
        noted(name)
    return asked
