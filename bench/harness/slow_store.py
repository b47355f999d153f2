"""A store like a bucket that is far away: every call takes some milliseconds longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pravega_spark.engine.store import Store

_CALLS = {
    "delete", "exists", "folders", "get", "get_many", "get_range", "list", "modified_ms", "open",
    "put", "put_if_absent", "stage", "time_ms",
}  # fmt: skip


class SlowStore:
    """A store whose calls take ``delay_seconds`` longer, and which readers take for a remote one.

    Objects of one ``get_many`` arrive together, as those of parallel requests do.
    """

    is_local = False

    def __init__(self, inner: Store) -> None:
        """Wrap a store; there is no delay until ``delay_seconds`` is set."""
        self._inner = inner
        self.delay_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._delayed(found) if name in _CALLS else found

    def _delayed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def delayed(*args: Any, **options: Any) -> Any:
            time.sleep(self.delay_seconds)
            return call(*args, **options)

        return delayed
