"""Log one line for each commit of this process, for operators, and report it to observers.

A line holds the same facts as the table's history: operation, table, version, and the operation's
parameters, which name the cause. Routine commits of writers and readers are logged at DEBUG.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from pravega_spark.engine.json_codec import to_json
from pravega_spark.engine.log.actions import RESTORE, Body
from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.engine.observers import observers

logger = own_logger(__name__)

INFO_OPERATIONS: Final = frozenset(
    {
        "CREATE SCOPE",
        "FENCE SCOPE",
        "DELETE SCOPE",
        "CREATE STREAM",
        "DRAW LIFE",
        "UPDATE STREAM",
        "BEGIN SEAL STREAM",
        "SEAL STREAM",
        "DELETE STREAM",
        "SCALE STREAM",
        "FENCE STREAM",
        "SET SETTINGS",
        "TRUNCATE STREAM",
        "SAMPLE",
        "SWEEP",
        "PIN",
        "UNPIN",
        "BACKUP",
        RESTORE,
        "OPEN WRITER",
        "ABORT TRANSACTION",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
        "CREATE READER GROUP",
        "TAKE BACK READER GROUP",
        "RESET READER GROUP",
        "UPDATE READER GROUP",
        "DELETE READER GROUP",
        "JOIN",
        "LEAVE",
        "READER OFFLINE",
        "TAKE OVER",
        "CANCEL CHECKPOINTS",
    }
)
"""The operations that are logged at INFO."""
VALUE_LENGTH = 200
"""Longer parameters, such as a cut of many segments, are truncated to this length."""


def report_lost_race(path: str) -> None:
    """Report to observers that another process committed first to the table at a path."""
    for observer in observers:
        observer.race_lost(path)


def log_commit(where: str, version: int, body: Body, path: str) -> None:
    """Log and report a commit of this process; ``path`` is that of the table below the root."""
    for observer in observers:
        observer.committed(path, body.operation)
    operations = body.operation.split(", ")  # of changes that share a commit
    level = logging.DEBUG if INFO_OPERATIONS.isdisjoint(operations) else logging.INFO
    if not logger.isEnabledFor(level):
        return
    fields = {**body.parameters, **body.metrics}
    if body.removes and not body.adds:  # with adds, the commit replaces rows of a state table
        fields["removedBytes"] = body.removed_bytes
    parts = [f"{name}={short(value)}" for name, value in fields.items() if value not in _EMPTY]
    details = f": {', '.join(parts)}" if parts else ""
    logger.log(
        level,
        "%s of %s, version %d%s",
        body.operation,
        where,
        version,
        details,
        extra=log_fields(body.operation, path, version, parameters=fields),
    )


_EMPTY: Final[tuple[object, ...]] = (None, "", [], {}, 0)


def short(value: Any) -> str:
    """Return a value as text, truncated to VALUE_LENGTH."""
    text = value if isinstance(value, str) else to_json(value)
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}..."
