"""A reader group in storage: the path of its Delta table, its state, and its streams."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.tables.scopes import GROUPS_FOLDER
from pravega_spark.engine.tables.synchronizer import Synchronizer
from pravega_spark.names import split_group
from pravega_spark.reader_groups.group_codec import GroupCodec
from pravega_spark.reader_groups.group_state import GroupState

logger = own_logger(__name__)

Streams = Callable[[str], StreamLog]
"""Opens a stream by its name; the stream need not exist."""


def group_path(group: str) -> str:
    """Return the path of a group's table; raise InvalidName for an invalid group name."""
    scope, name = split_group(group)
    return f"{scope}/{GROUPS_FOLDER}/{name}"


def open_group_state(
    store: Store, group: str, runtime: Runtime = SYSTEM
) -> Synchronizer[GroupState]:
    """Open the state of a group, which need not exist; each reader opens its own copy."""
    sync = Synchronizer(store, group_path(group), GroupCodec(), runtime, _log_checkpoint)
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
