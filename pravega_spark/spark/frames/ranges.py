"""A streaming query without the data source: a function is called for range after range."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pravega_spark.errors import InvalidInput, InvalidOption
from pravega_spark.spark.frames.range_log import RangeLog
from pravega_spark.spark.frames.reading import frame_settings
from pravega_spark.values.checks import check_flag, shown
from pravega_spark.values.units import parse_duration_ms

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pravega_spark.stream import Stream


def for_each_range(
    spark: SparkSession,
    stream: str | Stream | None,
    function: Callable[[DataFrame, int], object],
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
    go on. The position of a reader group follows the ranges that are done. A write in a thread of
    the function names the loop by the option ``checkpointLocation``.

    Raises InvalidInput for unusable arguments, IllegalState if another loop has gone on with the
    checkpoint, TruncatedData for events that are gone unread, and what a streaming query raises. An
    error of rows is found in a task, and arrives as PySpark's PythonException, with its name and
    text.
    """
    if not callable(function):
        raise InvalidInput(
            f"function must take a frame and a number, got {shown(function)}; the order of the "
            "arguments is spark, stream, function."
        )
    if stop is not None and not isinstance(stop, threading.Event):
        raise InvalidInput(f"stop is a threading.Event, which ends the loop; got {shown(stop)}.")
    for name, value in options.items():
        if name.lower() == "checkpointlocation":
            raise InvalidOption(
                f"option {name}={shown(value)} is for a write and for a query: the folder of a "
                "loop is its argument checkpoint. Remove the option."
            )
    if check_flag("available_now", available_now) and interval is not None:
        raise InvalidInput(
            f"available_now reads what is there and ends, so interval={shown(interval)} has no "
            "effect; give one of them."
        )
    every_ms = 0 if interval is None else parse_duration_ms("interval", interval)
    from pravega_spark.spark.frames.range_loop import RangeLoop

    settings = frame_settings(stream, root, options)
    loop = RangeLoop(spark, settings, function, RangeLog(checkpoint, settings.root))
    with loop:
        return loop.run(available_now, every_ms / 1_000, stop or threading.Event())
