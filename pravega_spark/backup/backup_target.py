"""The target of a backup: its root marker says which backup it takes, and whether it is complete.

The marker holds the backup's source and name, its id, and the run that works on it. So a run
continues an earlier one on the same target, and notices when another run takes the target over.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from pravega_spark.engine.log.clock_record import CLOCK_KEY
from pravega_spark.engine.log.create_once import create_object
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.probe import ensure_probed
from pravega_spark.engine.store.root_marker import (
    COPY_FORMAT,
    MARKER_FORMAT,
    MARKER_KEY,
    PROBE_FOLDER,
    RESTORED,
    encode,
    read_record,
)
from pravega_spark.errors import IllegalState, InvalidInput, TooBusy


class BackupTarget:
    """A store that one run of a backup has claimed."""

    def __init__(
        self, store: Store, source: Store, name: str, runtime: Runtime, *, updates: bool = False
    ) -> None:
        """Claim an empty store, or one that an earlier run of the same backup has claimed.

        With ``updates`` also the same backup that is complete. Raises IllegalState for a store that
        holds anything else.
        """
        self._store = store
        now_ms = runtime.now_ms()
        identity = {"of": source.url, "name": name}
        run = runtime.token()
        before = read_record(store)
        self._is_continued = False
        self.is_finished = False
        """Whether the target is a complete copy, which can be opened."""
        if before is None:
            self._check_empty()
            self._backup = {**identity, "id": runtime.token(), "began_ms": now_ms, "run": run}
            record = {"format": COPY_FORMAT, "probed_ms": now_ms, "root": runtime.token()}
            marker = encode({**record, "backup": self._backup})
            if not create_object(store, runtime, MARKER_KEY, marker):
                before = read_record(store)
        if before is not None:
            known = before.get("backup", {})
            is_same = {key: known.get(key) for key in identity} == identity
            self.is_finished = before["format"] != COPY_FORMAT
            can_update = updates and "finished_ms" in known and RESTORED not in before
            if not is_same or (self.is_finished and not can_update):
                raise self._refused(before, is_same=is_same)
            self._is_continued = not self.is_finished or "updating_ms" in known
            self._backup = {**known, "run": run}
            if not self.is_finished:
                self._write_marker(COPY_FORMAT)
        ensure_probed(store, runtime)

    def _refused(self, before: Mapping[str, Any], *, is_same: bool) -> IllegalState:
        known, ending = before.get("backup", {}), ""
        what = f"a backup of {known.get('of')} {known.get('name')}".rstrip()
        if before["format"] == COPY_FORMAT:
            what = f"an incomplete {what[2:]}"
        elif not known:
            what = "a root"
        elif RESTORED in before:
            what += " that was restored since"
        elif is_same:
            what, ending = "a complete backup", " To bring this one up to date, pass update=True."
        return IllegalState(
            f"{self._store.url} holds {what}, so it cannot take this backup; use a folder that is "
            f"empty or does not exist.{ending}"
        )

    def begin_update(self, now_ms: int) -> None:
        """Say that this run brings the finished copy up to date; it stays open to all."""
        self._backup = {**self._backup, "updating_ms": now_ms}
        self._write_marker(MARKER_FORMAT)

    @property
    def backup_id(self) -> str:
        """The id of the backup, the same in all runs."""
        return str(self._backup["id"])

    def check_claimed(self) -> None:
        """Raise TooBusy if another run has claimed the target since this one did."""
        found = read_record(self._store) or {}
        if found.get("backup", {}).get("run") != self._backup["run"]:
            raise TooBusy(
                f"another run has taken over the backup to {self._store.url}; wait until that run "
                "has ended, or repeat this one then."
            )

    def remove_leftovers(self, tables: Collection[str]) -> None:
        """Delete what earlier runs copied and this one did not: it is gone from the source.

        ``tables`` are the paths that this run copied. Never call it after :meth:`finish`: whoever
        opens the root may write to it. Costs nothing if no run came before.
        """
        if not self._is_continued:
            return
        kept = *(f"{path}/" for path in tables), f"{PROBE_FOLDER}/"
        keys = (entry.key for entry in self._store.list(""))
        own = (MARKER_KEY, CLOCK_KEY)
        self._store.delete(key for key in keys if key not in own and not key.startswith(kept))

    def finish(self, now_ms: int) -> None:
        """Mark the target as a root that may be opened."""
        self._backup = {**self._backup, "finished_ms": now_ms}
        self._backup.pop("updating_ms", None)
        self._write_marker(MARKER_FORMAT)

    def _check_empty(self) -> None:
        folders = [name for name in self._store.folders("") if name != PROBE_FOLDER]
        if folders or self._store.list(""):
            raise IllegalState(
                f"{self._store.url} is not empty, so it cannot take a backup; use a folder that is "
                "empty or does not exist."
            )

    def _write_marker(self, marker_format: int) -> None:
        record = read_record(self._store) or {}
        marker = encode({**record, "format": marker_format, "backup": self._backup})
        self._store.put(MARKER_KEY, marker)


def check_apart(source: Store, target: Store) -> None:
    """Raise InvalidInput if one of the stores is inside the other."""
    a, b = (_address(store) for store in (source, target))
    if a.startswith(b) or b.startswith(a):
        raise InvalidInput(
            f"{target.url} and {source.url} overlap; use a target outside of the root."
        )


def _address(store: Store) -> str:
    scheme, _, path = store.url.partition("://")
    if scheme == "file":
        path = os.path.realpath(path)
    return f"{scheme}://{path.rstrip('/')}/"
