"""Which groups under a root are being changed: one small object for each change under way.

A group that holds data announces each change before it begins, and takes that back when its
streams have heard of it. So the retention of a stream finds the changes that somebody left half
made by one listing, however many groups there are.
"""

from __future__ import annotations

from collections.abc import Callable

from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store

FOLDER = "_changing_groups"
"""In the root's folder; no scope's name begins so."""
LEFT_MS = 3_600_000
"""A change that began so long ago is not under way: its announcement may be deleted."""


class ChangingGroups:
    """The changes of reader groups that are under way under a root."""

    def __init__(self, store: Store, runtime: Runtime = SYSTEM) -> None:
        """Name the root; nothing is read yet."""
        self._store, self._runtime = store, runtime

    def announce(self, group: str) -> str:
        """Announce that a group is going to be changed; return the key of the announcement."""
        key = f"{FOLDER}/{group}/{self._runtime.token()}.json"
        self._store.put(key, b"{}\n")
        return key

    def take_back(self, key: str) -> None:
        """Say that a change is finished."""
        self._store.delete([key])

    def tend(self, settle: Callable[[str], str | None]) -> dict[str, str]:
        """Settle every announced group; return those that cannot be, each with its error.

        An announcement is deleted once its group was settled, unless it is so new that the change
        itself may be still to come.
        """
        found: dict[str, dict[str, int | None]] = {}
        for entry in self._store.list(FOLDER):
            group = entry.key.removeprefix(f"{FOLDER}/").rpartition("/")[0]
            found.setdefault(group, {})[entry.key] = entry.modified_ms
        if not found:
            return {}
        before_ms = self._store.time_ms() - LEFT_MS
        answers = self._runtime.each(settle, list(found))
        errors = {group: error for group, error in zip(found, answers, strict=True) if error}
        settled = [keys for group, keys in found.items() if group not in errors]
        old = [k for keys in settled for k, at in keys.items() if at is not None and at < before_ms]
        if old:
            self._store.delete(old)
        return errors
