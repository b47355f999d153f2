r"""Copy a stream to a Kafka topic, a Delta table, or files, from its head or a cut on.

What it does:
  Reads the stream with Spark and writes its events: to Kafka as key and value; to Delta and
  Parquet with routing_key, event, timestamp, segment_id and offset; to CSV and JSON lines likewise,
  with the event as text. Events of a key keep their order. A Delta table and files get each event
  once. A typed stream gives its columns; to Kafka as a JSON object, or as the payload and headers
  that an import made of a topic. Spark's sink for Kafka is at-least-once: after a crash it repeats
  a part of a batch; and it writes no times.

When to run it:
  Once to move data, or with --interval to keep a copy up to date. Each run continues where the last
  one ended, by its --checkpoint. docs/spark.md has the rules of reads.

Examples:
  python -m pravega_spark.jobs.export_stream --root /data --stream shop/orders --to kafka \
      --servers localhost:9092 --topic orders --dry-run
  python -m pravega_spark.jobs.export_stream --root /data --stream shop/orders --to delta \
      --path /out/orders --checkpoint /checkpoints/export
  python -m pravega_spark.jobs.export_stream --root /data --stream shop/orders --to json \
      --path /out/lines --checkpoint /checkpoints/export --start latest --interval 10s

What it never does:
  It never changes the stream, and holds none of its events: give it a reader group by --group,
  whose subscriber keeps what is not copied yet.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pravega_spark.jobs.copy_command_line import (
    CSV,
    DELTA,
    FILES,
    FORMATS,
    JSON,
    KAFKA,
    check_copy,
    count,
    kafka_options,
    make_copy_parser,
    stream_name,
)
from pravega_spark.jobs.copy_runner import Copy, run_copy
from pravega_spark.jobs.export_targets import (
    begin_files_again,
    check_files,
    check_table,
    emptied_text,
)
from pravega_spark.jobs.launcher_stderr import complain
from pravega_spark.manager import StreamManager
from pravega_spark.model import StreamInfo
from pravega_spark.spark.lossless_json import JSON_OPTIONS, TIME_OPTIONS, json_fields, row_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PROG = "export_stream"
_TEXTS = (CSV, JSON)
"""Formats without a type for bytes."""
_SPACES = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
_LOSSLESS = {CSV: {**TIME_OPTIONS, **_SPACES}, JSON: JSON_OPTIONS}
"""Options with which text loses nothing; the user's own come after them."""
_PLACE = ("timestamp", "segment_id", "offset")
_EVENTS = {
    "binary": "event",
    "text": "validate_utf8(CAST(event AS STRING)) AS event",
    "base64": "base64(event) AS event",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status."""
    arguments = parse(argv)
    return run_copy(PROG, arguments, export_of(arguments))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; an error in it exits with 2."""
    parser = make_copy_parser(__doc__ or "", PROG)
    parser.add_argument(
        "--stream",
        type=stream_name,
        required=True,
        metavar="SCOPE/STREAM",
        help="the stream to read",
    )
    parser.add_argument("--to", dest="target", required=True, choices=FORMATS, help="what to write")
    parser.add_argument("--topic", help="Kafka's topic")
    parser.add_argument(
        "--start",
        default="earliest",
        metavar="CUT",
        help="where the first run begins: earliest, latest, a saved cut, or the text of a cut "
        "(default: earliest)",
    )
    parser.add_argument(
        "--group", metavar="SCOPE/GROUP", help="reader group that keeps the position, a subscriber"
    )
    parser.add_argument(
        "--event-as",
        choices=tuple(_EVENTS),
        help="form of the event in a table or a file (default: binary, in CSV and JSON text)",
    )
    parser.add_argument(
        "--written-table",
        choices=("fail", "append"),
        default="fail",
        help="what becomes of a Delta table that an export with another checkpoint has written: "
        "append adds the rows from --start on (default: fail)",
    )
    parser.add_argument("--max-rows", type=count, help="at most this many events in a batch")
    arguments = parser.parse_args(argv)
    check_copy(parser, arguments, arguments.target)
    if (arguments.target == KAFKA) != (arguments.topic is not None):
        parser.error("--topic is for Kafka, which needs it.")
    if arguments.target == KAFKA and arguments.event_as is not None:
        parser.error("--event-as is for tables and files; Kafka gets bytes.")
    if arguments.target != DELTA and arguments.written_table != "fail":
        parser.error(f"--written-table is for Delta tables, and this is {arguments.target}.")
    if arguments.target in _TEXTS and arguments.event_as == "binary":
        parser.error(f"{arguments.target} has no bytes: use --event-as text or base64.")
    return arguments


def export_of(arguments: argparse.Namespace) -> Copy:
    """Return what the job copies."""
    target = arguments.topic or arguments.path
    return Copy(
        arguments.target,
        f"{arguments.stream} to {arguments.target} {target}",
        partial(_preview, arguments),
        partial(_query, arguments),
        partial(_info, arguments),
    )


def _info(arguments: argparse.Namespace) -> StreamInfo:
    return StreamManager(arguments.root).stream_info(arguments.stream)


def _frame(arguments: argparse.Namespace, spark: SparkSession, *, is_stream: bool) -> DataFrame:
    schema = _info(arguments).configuration.schema
    options = {"root": arguments.root, "startingStreamCut": arguments.start}
    if arguments.max_rows is not None and is_stream:
        options["maxOffsetsPerTrigger"] = str(arguments.max_rows)
    if arguments.group is not None and is_stream:
        options |= {"readerGroup": arguments.group, "readerGroupMode": "subscriber"}
    if arguments.target == KAFKA and schema is None:
        names = {"columnNames": "kafka", "keyEncoding": arguments.key_encoding}
        options |= {**names, "columns": "key,value"}
    else:
        own = ["event"] if schema is None else schema.names
        options["columns"] = ",".join(("routing_key", *own, *_PLACE))
    reader: Any = spark.readStream if is_stream else spark.read
    frame: DataFrame = reader.format("pravega").options(**options).load(arguments.stream)
    if schema is not None and arguments.target == JSON:
        return frame.selectExpr(*json_fields(frame))
    if schema is not None:
        return frame if arguments.target != KAFKA else _typed_topic(frame, schema.names)
    if arguments.target == KAFKA:
        return frame
    form = arguments.event_as or ("text" if arguments.target in _TEXTS else "binary")
    return frame.selectExpr("routing_key", _EVENTS[form], *_PLACE)


def _typed_topic(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return a typed stream as records: payload and headers of an import, or JSON objects."""
    if "payload" in names and set(names) <= {"payload", "headers"}:
        return frame.selectExpr("routing_key AS key", "payload AS value", *set(names) - {"payload"})
    return frame.selectExpr("routing_key AS key", f"{row_json(frame, *names)} AS value")


def _preview(arguments: argparse.Namespace, spark: SparkSession) -> DataFrame:
    frame = _frame(arguments, spark, is_stream=False)
    texts = {"key", "value", "event"}
    return frame.selectExpr(
        *(f"CAST({n} AS STRING) AS {n}" if n in texts else n for n in frame.columns)
    )


def _query(arguments: argparse.Namespace, spark: SparkSession) -> DataStreamWriter:
    if arguments.target != KAFKA:
        given = arguments.path, arguments.checkpoint
        emptied = emptied_text(spark, *given, is_table=arguments.target == DELTA)
        if emptied is not None:
            complain(PROG, emptied)
            if arguments.target in FILES:
                begin_files_again(spark, *given)
    if arguments.target in FILES:
        check_files(spark, arguments.path, arguments.checkpoint)
    elif arguments.target == DELTA:
        may_append = arguments.written_table == "append"
        check_table(spark, arguments.path, arguments.checkpoint, may_append=may_append)
    writer = _frame(arguments, spark, is_stream=True).writeStream.format(arguments.target)
    if arguments.target == KAFKA:
        options = {**kafka_options(arguments), "topic": arguments.topic, "includeHeaders": "true"}
        writer = writer.options(**options)
    else:
        lossless = _LOSSLESS.get(arguments.target, {})
        writer = writer.options(**lossless).options(**arguments.options)
        writer = writer.option("path", arguments.path)
    writer = writer.option("checkpointLocation", arguments.checkpoint).queryName(PROG)
    if arguments.interval is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{round(arguments.interval * 1_000)} milliseconds")


if __name__ == "__main__":
    sys.exit(main())
