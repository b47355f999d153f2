"""The loop over ranges, in the place of Spark's engine.

Planner, limits, groups and errors are those of the streaming source, and so is each range: the
events between two cuts, those of a key in one task and in order. The loop records where a range
ends before the range runs, and repeats it unchanged until it is done. A range that ended at another
tail the second time would lose rows under a number that the target has already.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.spark.frames.range_log import Offset, PlannedStep, RangeLog
from pravega_spark.spark.frames.reading import planned_frame, read_schema
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.read.typed_reads import check_request
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.source_offsets import decode, present
from pravega_spark.spark.write.task_run import TaskRun, as_run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = own_logger(__name__)

RangeFunction = Callable[["DataFrame", int], object]
"""Takes the events of a range and its number, as the function of ``foreachBatch`` does."""


class RangeLoop:
    """One run of a loop; its end leaves the reader group."""

    def __init__(
        self, spark: SparkSession, settings: ReadSettings, function: RangeFunction, log: RangeLog
    ) -> None:
        """Take what the loop reads and calls, and its checkpoint, which gets an id if it is new."""
        self._spark = spark
        self._settings = settings
        self._function = function
        self._log = log
        self._schema = read_schema(settings)
        self._reader = PravegaStreamReader(settings, self._schema, is_told=True)
        check_request(settings, self._schema, self._reader.since)
        self._query_id = log.query_id()
        self._start: Offset | None = None
        """Where the next range begins, once that is known: all before it is done."""

    def __enter__(self) -> RangeLoop:
        """Return the loop itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the reader group."""
        self._reader.stop()

    def run(self, available_now: bool, every: float, stop: threading.Event) -> int:
        """Run ranges until the end, or until ``stop`` is set; return their number."""
        try:
            return self._run_ranges(available_now, every, stop)
        except (Exception, KeyboardInterrupt):
            self._report_after_error()
            raise

    def _run_ranges(self, available_now: bool, every: float, stop: threading.Event) -> int:
        reader, count = self._reader, 0
        if available_now:
            reader.prepareForTriggerAvailableNow()
        progress = self._log.progress()
        number, step = progress.number, progress.planned
        start = reader.initialOffset() if progress.start is None else dict(progress.start)
        self._start = start
        is_first = number == 0 and step is None  # its end says where the loop began: "latest" moves
        while not stop.is_set():
            began = SYSTEM.monotonic()
            if step is None:
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end != start or is_first:
                    step = PlannedStep(number, end)
                    self._log.plan(step)
                    failpoint("range.planned")
                elif available_now:
                    return count
            if step is not None:
                count += self._run(step, start)
                start, number, step, is_first = dict(step.end), step.number + 1, None, False
                self._start = start
            if not available_now:
                self._rest(began + every, stop)
        self._report(start)
        return count

    def _run(self, step: PlannedStep, start: Offset) -> bool:
        """Run a range, and return True; False for one without events, which nobody is told of."""
        settings, log = self._settings, self._log
        partitions = self._reader.partitions(dict(start), dict(step.end))
        if partitions:
            frame = planned_frame(self._spark, settings, self._schema, partitions)
            run = TaskRun(self._query_id, log.run, step.number, log.location, SYSTEM.token())
            with as_run(run):
                self._function(frame, step.number)
        failpoint("range.ran")
        log.finish(step)
        failpoint("range.finished")
        fields = log_fields("read", settings.pattern or ", ".join(settings.streams))
        logger.debug("range %d is done", step.number, extra=fields)
        return bool(partitions)

    def _rest(self, until: float, stop: threading.Event) -> None:
        while not stop.is_set() and (left := until - SYSTEM.monotonic()) > 0:
            SYSTEM.wait(stop, left)

    def _report(self, start: Offset) -> None:
        """Tell the reader group where the loop stops; the next look would have done that."""
        membership = self._reader.membership
        if membership is not None and membership.has_joined:
            membership.finish_batch(present(decode(start)), last=True)

    def _report_after_error(self) -> None:
        """Tell the group of the ranges that are done; the loop's own error is raised after it."""
        group = self._settings.group
        if group is None or self._start is None:
            return
        try:
            self._report(self._start)
        except Exception as error:
            logger.warning(
                "could not tell reader group %s of the ranges that were done before the loop "
                "failed (%s); the loop tells it when it goes on",
                group,
                error,
                extra=log_fields("read", group=group),
            )
