"""A listener that acknowledges finished batches of streaming queries to their reader groups.

Spark reports the end of a batch to a source only when it asks for the next one. A query that was
stopped, or that ran once, asks for no more. Spark's progress events follow after each finished
batch, so this listener on the driver acknowledges the last batch, and batches before a long pause.
``pravega-spark reader-group sync`` finds batches that it misses in the checkpoint folder.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
)

from pravega_spark.engine.log_fields import log_fields, own_logger
from pravega_spark.limits import GROUP_INTERVAL_MS
from pravega_spark.reader_groups.group_lifecycle import open_group
from pravega_spark.reader_groups.query_member import acknowledge_batch
from pravega_spark.spark.source_offsets import decode, find_record, owner_of, present

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = own_logger(__name__)

Record = Mapping[str, Any]


def _end_offsets(progress: Any) -> list[Record]:
    """Return the end offsets of a batch's sources that read as a reader group."""
    found = (find_record(source.endOffset) for source in progress.sources)
    return [record for record in found if record is not None and "group" in record]


def _acknowledge(record: Record) -> None:
    owner = owner_of(record)
    assert owner is not None
    assert owner.group is not None
    cuts = {name: offset.cut for name, offset in present(decode(record)).items()}
    group = open_group(owner.root, owner.group)
    acknowledge_batch(group, owner.generation, cuts, owner.query)


class _TextEvents(JStreamingQueryListener):
    """Takes each progress report from the JVM as one text.

    PySpark takes its fields one by one, by some hundred calls into the JVM after each micro-batch
    of each query of the session, in groups or not.
    """

    def onQueryProgress(self, jevent: Any) -> None:
        """Pass the report on."""
        self.pylistener.onQueryProgress(QueryProgressEvent.fromJson(json.loads(jevent.json())))


class GroupListener(StreamingQueryListener):
    """Acknowledges finished batches to reader groups.

    ``session()`` adds one to the sessions that it makes. Add one to any other session by
    ``spark.streams.addListener(GroupListener())``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without queries."""
        self._clock = clock
        self._due: dict[Any, float] = {}
        self._pending: dict[Any, list[Record]] = {}

    @property
    def _jlistener(self) -> Any:
        """What PySpark adds to the session's JVM, and removes."""
        if not hasattr(self, "_jlistenerobj"):
            from pyspark import SparkContext

            jvm: Any = SparkContext._jvm
            self._jlistenerobj: Any = jvm.PythonStreamingQueryListenerWrapper(_TextEvents(self))
        return self._jlistenerobj

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: no batch is finished yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Acknowledge the pending batch, which no other batch follows."""
        self._acknowledge_run(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Keep the finished batch as pending; acknowledge it if the interval is over."""
        run = event.progress.runId
        ended = _end_offsets(event.progress)
        if not ended:
            return
        self._pending[run] = ended
        if self._clock() >= self._due.get(run, 0.0):
            self._acknowledge_run(run)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Acknowledge the query's last batch."""
        self._acknowledge_run(event.runId)
        self._due.pop(event.runId, None)

    def acknowledge_all(self) -> None:
        """Acknowledge the pending batches of all queries."""
        for run in list(self._pending):
            self._acknowledge_run(run)

    def _acknowledge_run(self, run: Any) -> None:
        """Never raises into Spark; the query itself reports the same batch later."""
        for record in self._pending.pop(run, ()):
            try:
                _acknowledge(record)
            except Exception as error:
                group = str(record["group"])
                logger.warning(
                    "failed to acknowledge a batch to %s: %s",
                    group,
                    error,
                    extra=log_fields("acknowledge", group=group),
                )
        self._due[run] = self._clock() + GROUP_INTERVAL_MS / 1_000
