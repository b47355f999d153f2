"""What this process has done, one line for each commit of its own: what an operator looks for.

The lines say what the table's history says: operation, table and version, and the cause in the
operation's parameters. What writers and readers do all the time is told at DEBUG.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from pravega_spark.engine.log.actions import RESTORE, Body, to_json

logger = logging.getLogger(__name__)

NEWS: Final = frozenset(
    {
        "CREATE SCOPE",
        "FENCE SCOPE",
        "DELETE SCOPE",
        "CREATE STREAM",
        "UPDATE STREAM",
        "BEGIN SEAL STREAM",
        "SEAL STREAM",
        "DELETE STREAM",
        "SCALE STREAM",
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
        "DELETE READER GROUP",
        "JOIN",
        "LEAVE",
        "READER OFFLINE",
        "TAKE OVER",
        "CANCEL CHECKPOINTS",
    }
)
"""The operations that are told at INFO."""
VALUE_LENGTH = 200
"""A parameter that is longer, such as a cut of many segments, is cut off there."""


def log_commit(where: str, version: int, body: Body) -> None:
    """Log a commit that this process has made."""
    level = logging.INFO if body.operation in NEWS else logging.DEBUG
    if not logger.isEnabledFor(level):
        return
    said = {**body.parameters, **body.metrics}
    if body.removes and not body.adds:  # else they were replaced, as a state's rows are
        said["removedBytes"] = sum(remove.size for remove in body.removes)
    parts = [f"{name}={short(value)}" for name, value in said.items() if value not in _NOTHING]
    details = f": {', '.join(parts)}" if parts else ""
    logger.log(level, "%s of %s, version %d%s", body.operation, where, version, details)


_NOTHING: Final[tuple[object, ...]] = (None, "", [], {}, 0)


def short(value: Any) -> str:
    """Return a value as text, cut off where it is longer than VALUE_LENGTH."""
    text = value if isinstance(value, str) else to_json(value)
    return text if len(text) <= VALUE_LENGTH else f"{text[:VALUE_LENGTH]}..."
