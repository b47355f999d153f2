"""A reader group in storage: the path of its Delta table, its state, and its streams."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from weakref import WeakValueDictionary

from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.log.lost_log import check_not_lost
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.staging_folder import version_folder
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.tables.scopes import GROUPS_FOLDER
from pravega_spark.engine.tables.synchronizer import Synchronizer
from pravega_spark.names import split_group
from pravega_spark.process_locks import new_lock
from pravega_spark.reader_groups.group_codec import GroupCodec
from pravega_spark.reader_groups.group_state import GroupState

logger = own_logger(__name__)

Streams = Callable[[str], StreamLog]
"""Opens a stream by its name; the stream need not exist."""


def group_path(group: str) -> str:
    """Return the path of a group's table; raise InvalidName for an invalid group name."""
    scope, name = split_group(group)
    return f"{scope}/{GROUPS_FOLDER}/{name}"


def check_has_log(log: Log, group: str) -> None:
    """Raise CorruptLog if a group has lost its log: parts exist that only a group has.

    A creation stages nothing but rows for version 0 before its first commit.
    """
    path = group_path(group)
    check_not_lost(
        log,
        path,
        f"reader group {group}",
        f"Restore {path} from a copy; or delete that folder, and the group begins again at its "
        "configured start.",
        counts=lambda entry: not entry.key.startswith(f"{path}/data/{version_folder(0)}/"),
    )


class _OpenStates:
    """The states of groups that this process uses, by store and path; a forked child has none.

    All readers of a group in a process share one copy. It is kept while anybody uses it.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._used = WeakValueDictionary[tuple[Store, str], Synchronizer[GroupState]]()

    def get(self, store: Store, path: str) -> Synchronizer[GroupState]:
        """Return the open state, or open it; also if the open one's folder was lost or replaced."""
        key = store, path
        known = self._used.get(key)
        if known is not None and not known.table.log.is_lost():
            return known
        with self._lock:
            found = self._used.get(key)
            if found is known or found is None:
                found = self._used[key] = _open(store, path, SYSTEM)
            return found


_open_states = _OpenStates()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_states.reset)


def open_group_state(
    store: Store, group: str, runtime: Runtime = SYSTEM
) -> Synchronizer[GroupState]:
    """Return this process's copy of the state of a group, which need not exist.

    With another runtime than the system's, a new one.
    """
    path = group_path(group)
    return _open_states.get(store, path) if runtime is SYSTEM else _open(store, path, runtime)


def _open(store: Store, path: str, runtime: Runtime) -> Synchronizer[GroupState]:
    sync = Synchronizer(store, path, GroupCodec(), runtime, _log_checkpoint)
    sync.table.log.watch_identity()
    return sync


def _log_checkpoint(before: GroupState, after: GroupState) -> None:
    """Log the checkpoint that a change completed; the many automatic ones at DEBUG."""
    last, known = after.last_checkpoint, before.last_checkpoint
    if last is None or (known is not None and known.number >= last.number):
        return
    level = logging.DEBUG if last.automatic else logging.INFO
    logger.log(
        level,
        "completed checkpoint %s of reader group %s, generation %d",
        last.name,
        after.group,
        after.generation,
        extra=log_fields("checkpoint", group=after.group, checkpoint=last.name),
    )
