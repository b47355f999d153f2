"""Finish what killed processes left half made of reader groups."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import PravegaSparkError
from pravega_spark.reader_groups.changing_groups import ChangingGroups
from pravega_spark.reader_groups.reader_group import ReaderGroup

logger = logging.getLogger(__name__)

OpenStream = Callable[[str], StreamLog]


def repair_group(store: Store, group: str, streams: OpenStream, runtime: Runtime) -> str | None:
    """Finish the half-made change of a group, if any; return the error if that fails."""
    try:
        ReaderGroup(store, group, streams, runtime).settle()
    except PravegaSparkError as error:
        logger.warning("failed to repair reader group %s", group, exc_info=True)
        return f"{type(error).__name__}: {error}"
    return None


def repair_changing_groups(store: Store, streams: OpenStream, runtime: Runtime) -> None:
    """Finish the announced changes of groups whose process died."""
    ChangingGroups(store, runtime).tend(lambda group: repair_group(store, group, streams, runtime))
