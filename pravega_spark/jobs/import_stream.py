r"""Copy Kafka topics, a Delta table, or files into a stream, each row once.

What it does:
  Reads the source with Spark and appends its rows to a stream, which it creates if it is missing.
  Keys, times and the order of the rows of a key are kept. Kafka: key, value and timestamp; several
  topics go to one stream, or with --scope each to the stream of its name. Delta, Parquet, CSV: each
  row as a JSON object, or by --event; with --typed the columns. JSON lines: the lines as they are.
  Files that an export wrote become the events that they were. docs/spark.md has the rules.

When to run it:
  Once to move data, or with --interval while old producers still write. Each run continues where
  the last one ended, by its --checkpoint; a run that is killed loses and doubles nothing.

Examples:
  python -m pravega_spark.jobs.import_stream --root /data --stream shop/orders --from kafka \
      --servers localhost:9092 --topics orders --dry-run
  python -m pravega_spark.jobs.import_stream --root /data --scope shop --from kafka \
      --servers localhost:9092 --topics orders,returns --checkpoint /checkpoints/import
  python -m pravega_spark.jobs.import_stream --root /data --stream nyc/flights --from csv \
      --path /in --option header=true --key carrier --checkpoint /checkpoints/import
  python -m pravega_spark.jobs.import_stream --root /data --stream nyc/log --from json \
      --path /in --key user --checkpoint /checkpoints/import --interval 10s

What it never does:
  It never changes what it reads, and never commits offsets to Kafka. It drops no row: what a stream
  cannot hold, such as headers or a row without a value, ends the run with an error that says how.
  So does a file whose rows or header do not fit its columns; --option mode=PERMISSIVE and
  --option enforceSchema=true read such files of CSV as Spark does by itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pravega_spark.errors import InvalidInput
from pravega_spark.jobs.checkpoint_files import changed_files, changed_text
from pravega_spark.jobs.copy_command_line import (
    FILES,
    FORMATS,
    KAFKA,
    check_copy,
    count,
    make_copy_parser,
    stream_name,
)
from pravega_spark.jobs.copy_runner import Copy, run_copy
from pravega_spark.jobs.import_sources import ORDER, in_order, kafka_frame, table_frame
from pravega_spark.jobs.launcher_stderr import complain
from pravega_spark.manager import StreamManager
from pravega_spark.names import is_name
from pravega_spark.spark.write.task_run import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PROG = "import_stream"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status."""
    arguments = parse(argv)
    return run_copy(PROG, arguments, import_of(arguments))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; an error in it exits with 2."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    arguments.told = set()
    if arguments.scope is not None and not is_name(arguments.scope):
        parser.error(f"--scope: {arguments.scope!r} is no name of a scope.")
    check_copy(parser, arguments, arguments.source)
    _check_typed(parser, arguments)
    is_kafka = arguments.source == KAFKA
    named = [n for n in ("topics", "topic_pattern") if getattr(arguments, n) is not None]
    if is_kafka and len(named) != 1:
        parser.error("kafka needs either --topics or --topic-pattern.")
    if not is_kafka and (named or arguments.scope is not None):
        parser.error("--topics, --topic-pattern and --scope are for Kafka; use --stream.")
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = make_copy_parser(__doc__ or "", PROG)
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--stream", type=stream_name, metavar="SCOPE/STREAM", help="the stream to write"
    )
    target.add_argument(
        "--scope", help="Kafka: write each topic to the stream of its name in this scope"
    )
    parser.add_argument(
        "--from", dest="source", required=True, choices=FORMATS, help="what is read"
    )
    parser.add_argument("--topics", metavar="NAMES", help="Kafka's topics, separated by commas")
    parser.add_argument(
        "--topic-pattern", metavar="REGEX", help="a regular expression of topics instead"
    )
    parser.add_argument("--key", metavar="SQL", help="routing key (default: Kafka's key, or none)")
    parser.add_argument(
        "--event", metavar="SQL", help="event, text or binary (default: the value, line or row)"
    )
    parser.add_argument(
        "--typed",
        action="store_true",
        help="write to a typed stream: the columns of the table or files, or Kafka's payload and "
        "headers; a new stream takes their schema",
    )
    parser.add_argument("--time", metavar="SQL", help="timestamp (default: Kafka's, or now)")
    parser.add_argument(
        "--order-by",
        metavar="SQL",
        help="order of the rows of a key in a batch of files (default: that of the files by time "
        "and name, and of the rows in each)",
    )
    parser.add_argument("--schema", metavar="DDL", help="schema of files (default: of those there)")
    parser.add_argument(
        "--segments", type=count, default=1, help="segments of a new stream (default: 1)"
    )
    parser.add_argument("--max-rows", type=count, help="Kafka: at most this many rows in a batch")
    _add_rules(parser)
    return parser


def _add_rules(parser: argparse.ArgumentParser) -> None:
    """Add what decides about rows that a stream cannot hold, and about restored streams."""
    parser.add_argument(
        "--null-values",
        choices=("fail", "skip", "empty"),
        default="fail",
        help="what becomes of a row without a value, such as a tombstone (default: fail)",
    )
    parser.add_argument(
        "--changed-files",
        choices=("fail", "skip"),
        default="fail",
        help="what becomes of a file that has changed after it was read, such as by rows that were "
        "appended: skip leaves out what is new in it, and says so (default: fail)",
    )
    parser.add_argument(
        "--drop-headers", action="store_true", help="leave out Kafka's headers (default: fail)"
    )
    parser.add_argument(
        "--restored-lives",
        metavar="LIVES",
        help="lives of restored streams, separated by commas, as the error names them, that lack "
        "no row of this import",
    )


def _check_typed(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End with status 2 if options of a stream of bytes are given for a typed one."""
    if not arguments.typed:
        return
    if arguments.stream is None:
        parser.error("--typed is for one stream: name it by --stream.")
    if arguments.key_encoding != "utf8" or arguments.null_values != "fail":
        parser.error("--key-encoding and --null-values are for streams of bytes, not for --typed.")
    if arguments.event is not None and arguments.source != KAFKA:
        parser.error("--event is for streams of bytes: with --typed the columns are written.")


def import_of(arguments: argparse.Namespace) -> Copy:
    """Return what the job copies."""
    target = arguments.stream or f"{arguments.scope}/*"
    source = arguments.topics or arguments.topic_pattern or arguments.path
    return Copy(
        arguments.source,
        f"{arguments.source} {source} to {target}",
        partial(_preview, arguments),
        partial(_query, arguments),
        lambda: StreamManager(arguments.root),
        partial(_check_files, arguments) if arguments.source in FILES else _no_check,
    )


def _preview(arguments: argparse.Namespace, spark: SparkSession) -> DataFrame:
    read = kafka_frame if arguments.source == KAFKA else table_frame
    frame = read(spark, arguments, is_stream=False)
    shown = [name for name in frame.columns if not name.startswith(ORDER)]
    texts = {"key", "value", "payload"}
    return frame.selectExpr(*(f"CAST({n} AS STRING) AS {n}" if n in texts else n for n in shown))


def _no_check(spark: SparkSession) -> None:
    """Look at nothing: Kafka and Delta know by themselves what has changed."""


def _check_files(arguments: argparse.Namespace, spark: SparkSession) -> None:
    """Raise InvalidInput for files that have changed after they were read, or say so, once each."""
    given = arguments.path, arguments.options, arguments.checkpoint
    found = changed_files(spark, *given)
    if found and arguments.changed_files == "fail":
        raise InvalidInput(
            f"{changed_text(found)}. Write new rows to new files, and rename a file into the "
            "folder when it is complete; or leave them out with --changed-files skip."
        )
    new = [name for name in found if name not in arguments.told]
    arguments.told.update(new)
    if new:
        complain(PROG, f"{changed_text(new)}.")


def _query(arguments: argparse.Namespace, spark: SparkSession) -> DataStreamWriter:
    """Return the query, which writes a batch at most once, however often it is repeated."""
    _check_checkpoint(arguments, spark)
    options = _sink_options(arguments)
    if arguments.restored_lives is not None:
        options["restoredLives"] = arguments.restored_lives
    if arguments.source == KAFKA:
        frame = kafka_frame(spark, arguments, is_stream=True)
        writer = frame.writeStream.format("pravega").options(**options)
    else:
        frame = table_frame(spark, arguments, is_stream=True)
        # The sink finds the batch's files there, by which it knows a batch from another one.
        options["checkpointLocation"] = arguments.checkpoint
        writer = frame.writeStream.foreachBatch(partial(_write_batch, options))
    writer = writer.option("checkpointLocation", arguments.checkpoint).queryName(PROG)
    if arguments.interval is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{round(arguments.interval * 1_000)} milliseconds")


def _check_checkpoint(arguments: argparse.Namespace, spark: SparkSession) -> None:
    """Raise InvalidInput if batches were written, and the stream is not there.

    The run would go on after them, and report rows as copied that the stream never got.
    """
    from pyspark.errors import AnalysisException

    if arguments.stream is None or StreamManager(arguments.root).stream_exists(arguments.stream):
        return
    try:
        is_new = spark.read.text(f"{arguments.checkpoint}/commits").isEmpty()
    except AnalysisException:  # no such folder
        return
    if not is_new:
        raise InvalidInput(
            f"the checkpoint {arguments.checkpoint} is of an import that has written batches, and "
            f"stream {arguments.stream} does not exist: it was deleted, or the checkpoint is that "
            "of another stream. Give each import a checkpoint of its own; a new one copies from "
            "the start. To go on after those batches, create the stream first."
        )


def _sink_options(arguments: argparse.Namespace) -> dict[str, str]:
    if arguments.typed:
        return {
            "root": arguments.root,
            "stream": arguments.stream,
            "schema": "infer",
            "eventTime": "timestamp",
            "numSegments": str(arguments.segments),
        }
    options = {
        "root": arguments.root,
        "columnNames": "kafka",
        "eventTime": "timestamp",
        "keyEncoding": arguments.key_encoding,
        "nullValues": arguments.null_values,
        "numSegments": str(arguments.segments),
    }
    return options if arguments.stream is None else {**options, "stream": arguments.stream}


def _write_batch(options: dict[str, str], batch: DataFrame, number: int) -> None:
    """Write a batch of files in order, once for the id of the query, which its checkpoint keeps."""
    context: Any = batch.sparkSession.sparkContext
    identity = {"txnAppId": context.getLocalProperty(QUERY_ID), "txnVersion": str(number)}
    in_order(batch).write.format("pravega").mode("append").options(**options, **identity).save()


if __name__ == "__main__":
    sys.exit(main())
