"""A write of a frame that tasks stage and the driver commits, without the data source."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pravega_spark.spark.settings import call_options, write_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pravega_spark.spark.versions import (
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )
    from pravega_spark.stream import Stream

_MESSAGE = pa.schema([("message", pa.binary())])


def write_frame(
    frame: DataFrame,
    stream: str | Stream | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    txn_app_id: str | None = None,
    txn_version: int | None = None,
    **options: Any,
) -> None:
    """Append a batch frame to a stream in one commit, on every Spark with ``mapInArrow``.

    Columns, options and rules are those of ``frame.write.format("pravega")``, and so are the code
    that stages the rows in tasks and the driver's commit. With ``txn_app_id`` and ``txn_version``
    the write takes effect once, however often it is repeated: in ``foreachBatch``, and in the
    function of :func:`for_each_range`, give it the number of the batch. A write whose number the
    stream has is skipped with a warning, whatever its rows: the number belongs to the rows.

    Raises InvalidOption for unusable options; BatchConflict for two frames of other rows under one
    number in one call of such a function, for a number of another query or loop, and for a range
    or a batch that ends elsewhere; and what a batch write raises. An error of rows is found in a
    task, and arrives as PySpark's PythonException, with its name and text.
    """
    from pravega_spark.spark.write.writers import batch_writer

    given = call_options(stream, root, options, txn_app_id=txn_app_id, txn_version=txn_version)
    settings = write_settings(given)
    writer = batch_writer(settings, frame.schema)
    writer.commit(_staged(frame, writer))


def sink_batch(options: Mapping[str, str], frame: DataFrame, number: int) -> None:
    """Write a micro-batch as the sink ``format("pravega")`` does, in a query's ``foreachBatch``.

    It has the identity of the sink's batch, so a query may go from one to the other.
    """
    from pravega_spark.spark.write.writers import stream_writer

    writer = stream_writer(write_settings(call_options(None, None, options)), frame.schema)
    writer.commit(_staged(frame, writer), number)


def _staged(
    frame: DataFrame, writer: DataSourceArrowWriter | DataSourceStreamArrowWriter
) -> list[WriterCommitMessage | None]:
    """Stage a frame by a writer, in tasks; return their messages in the order of the partitions."""
    from pravega_spark.spark.write.task_run import as_run, given_run

    run, names = given_run(), frame.columns

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        named = (pa.RecordBatch.from_arrays(batch.columns, names=names) for batch in batches)
        with as_run(run):
            message = writer.write(named)
        yield pa.RecordBatch.from_pylist([{"message": pickle.dumps(message)}], schema=_MESSAGE)

    # mapInArrow finds columns by their names, and takes a dot in one for the field of a struct.
    numbered = frame.toDF(*(f"c{number}" for number in range(len(names))))
    rows = numbered.mapInArrow(stage, "message binary").collect()
    return [pickle.loads(row[0]) for row in rows]
