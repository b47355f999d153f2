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
  one ended, by its --checkpoint. docs/from-kafka.md has the rules. It needs Spark 4.0
  or newer; on Spark 3.5 pravega_spark.for_each_range copies a stream.

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

import json
import sys
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from pravega_spark.config.descriptions import StreamInfo
from pravega_spark.config.root_settings import OFF
from pravega_spark.engine.store.root_url import root_as_text
from pravega_spark.errors import InvalidInput
from pravega_spark.jobs.command_line import JobCommand, option
from pravega_spark.jobs.copy_command_line import (
    COUNT,
    CSV,
    DELTA,
    FILES,
    FORMATS,
    JSON,
    KAFKA,
    check_copy,
    copy_command,
    kafka_options,
    stream_name,
)
from pravega_spark.jobs.copy_runner import Copy, run_copy
from pravega_spark.jobs.launcher_stderr import complain
from pravega_spark.manager import StreamManager
from pravega_spark.schemas.sql import quoted_text
from pravega_spark.spark.lossless_json import JSON_OPTIONS, TIME_OPTIONS, json_fields, row_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


_COMMITS: Final = 1_000
"""Newest commits of a table that are looked at: one of every ten seconds makes many."""
_COLUMNS: Final = frozenset({"routing_key", "timestamp", "segment_id", "offset"})
"""Columns of every export, by which a query's commits are known for those of one."""
_NO_TABLE: Final = ("PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND")


def check_files(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Raise InvalidInput if files in a folder are of a query with another checkpoint.

    Spark's file sink drops batches whose numbers it knows, and says nothing. A client of Spark
    Connect cannot look.
    """
    if not hasattr(spark, "_jsparkSession"):
        return
    written = _last_number(spark, f"{path}/_spark_metadata")
    first, last = (_last_number(spark, f"{checkpoint}/{name}") for name in ("commits", "offsets"))
    if written < 0 or first <= written <= last:
        return
    raise InvalidInput(
        f"the files in {path} are those of batches up to {written}, and the checkpoint "
        f"{checkpoint} {f'is at batch {last}' if last >= 0 else 'has none'}: another checkpoint "
        "wrote them, and Spark would leave out the batches whose numbers are there. Give each "
        "export a separate folder; or take the checkpoint that wrote these files; or delete them, "
        "and the checkpoint, to export again from --start."
    )


def emptied_text(spark: SparkSession, path: str, checkpoint: str, *, is_table: bool) -> str | None:
    """Return what to say of a checkpoint that has written batches, and whose target has none."""
    if not hasattr(spark, "_jsparkSession"):
        return None
    last = _last_number(spark, f"{checkpoint}/commits")
    is_there = (
        _is_written_table(spark, path)
        if is_table
        else _last_number(spark, f"{path}/_spark_metadata") >= 0
    )
    if last < 0 or is_there:
        return None
    return (
        f"{path} has nothing of the batches up to {last} that the checkpoint {checkpoint} has "
        "written: it was moved or deleted, and the export goes on after them. To export their "
        "events again, delete the checkpoint, too."
    )


def begin_files_again(spark: SparkSession, path: str, checkpoint: str) -> None:
    """Give an emptied folder what Spark's file sink and reader expect of the batches before.

    Spark joins ten batches' lists of files into one, also if the folder had none of them: it, and
    each reader, then fail at the number of the first. So each of them gets an empty list.
    """
    if not hasattr(spark, "_jsparkSession"):
        return
    jvm: Any = spark._jvm
    last = _last_number(spark, f"{checkpoint}/commits")
    every = int(str(spark.conf.get("spark.sql.streaming.fileSink.log.compactInterval", "10")))
    first = max(0, (last + 1) // every * every - 1)
    unfinished, folder = (
        jvm.org.apache.hadoop.fs.Path(f"{path}/{name}")
        for name in ("_spark_metadata.unfinished", "_spark_metadata")
    )
    storage = folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    storage.delete(unfinished, True)
    for batch in range(first, last + 1):
        name = f"{batch}.compact" if (batch + 1) % every == 0 else str(batch)
        file = storage.create(jvm.org.apache.hadoop.fs.Path(unfinished, name), False)
        file.write(bytearray(b"v1"))
        file.close()
    storage.rename(unfinished, folder)


def check_table(spark: SparkSession, path: str, checkpoint: str, *, may_append: bool) -> None:
    """Raise InvalidInput if a Delta table has rows of an export with another checkpoint.

    Each would be there twice. With ``may_append`` only a checkpoint that is behind the table is
    refused, since Delta drops batches whose numbers it knows of the query.
    """
    if not _is_written_table(spark, path):
        return
    written, own = _batches_of_queries(spark, path), _query_id(spark, checkpoint)
    if own in written:
        _check_not_behind(spark, path, checkpoint, written[own])
        return
    if may_append or not written:
        return
    query, batch = next(iter(written.items()))
    raise InvalidInput(
        f"the Delta table {path} has the rows of an export with another checkpoint, up to its "
        f"batch {batch}, and the checkpoint {checkpoint} has written none there: the export would "
        f"write rows again that are there. Take the checkpoint whose file metadata has {query}; or "
        "give each export a separate table; or delete the table, and the checkpoint, to export "
        "again; or add the rows from --start on with --written-table append."
    )


def _check_not_behind(spark: SparkSession, path: str, checkpoint: str, written: int) -> None:
    if not hasattr(spark, "_jsparkSession"):
        return
    last = _last_number(spark, f"{checkpoint}/offsets")
    if last < written:
        raise InvalidInput(
            f"the Delta table {path} has batches up to {written} of this export, and the "
            f"checkpoint {checkpoint} is at batch {last}: it is an older copy, or was set back, "
            "and Delta would leave out the batches whose numbers are there. Take the checkpoint "
            "that wrote them; or a new one, and a separate table."
        )


def _is_written_table(spark: SparkSession, path: str) -> bool:
    """Return whether there is a Delta table that has the columns of an export."""
    from pyspark.errors import AnalysisException

    from pravega_spark.spark.versions import error_condition

    try:
        columns = spark.read.format("delta").load(path).columns
    except AnalysisException as error:
        if error_condition(error) not in _NO_TABLE:
            raise
        return False
    return set(columns) >= _COLUMNS


def _batches_of_queries(spark: SparkSession, path: str) -> dict[str, int]:
    """Return the last batch of each query in a table's history, the newest query first."""
    rows = spark.sql(f"DESCRIBE HISTORY {quoted_text(path)} LIMIT {_COMMITS}").collect()
    found: dict[str, int] = {}
    for row in rows:
        given = row["operationParameters"] or {}
        if row["operation"] == "STREAMING UPDATE" and "queryId" in given:
            found.setdefault(given["queryId"], int(given["epochId"]))
    return found


def _query_id(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id of a checkpoint's query; None if it has none yet."""
    from pyspark.errors import AnalysisException

    from pravega_spark.spark.versions import error_condition

    try:
        rows = spark.read.text(f"{checkpoint}/metadata").collect()
    except AnalysisException as error:
        if error_condition(error) != "PATH_NOT_FOUND":
            raise
        return None
    return str(json.loads("".join(row["value"] for row in rows))["id"])


def _last_number(spark: Any, folder: str) -> int:
    """Return the highest batch that has a file in a folder of Spark's; -1 for none.

    By Hadoop's client: Spark reads no file in a folder whose name begins with ``_``.
    """
    path = spark._jvm.org.apache.hadoop.fs.Path(folder)
    storage = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    found = storage.listStatus(path) if storage.exists(path) else []
    numbers = (each.getPath().getName().partition(".")[0] for each in found)
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


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


def parse(argv: Sequence[str] | None) -> SimpleNamespace:
    """Parse the command line; an error in it exits with 2."""
    with _command().parsed(argv) as arguments:
        check_copy(arguments, arguments.target)
        if (arguments.target == KAFKA) != (arguments.topic is not None):
            raise click.UsageError("--topic is for Kafka, which needs it.")
        if arguments.target == KAFKA and arguments.event_as is not None:
            raise click.UsageError("--event-as is for tables and files; Kafka gets bytes.")
        if arguments.target != DELTA and arguments.written_table != "fail":
            raise click.UsageError(
                f"--written-table is for Delta tables, and this is {arguments.target}."
            )
        if arguments.target in _TEXTS and arguments.event_as == "binary":
            raise click.UsageError(
                f"{arguments.target} has no bytes: use --event-as text or base64."
            )
    return arguments


def _command() -> JobCommand:
    options = [
        option(
            "--stream",
            parse=stream_name,
            required=True,
            metavar="SCOPE/STREAM",
            help="The stream to read.",
        ),
        option(
            "--to",
            "target",
            required=True,
            type=click.Choice(FORMATS),
            help="The kind of target.",
        ),
        option("--topic", help="Kafka's topic."),
        option(
            "--start",
            default="earliest",
            metavar="CUT",
            help="Where the first run begins: earliest, latest, a saved cut, or the text of a "
            "cut.  [default: earliest]",
        ),
        option(
            "--group",
            metavar="SCOPE/GROUP",
            help="The reader group that keeps the position, a subscriber.",
        ),
        option(
            "--event-as",
            type=click.Choice(tuple(_EVENTS)),
            help="The form of the event in a table or a file.  [default: binary, in CSV and JSON "
            "text]",
        ),
        option(
            "--written-table",
            type=click.Choice(("fail", "append")),
            default="fail",
            help="What to do with a Delta table that an export with another checkpoint has "
            "written: append adds the rows from --start on.  [default: fail]",
        ),
        option("--max-rows", type=COUNT, help="At most this many events in a batch."),
    ]
    return copy_command(PROG, __doc__ or "", options)


def export_of(arguments: SimpleNamespace) -> Copy:
    """Return what the job copies."""
    target = arguments.topic or arguments.path
    return Copy(
        arguments.target,
        f"{arguments.stream} to {arguments.target} {target}",
        partial(_preview, arguments),
        partial(_query, arguments),
        partial(_info, arguments),
    )


def _info(arguments: SimpleNamespace) -> StreamInfo:
    from pravega_spark.spark.versions import HAS_DATA_SOURCES, spark_release

    if not HAS_DATA_SOURCES:
        raise InvalidInput(
            f"this job is a streaming query of format('pravega'), for Spark 4.0 and later, and "
            f"this is Spark {spark_release()}. On Spark 3.5 write the ranges of "
            "pravega_spark.for_each_range, whose page says how (docs/spark-frames.md)."
        )
    root_as_text(arguments.root, "this job, a streaming query of format('pravega'),")
    return StreamManager(arguments.root).stream_info(arguments.stream)


def _frame(arguments: SimpleNamespace, spark: SparkSession, *, is_stream: bool) -> DataFrame:
    schema = _info(arguments).configuration.schema
    root = root_as_text(arguments.root, "format('pravega')")
    options = {"root": root, "startingStreamCut": arguments.start}
    if is_stream:
        options["maintain"] = OFF  # whatever the root's setting says: a job does its own work alone
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


def _preview(arguments: SimpleNamespace, spark: SparkSession) -> DataFrame:
    frame = _frame(arguments, spark, is_stream=False)
    texts = {"key", "value", "event"}
    return frame.selectExpr(
        *(f"CAST({n} AS STRING) AS {n}" if n in texts else n for n in frame.columns)
    )


def _query(arguments: SimpleNamespace, spark: SparkSession) -> DataStreamWriter:
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
