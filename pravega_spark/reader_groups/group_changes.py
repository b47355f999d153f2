"""What an operator looks for in the log of a process that changed a group's state."""

from __future__ import annotations

import logging

from pravega_spark.reader_groups.group_state import GroupState

logger = logging.getLogger(__name__)


def log_changes(before: GroupState, after: GroupState) -> None:
    """Log the checkpoint that a change has completed; automatic ones, which are many, at DEBUG."""
    last, known = after.last, before.last
    if last is None or (known is not None and known.number >= last.number):
        return
    level = logging.DEBUG if last.automatic else logging.INFO
    logger.log(
        level,
        "reader group %s, generation %d: checkpoint %s is complete",
        after.group,
        after.generation,
        last.name,
    )
