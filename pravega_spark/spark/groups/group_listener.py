"""What Spark reports of finished batches, told to the reader groups of the queries.

A source hears of the end of a batch when Spark asks for the next one; a query that was stopped, or
that ran once, asks no more. Spark's progress events come after a batch was noted as finished, so a
listener on the driver does the rest: of the last batch, and of batches with a long pause after
them. What it misses, ``pravega-spark reader-group sync`` finds in the checkpoint folder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from pravega_spark.manager import StreamManager
from pravega_spark.spark.settings import GROUP_INTERVAL_MS
from pravega_spark.spark.source_offsets import decode, find_record, owner_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger(__name__)

Record = Mapping[str, Any]


def _ends(progress: Any) -> list[Record]:
    """Return the offsets at which a batch has ended, of queries that are in a group."""
    found = (find_record(source.endOffset) for source in progress.sources)
    return [record for record in found if record is not None and "group" in record]


def _acknowledge(record: Record) -> None:
    owner = owner_of(record)
    assert owner is not None
    assert owner.group is not None
    cuts = {name: offset.cut for name, offset in decode(record).items()}
    group = StreamManager(owner.root).reader_group(owner.group)
    group.acknowledge(owner.generation, cuts, owner.query)


class GroupListener(StreamingQueryListener):
    """Tells reader groups of finished batches; ``session()`` adds one to the sessions it makes.

    Any other session gets it by ``spark.streams.addListener(Acknowledger())``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with no query known."""
        self._clock = clock
        self._due: dict[Any, float] = {}
        self._open: dict[Any, list[Record]] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: nothing is finished yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Tell what is still to be told: no batch came after it."""
        self._tell(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Note what a batch has finished, and tell it if it is time."""
        run = event.progress.runId
        ended = _ends(event.progress)
        if not ended:
            return
        self._open[run] = ended
        if self._clock() >= self._due.get(run, 0.0):
            self._tell(run)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Tell what the last batch has finished."""
        self._tell(event.runId)
        self._due.pop(event.runId, None)

    def tell_all(self) -> None:
        """Tell what is still to be told, of all queries."""
        for run in list(self._open):
            self._tell(run)

    def _tell(self, run: Any) -> None:
        """Tell it; Spark must not suffer from what goes wrong here, and the query says it too."""
        for record in self._open.pop(run, ()):
            try:
                _acknowledge(record)
            except Exception as error:
                logger.warning("a finished batch could not be told to its reader group: %s", error)
        self._due[run] = self._clock() + GROUP_INTERVAL_MS / 1_000
