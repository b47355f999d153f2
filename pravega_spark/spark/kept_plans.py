"""Warns of a frame that is read again by what its first action planned.

Spark keeps what a Python source planned with its frame or view. ``session()`` lets each action plan
again (``native.jvm_bridge.plan_each_action``); in other sessions, and where one DataFrame is
collected twice, later actions do not see what was written since.
"""

from __future__ import annotations

from dataclasses import dataclass

from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import PravegaSparkError

logger = own_logger(__name__)

_EXECUTION = "spark.sql.execution.id"
_KNOWN_PLANS = 1_000
_first_reads: dict[str, str] = {}
"""The action that first read a plan in this process, by the plan's token; "" once it is said."""


@dataclass(frozen=True, slots=True)
class FramePlan:
    """A plan of a read of one stream or table, at a version of its log."""

    token: str
    version: int

    @staticmethod
    def new_token() -> str:
        """Return the token of a new plan."""
        return SYSTEM.token()


def warn_if_kept(plan: FramePlan | None, name: str, stream: StreamLog) -> None:
    """Log a warning if another action has read by this plan, and the log has gone on since.

    Runs in a task; it knows the actions that this worker process has seen. Costs a look at the log
    for the second action alone.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    action = None if context is None else context.getLocalProperty(_EXECUTION)
    if plan is None or not action:
        return
    first = _first_reads.setdefault(plan.token, action)
    if len(_first_reads) > _KNOWN_PLANS:
        del _first_reads[next(iter(_first_reads))]
    if first in ("", action):
        return
    try:
        snapshot = stream.newest()
    except PravegaSparkError:  # the read itself says it, if it is in its way
        return
    if snapshot is None or snapshot.version <= plan.version:
        return
    _first_reads[plan.token] = ""
    logger.warning(
        "%s is read at version %d, which the first action on this frame planned, and is at version "
        "%d now: Spark keeps the plan of a Python source. For a join with a streaming frame call "
        "load() inside foreachBatch, elsewhere for each action; or take the session from "
        "pravega_spark.session(), where each action plans again, unless it is collect() of one and "
        "the same DataFrame.",
        name,
        plan.version,
        snapshot.version,
        extra=log_fields("read", name, plan.version),
    )
