"""Runs a job that is one streaming query: starts Spark, reports batches, stops on signals.

The last line of the output is one JSON object. The exit status is 0 if the query ended or a signal
stopped one that keeps running, 1 if it failed or something is not installed, 2 for unusable input.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pravega_spark.errors import InvalidInput, NotFound
from pravega_spark.jobs.job_runner import errors_of_spark, run_job
from pravega_spark.jobs.launcher_stderr import complain
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.maintenance.rounds import INTERRUPTED
from pravega_spark.primitives.printable import printable_lines
from pravega_spark.spark.jars import kafka_package, start_with_delta
from pravega_spark.values.units import count_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_OWN_ERROR = re.compile(r"pravega_spark\.errors\.\w+: (.+)")
"""An error of a task or of the driver's Python process, in Spark's text of it."""
_MISSING = ("DATA_SOURCE_NOT_FOUND", "STREAM_FAILED_TO_FIND_DATA_SOURCE")
_FILE = re.compile(r"\[FAILED_READ_FILE\S*\] (Encountered error while reading file \S+)")
_ROW = re.compile(r"\[MALFORMED_RECORD_IN_PARSING\S*\] (Malformed records .+?)\.\s+Parse Mode")
_HEADER = re.compile(r"CSV header does not conform to the schema\.\s+(.+?CSV file: \S+)", re.DOTALL)
_WIDTH = re.compile(r"Number of column in CSV header is not equal.+?CSV file: \S+", re.DOTALL)
_OF_A_QUERY = re.compile(r"\[STREAM_FAILED\] Query \[.+?\] terminated with exception: ")
_WAYS_ON = {
    "column headers is not empty": "the job leaves them out with --drop-headers, and keeps them "
    "as a column with --typed",
    "option nullValues": "for the job that is --null-values",
    "option keyEncoding": "for the job that is --key-encoding percent, or --key 'hex(key)'",
    "of the option scope": "for the job that is --scope; import a topic whose name is not a "
    "valid stream name by itself, into --stream",
    "option failOnDataLoss": "for the job that is --option failOnDataLoss=false",
    "UnknownTopicOrPartitionException": "a topic does not exist: create it, or correct --topics",
    "Wrong basePath": "the checkpoint is of an import from another folder: move the files back "
    "there, and name it by --path; or take a new checkpoint, which reads all files again",
}
"""What the job adds to an error that names an option of the data source, or no name at all."""


def text_of(error: Exception, prog: str, kind: str, what: str) -> str:
    """Return what the user needs of an error of Spark, or of this package.

    ``kind`` is the format that the job reads or writes, and ``what`` says what it copies.
    """
    text = str(error).strip()
    if f"data source: {kind}" in text or any(condition in text for condition in _MISSING):
        way_on = _start_with(kind)
        if way_on is not None:
            return f"Spark has no format {kind}: {way_on}."
    if "INVALID_UTF8_STRING" in text:
        return f"{_not_a_text(prog)} ({text.splitlines()[0]})"
    found = _misfit(text)
    if found is not None:
        return found
    own = _OWN_ERROR.findall(text)
    shown = str(own[-1]) if own else _cause(text)
    ways = [way for cause, way in _WAYS_ON.items() if cause in shown]
    return " ".join([shown, *(f"Copying {what}, {way}." for way in ways)])


def _start_with(kind: str) -> str | None:
    """Return how a Spark gets a format that comes as a package; others are part of Spark."""
    from pravega_spark.spark.versions import spark_release

    if kind == "delta":
        return start_with_delta(spark_release())
    if kind == "kafka":
        return f"start Spark with --packages {kafka_package(spark_release())}"
    return None


def _cause(text: str) -> str:
    """Return Spark's text of an error without the query, its plan and the stack."""
    first = text.partition("\n\n")[0].partition("\n=== Streaming Query ===")[0]
    return _OF_A_QUERY.sub("", first).strip()


def _not_a_text(prog: str) -> str:
    if prog == "export_stream":
        return "an event is not text: use --event-as base64."
    return "a key is not UTF-8, and a routing key is text: use --key, such as --key 'hex(key)'."


def _misfit(text: str) -> str | None:
    """Return what to do about a file whose rows or header are not those of the schema."""
    header = _HEADER.search(text) or _WIDTH.search(text)
    if header is not None:
        found = " ".join(header[header.lastindex or 0].split())
        return (
            f"the header of a file is not that of the others, or of --schema: {found}. Correct "
            "the file; or --option enforceSchema=true, which takes columns by their place."
        )
    row = _ROW.search(text)
    if row is None:
        return None
    file = _FILE.search(text)
    return (
        f"a row does not fit the columns of its file: {row[1]}{f'; {file[1]}' if file else ''}. "
        "Correct the file, or give --schema; or --option mode=PERMISSIVE, which turns values that "
        "do not fit into null, and drops surplus fields of a row."
    )


REQUIRED = ("pyspark",)
SHOWN_ROWS = 5
"""Rows that a dry run shows."""
WATCH_SECONDS = 60
"""Pause between two looks at a source whose rows may get lost."""
_LOOK_SECONDS = 1


@dataclass(frozen=True)
class Copy:
    """What a job copies; its frames are made when Spark runs.

    ``preview`` returns a batch frame with the rows as they would be written, ``writer`` the query.
    """

    kind: str
    what: str
    preview: Callable[[SparkSession], DataFrame]
    writer: Callable[[SparkSession], DataStreamWriter]
    check: Callable[[], object] = lambda: None
    """Raises InvalidInput or NotFound for names that are not there, before Spark starts."""
    watch: Callable[[SparkSession], object] = lambda spark: None
    """Raises InvalidInput for a source that has lost rows; called at the start and every minute."""


@dataclass
class _Sums:
    """What the query did, from its progress reports."""

    rows: int = 0
    batches: int = 0
    last_batch: int = -1
    failed: int = 0

    def add(self, progress: Mapping[str, Any]) -> str | None:
        """Count a batch; return its line, or None if it was counted or has no rows."""
        number, rows = int(progress["batchId"]), int(progress["numInputRows"])
        if number <= self.last_batch or not rows:
            return None
        self.last_batch, self.batches, self.rows = number, self.batches + 1, self.rows + rows
        seconds = progress["durationMs"]["triggerExecution"] / 1_000
        done = f"batch {number}: {count_text(rows, 'row')} in {seconds:.1f} s"
        line = f"{datetime.now():%H:%M:%S} {done}"
        behind = _behind(progress)
        return line if behind is None else f"{line}, {behind:,} behind"


def run_copy(prog: str, arguments: SimpleNamespace, copy: Copy) -> int:
    """Copy to the end of the source, or with ``--interval`` until a signal; return the status."""
    work = partial(copy_rows, prog, arguments, copy)
    return run_job(prog, REQUIRED, copy.check, work, copy.kind)


def copy_rows(
    prog: str,
    arguments: SimpleNamespace,
    copy: Copy,
    spark: SparkSession | None,
    stop: StopSignal | None = None,
) -> int:
    """Copy in a running Spark session, and print the last line; return the exit status.

    Without a session a signal has stopped the job before it began.
    """
    stop = stop or StopSignal()
    started, sums = time.monotonic(), _Sums()
    has_ended = False
    try:
        if spark is not None and not stop.is_set:
            if arguments.dry_run:
                _show(copy.preview(spark))
                has_ended = True
            else:
                copy.watch(spark)
                query = copy.writer(spark).start()
                has_ended = _follow(query, sums, stop, partial(copy.watch, spark))
    except (InvalidInput, NotFound) as error:
        complain(prog, error)
        return 2
    except errors_of_spark() as error:
        if not stop.is_set:
            sums.failed = 1
            complain(prog, text_of(error, prog, copy.kind, copy.what))
    counts = {"rows": sums.rows, "batches": sums.batches, "failed": sums.failed}
    seconds = round(time.monotonic() - started, 3)
    record = {**counts, "dry_run": arguments.dry_run, "copied": copy.what, "seconds": seconds}
    print(json.dumps(record), flush=True)
    if sums.failed:
        return 1
    return 0 if has_ended or arguments.interval is not None else INTERRUPTED


def _show(rows: DataFrame) -> None:
    """Print the first rows as Spark shows them; Spark escapes line breaks alone."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        rows.show(SHOWN_ROWS, truncate=60)
    print(printable_lines(text.getvalue()), end="")


def _follow(
    query: StreamingQuery, sums: _Sums, stop: StopSignal, watch: Callable[[], object]
) -> bool:
    """Print each batch until the query has ended, and return True; False if it was stopped."""
    watched = time.monotonic()
    while query.isActive and not stop.is_set:
        query.awaitTermination(_LOOK_SECONDS)
        _print_new(query, sums)
        if time.monotonic() - watched > WATCH_SECONDS:
            watched = time.monotonic()
            try:
                watch()
            except Exception:
                query.stop()
                raise
    is_stopped = query.isActive and stop.is_set
    if is_stopped:
        query.stop()
    _print_new(query, sums)
    failure = query.exception()
    if failure is not None and not stop.is_set:
        raise failure
    return not is_stopped and failure is None


def _print_new(query: StreamingQuery, sums: _Sums) -> None:
    from pravega_spark.spark.versions import progress_fields

    for progress in query.recentProgress:
        line = sums.add(progress_fields(progress))
        if line is not None:
            print(line, flush=True)


def _behind(progress: Mapping[str, Any]) -> int | None:
    """Return how many rows a Kafka source is behind in its furthest partition, if it says so."""
    for source in progress["sources"]:
        text = (source.get("metrics") or {}).get("maxOffsetsBehindLatest")
        if text is not None:
            return int(text)
    return None
