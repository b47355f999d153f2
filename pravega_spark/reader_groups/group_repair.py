"""Repair of reader groups whose creation, reset or deletion was left half made."""

from __future__ import annotations

import logging

from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.errors import PravegaSparkError
from pravega_spark.reader_groups.change_announcements import ChangeAnnouncements
from pravega_spark.reader_groups.group_lifecycle import GroupLifecycle
from pravega_spark.reader_groups.group_table import Streams

logger = logging.getLogger(__name__)


def repair_group(store: Store, group: str, streams: Streams, runtime: Runtime) -> str | None:
    """Finish a half-made change of a group, if any; return the error if that fails."""
    try:
        GroupLifecycle(store, group, streams, runtime).repair()
    except PravegaSparkError as error:
        logger.warning("failed to repair reader group %s", group, exc_info=True)
        return f"{type(error).__name__}: {error}"
    return None


def repair_changing_groups(store: Store, streams: Streams, runtime: Runtime) -> None:
    """Finish the announced changes of all groups under a root."""
    announcements = ChangeAnnouncements(store, runtime)
    announcements.repair(lambda group: repair_group(store, group, streams, runtime))
