"""Announced changes of reader groups: one small object under the root for each change under way.

A group that holds data announces each change before it begins, and withdraws the announcement when
its streams are subscribed or unsubscribed. So the retention of a stream finds half-made changes by
one listing, however many groups there are.
"""

from __future__ import annotations

from collections.abc import Callable

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.errors import StoreReadOnly

logger = own_logger(__name__)

FOLDER = "_changing_groups"
"""A folder of the root; no scope has such a name."""
ABANDONED_MS = 3_600_000
"""A change that began this long ago is no longer under way: its announcement can be deleted."""


class ChangeAnnouncements:
    """The announced changes of all reader groups under a root."""

    def __init__(self, store: Store, runtime: Runtime = SYSTEM) -> None:
        """Name the root; reads nothing yet."""
        self._store, self._runtime = store, runtime

    def announce(self, group: str) -> str:
        """Announce a change of a group; return the key of the announcement."""
        key = f"{FOLDER}/{group}/{self._runtime.token()}.json"
        self._store.put(key, b"{}\n")
        return key

    def withdraw(self, key: str) -> None:
        """Delete the announcement of a finished change."""
        self._delete([key])

    def _delete(self, keys: list[str]) -> None:
        """Delete announcements; one that stays costs a look at its group, and no more."""
        try:
            self._store.delete(keys)
        except StoreReadOnly as error:
            group = "/".join(keys[0].split("/")[1:3]) if keys else ""
            logger.warning(
                "an announced change of reader group %s is finished; its announcement stays until "
                "someone who may delete it runs the retention of a stream: %s",
                group,
                error,
                extra=log_fields("finish change", group=group),
            )

    def repair(self, repair_group: Callable[[str], str | None]) -> dict[str, str]:
        """Repair every announced group; return the error of each group that cannot be repaired.

        ``repair_group`` returns an error or None. The announcements of a repaired group are
        deleted, except recent ones, whose change may not have begun yet.
        """
        found: dict[str, dict[str, int | None]] = {}
        for entry in self._store.list(FOLDER):
            group = entry.key.removeprefix(f"{FOLDER}/").rpartition("/")[0]
            found.setdefault(group, {})[entry.key] = entry.modified_ms
        if not found:
            return {}
        before_ms = self._store.time_ms() - ABANDONED_MS
        results = self._runtime.each(repair_group, list(found))
        errors = {group: error for group, error in zip(found, results, strict=True) if error}
        repaired = [keys for group, keys in found.items() if group not in errors]
        old = [
            key
            for keys in repaired
            for key, modified_ms in keys.items()
            if modified_ms is not None and modified_ms < before_ms
        ]
        if old:
            self._delete(old)
        return errors
