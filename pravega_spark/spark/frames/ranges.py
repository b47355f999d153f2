"""The loop of a streaming query without the data source: range after range of a stream.

Planner, limits, groups and errors are those of the streaming source, and so is each range: the
events between two cuts, those of a key in one task and in order. The loop takes the place of
Spark's engine: it records where a range ends before the range runs, and repeats it unchanged until
it is done. A range that ended at another tail the second time would lose rows under a number that
the target has already.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.errors import InvalidInput
from pravega_spark.spark.frames.range_log import Offset, PlannedStep, RangeLog
from pravega_spark.spark.frames.reading import frame_settings, planned_frame, read_schema
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.read.typed_reads import check_request
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.source_offsets import decode, present
from pravega_spark.spark.write.task_run import TaskRun, as_run
from pravega_spark.values.checks import shown
from pravega_spark.values.units import parse_duration_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = own_logger(__name__)

RangeFunction = Callable[["DataFrame", int], object]
"""Takes the events of a range and its number, as the function of ``foreachBatch`` does."""


def for_each_range(
    spark: SparkSession,
    stream: str | None,
    function: RangeFunction,
    *,
    checkpoint: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    available_now: bool = False,
    interval: str | float | None = None,
    stop: threading.Event | None = None,
    **options: Any,
) -> int:
    """Call ``function(frame, number)`` for each range of a stream; return how many there were.

    It is ``readStream.format("pravega")`` with ``foreachBatch``, on every Spark with
    ``mapInArrow``: the options are those of the streaming read, with its limits and its reader
    groups, and the frame has its columns and its order. ``checkpoint`` is a folder or URL that has
    where the loop is. A range gets its number and its end there before it runs, and keeps both
    however often it is repeated after an error or a crash. So a target that knows numbers has each
    row once: ``write_frame(..., txn_app_id="app", txn_version=number)``, and a Delta table with
    ``txnAppId`` and ``txnVersion``. Any other target may have the rows of the last range twice.

    With ``available_now`` the loop ends at the tails of its beginning; otherwise it goes on, a
    range each ``interval`` (``"10 s"``; by default as soon as there is news), until ``stop`` is
    set, which ends it between two ranges. An error of the function ends it, too; call it again to
    go on. The position of a reader group follows the ranges that are done.

    Raises InvalidInput for unusable arguments, IllegalState if another loop uses the checkpoint,
    TruncatedData for events that are gone unread, and what a streaming query raises.
    """
    if not callable(function):
        raise InvalidInput(
            f"function must take a frame and a number, got {shown(function)}; the order of the "
            "arguments is spark, stream, function."
        )
    if available_now and interval is not None:
        raise InvalidInput(
            f"available_now reads what is there and ends, so interval={shown(interval)} has no "
            "effect; give one of them."
        )
    every_ms = 0 if interval is None else parse_duration_ms("interval", interval)
    settings = frame_settings(stream, root, options)
    loop = _RangeLoop(spark, settings, function, RangeLog(os.fspath(checkpoint)))
    with loop:
        return loop.run(available_now, every_ms / 1_000, stop or threading.Event())


class _RangeLoop:
    """One run of a loop; its end leaves the reader group."""

    def __init__(
        self, spark: SparkSession, settings: ReadSettings, function: RangeFunction, log: RangeLog
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._function = function
        self._log = log
        self._schema = read_schema(settings)
        self._reader = PravegaStreamReader(settings, self._schema)
        check_request(settings, self._schema, self._reader.since)
        self._query_id = log.query_id()

    def __enter__(self) -> _RangeLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.stop()

    def run(self, available_now: bool, every: float, stop: threading.Event) -> int:
        """Run ranges until the end, or until ``stop`` is set; return their number."""
        reader, count = self._reader, 0
        if available_now:
            reader.prepareForTriggerAvailableNow()
        progress = self._log.progress()
        number, step = progress.number, progress.planned
        start = reader.initialOffset() if progress.start is None else dict(progress.start)
        while not stop.is_set():
            began = SYSTEM.monotonic()
            if step is None:
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
                if end != start:
                    step = PlannedStep(number, end)
                    self._log.plan(step)
                    failpoint("range.planned")
                elif available_now:
                    return count
            if step is not None:
                self._run(step, start)
                start, number, step = dict(step.end), step.number + 1, None
                count += 1
            if not available_now:
                self._rest(began + every, stop)
        self._report(start)
        return count

    def _run(self, step: PlannedStep, start: Offset) -> None:
        reader, settings = self._reader, self._settings
        partitions = reader.partitions(dict(start), dict(step.end))
        frame = planned_frame(self._spark, settings, self._schema, partitions)
        log = self._log
        run = TaskRun(self._query_id, log.run, step.number, log.location, SYSTEM.token())
        with as_run(run):
            self._function(frame, step.number)
        failpoint("range.ran")
        log.finish(step)
        failpoint("range.finished")
        fields = log_fields("read", settings.pattern or ", ".join(settings.streams))
        logger.debug("range %d is done", step.number, extra=fields)

    def _rest(self, until: float, stop: threading.Event) -> None:
        while not stop.is_set() and (left := until - SYSTEM.monotonic()) > 0:
            SYSTEM.wait(stop, left)

    def _report(self, start: Offset) -> None:
        """Tell the reader group where the loop stops; the next look would have done that."""
        membership = self._reader.membership
        if membership is not None and membership.has_joined:
            membership.finish_batch(present(decode(start)), last=True)
