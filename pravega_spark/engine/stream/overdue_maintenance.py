"""Which maintenance that a stream needs has not run for a while, as texts for people."""

from __future__ import annotations

from pravega_spark.config.descriptions import MaintenanceKind
from pravega_spark.config.policies import ScalingType
from pravega_spark.engine.state.maintenance_table import (
    intervals_ms,
    open_maintenance,
    overdue_text,
)
from pravega_spark.engine.stream.configuration import read_sources
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import Damaged
from pravega_spark.values.names import split_log


def overdue_maintenance(stream: StreamLog, view: StreamView) -> dict[MaintenanceKind, str]:
    """Return a text such as ``retention has not run for 2.0 days`` for each overdue kind.

    Retention is needed by a policy, scaling by one that follows the load, the sweep of transactions
    by open ones. Reads the record and the settings of the root; nothing if no kind is needed.
    """
    since_ms = _needed_since_ms(view)
    if not since_ms:
        return {}
    record = open_maintenance(stream.store, stream.runtime)
    try:
        entries, now_ms = record.entries(), record.about_now_ms()
    except Damaged:  # the record decides nothing, so nothing fails without it
        return {}
    intervals = intervals_ms(read_sources(stream).of_root())
    scope, _ = split_log(stream.name)
    texts = {
        kind: overdue_text(
            entries, kind, scope, since_ms=time_ms, now_ms=now_ms, interval_ms=intervals[kind]
        )
        for kind, time_ms in since_ms.items()
    }
    return {kind: text for kind, text in texts.items() if text is not None}


def _needed_since_ms(view: StreamView) -> dict[MaintenanceKind, int]:
    """Return the kinds that the stream needs, each with a time since which it does."""
    record, found = view.record, {}
    if record.configuration.retention is not None:
        found[MaintenanceKind.RETENTION] = record.created_ms
    if record.configuration.scaling.type is not ScalingType.FIXED:
        found[MaintenanceKind.SCALING] = record.created_ms
    if view.transactions:
        begun = (opened.created_ms for opened in view.transactions.values())
        found[MaintenanceKind.TRANSACTIONS] = min(begun)
    return found
