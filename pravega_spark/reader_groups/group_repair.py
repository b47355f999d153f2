"""Repair of reader groups: half-made changes, and subscriptions of groups that were removed."""

from __future__ import annotations

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.subscribers import listed, unsubscribe
from pravega_spark.errors import PravegaSparkError
from pravega_spark.names import is_group
from pravega_spark.reader_groups.change_announcements import ChangeAnnouncements
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.group_lifecycle import GroupLifecycle
from pravega_spark.reader_groups.group_table import Streams

logger = own_logger(__name__)

_SILENT_MS = 86_400_000
"""Only the groups of subscribers that published nothing for this long are looked up."""


def repair_group(store: Store, group: str, streams: Streams, runtime: Runtime) -> str | None:
    """Finish a half-made change of a group, if any; return the error if that fails."""
    try:
        GroupLifecycle(store, group, streams, runtime).repair()
    except PravegaSparkError as error:
        reason = f"{type(error).__name__}: {error}"
        logger.warning(
            "failed to repair reader group %s: %s",
            group,
            " ".join(reason.split()),
            extra=log_fields("repair reader group", group=group),
        )
        logger.debug(
            "failed to repair reader group %s",
            group,
            exc_info=True,
            extra=log_fields("repair reader group", group=group),
        )
        return reason
    return None


def repair_changing_groups(store: Store, streams: Streams, runtime: Runtime) -> None:
    """Finish the announced changes of all groups under a root."""
    announcements = ChangeAnnouncements(store, runtime)
    announcements.repair(lambda group: repair_group(store, group, streams, runtime))


def release_absent_groups(stream: StreamLog, streams: Streams) -> None:
    """Unsubscribe groups that the root no longer has, so that their data can be truncated.

    These were removed by other means than ``delete_reader_group``: the root has neither a row of
    the group in its scope nor a log of it. The group is recorded as deleted before the stream
    unsubscribes it. A concurrent creation of the name then begins in a later generation.
    Plain subscribers are of no group and stay.
    """
    view = stream.view()
    silent_since_ms = stream.now_ms() - _SILENT_MS
    for found in listed(view):
        if not is_group(found.name):
            continue
        if max(found.since_ms, found.published_ms or 0) > silent_since_ms:
            continue
        group = GroupLifecycle(stream.store, found.name, streams, stream.runtime)
        ended = group.end_absent(found.generation + 1, ReaderGroupConfiguration([stream.name]))
        if ended is not None:
            unsubscribe(stream, found.name, ended.generation, life=view.life)
            logger.warning(
                "unsubscribed reader group %s from %s: the root no longer has the group",
                found.name,
                stream.name,
                extra=log_fields("unsubscribe", stream.name, view.version, group=found.name),
            )
