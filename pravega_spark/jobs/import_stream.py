r"""Copy Kafka topics, a Delta table, or files into a stream, each row once.

What it does:
  Reads the source with Spark and appends its rows to a stream, which it creates if it is missing.
  Keys, times and the order of the rows of a key are kept. Kafka: key, value and timestamp; several
  topics go to one stream, or with --scope each to the stream of its name. Delta, Parquet, CSV: each
  row as a JSON object, or by --event; with --typed the columns. JSON lines: the lines as they are.
  Files that an export wrote become the events that they were. docs/from-kafka.md has the rules.

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

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import click

from pravega_spark.engine.store.root_url import filesystem_of
from pravega_spark.errors import InvalidInput
from pravega_spark.jobs.command_line import JobCommand, flag, option
from pravega_spark.jobs.copy_command_line import (
    COUNT,
    FILES,
    FORMATS,
    KAFKA,
    check_copy,
    copy_command,
    kafka_options,
    stream_name,
)
from pravega_spark.jobs.copy_runner import Copy, run_copy
from pravega_spark.jobs.launcher_stderr import complain
from pravega_spark.manager import StreamManager
from pravega_spark.schemas.sql import quoted_name
from pravega_spark.spark.frames.writing import sink_batch, write_frame
from pravega_spark.spark.lossless_json import row_json
from pravega_spark.values.names import is_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType


_LISTING: Final = ("pathglobfilter", "recursivefilelookup")
"""Options of Spark's, in lower case, that decide which files of a folder are read."""
_SHOWN: Final = 3
_MOST: Final = 1_000


def changed_files(
    spark: SparkSession, path: str, options: Mapping[str, str], checkpoint: str
) -> list[str]:
    """Return the files that a query has read and that have changed since; it reads none again."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    from pravega_spark.spark.versions import error_condition

    kept = {name: value for name, value in options.items() if name.lower() in _LISTING}
    line = F.col("value")
    try:
        log = spark.read.text(f"{checkpoint}/sources/0").where(line.startswith("{"))
        found = spark.read.format("binaryFile").options(**kept).load(path).select("_metadata.*")
    except AnalysisException as error:
        if error_condition(error) != "PATH_NOT_FOUND":
            raise
        return []  # nothing was read yet, or the import itself says that nothing is there
    read = (
        log.withColumn("path", _one_form(F.get_json_object(line, "$.path")))
        .withColumn("read_ms", F.get_json_object(line, "$.timestamp").cast("bigint"))
        .groupBy("path")
        .agg(F.max("read_ms").alias("read_ms"))
    )
    present = found.withColumn("path", _one_form(F.col("file_path")))
    changed = F.unix_millis("file_modification_time") != F.col("read_ms")
    rows = present.join(read, "path").where(changed).select("path").limit(_MOST).collect()
    return sorted(unquote(row["path"]) for row in rows)


def _one_form(path: Column) -> Column:
    """Return the URL of a local file as Hadoop's client writes it, instead of Spark's file:///."""
    from pyspark.sql import functions as F

    return F.regexp_replace(path, "^file:/+", "file:/")


def changed_text(files: list[str]) -> str:
    """Return what has happened to files, of which some are named."""
    more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
    return (
        f"{', '.join(files[:_SHOWN])}{more}: changed after it was read, and its new rows are not "
        "imported, since Spark reads each file once"
    )


_LINE = "__pravega_line"
ORDER = "__pravega_order_"
"""How the names of the columns begin that order a batch; the source has none that do."""
_OF_READS = frozenset({"scope", "stream", "segment_id", "offset", "routing_key", "timestamp"})
"""Columns of a read beside those of its events."""
_OF_EXPORTS = _OF_READS | {"event"}
"""Columns that an export writes: in a frame that has no others, `event` is the whole event."""
_SQL = ("key", "event", "time", "order_by")
"""Options whose expressions name fields of a row."""
_ANY_AGE = "36500d"
"""A hundred years."""
_PLACE = ("file_modification_time", "file_path", "file_block_start")
"""The order of a micro-batch's files, in Spark's hidden column ``_metadata``."""


def kafka_frame(spark: SparkSession, arguments: SimpleNamespace, *, is_stream: bool) -> DataFrame:
    """Return a frame of topics, with ``stream`` of each row if several streams are written."""
    options = {"startingOffsets": "earliest", **kafka_options(arguments)}
    name, value = ("subscribe", arguments.topics)
    if arguments.topics is None:
        name, value = ("subscribePattern", arguments.topic_pattern)
    if not arguments.drop_headers:
        options["includeHeaders"] = "true"
    if arguments.max_rows is not None and is_stream:
        options["maxOffsetsPerTrigger"] = str(arguments.max_rows)
    reader: Any = spark.readStream if is_stream else spark.read
    frame: DataFrame = reader.format(KAFKA).options(**options).option(name, value).load()
    key, value = arguments.key or "key", arguments.event or "value"
    names = [f"{key} AS key", f"{value} AS value"]
    if arguments.typed:
        text = f"validate_utf8(CAST({key} AS STRING))"
        names = [f"{text} AS routing_key", f"{value} AS payload"]
    names.append(f"{arguments.time or 'timestamp'} AS timestamp")
    if not arguments.drop_headers:
        names.append("headers")
    if arguments.stream is None:
        names.append(f"concat('{arguments.scope}/', topic) AS stream")
    return frame.selectExpr(*names)


def table_frame(spark: SparkSession, arguments: SimpleNamespace, *, is_stream: bool) -> DataFrame:
    """Return a frame of a Delta table or of files, with the columns by which it is ordered.

    Lines of JSON are events as they are; rows of other formats become JSON objects, unless the
    columns are those that an export writes.
    """
    kind = "text" if arguments.source == "json" else arguments.source
    options = _options(arguments)
    schema = _schema(spark, arguments, options)
    if is_stream and kind != "delta":  # else Spark skips files older than the newest by a week
        options = {"maxFileAge": _ANY_AGE, **options}
    reader: Any = (spark.readStream if is_stream else spark.read).format(kind).options(**options)
    if arguments.max_rows is not None and is_stream:
        raise InvalidInput(
            "--max-rows is for Kafka; limit files by --option maxFilesPerTrigger=100."
        )
    if kind == "text":
        frame = _with_line(reader.load(arguments.path), schema, arguments, options)
    elif kind == "delta":
        frame = reader.load(arguments.path)
    else:
        frame = reader.schema(schema).load(arguments.path)
    return frame.selectExpr(*_chosen(arguments, frame))


def _options(arguments: SimpleNamespace) -> dict[str, str]:
    """Return the options of Spark's format: by themselves they lose no value of a row.

    Spark's own defaults make null of a value that does not fit, drop what a row of CSV has too
    much, end it at a line break inside of quotes, take columns of CSV by their place and not by
    the header, and ignore the columns of Parquet that the first file lacks. An option of the user's
    comes first, in any case.
    """
    strict = {
        "csv": {"mode": "FAILFAST", "enforceSchema": "false", "multiLine": "true"},
        "json": {"mode": "FAILFAST"} if arguments.typed else {},  # else the line is the event
        "parquet": {"mergeSchema": "true"},
    }.get(arguments.source, {})
    given = {name.lower() for name in arguments.options}
    return {**{n: v for n, v in strict.items() if n.lower() not in given}, **arguments.options}


def _schema(
    spark: SparkSession, arguments: SimpleNamespace, options: Mapping[str, str]
) -> StructType | None:
    """Return the schema of files: the one that was given, or that of the files that are there.

    Values of CSV are texts, unless ``inferSchema`` is asked for: 007 stays a text.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StructType

    from pravega_spark.spark.versions import error_condition

    if arguments.schema is not None:
        found = StructType.fromDDL(arguments.schema)
        assert isinstance(found, StructType)
        return found
    if arguments.source == "delta":
        return None
    reader = spark.read.format(arguments.source).options(**options)
    try:
        return reader.load(arguments.path).schema
    except AnalysisException as error:
        if error_condition(error) != "COLUMN_ALREADY_EXISTS":
            raise
        given = (getattr(arguments, name) for name in _SQL)
        if arguments.source == "json" and not arguments.typed and not any(given):
            return StructType()  # the lines are the events, and no export wrote them
        raise InvalidInput(
            f"rows of {arguments.path} name a field twice, or two that differ in case alone: "
            f"{str(error).splitlines()[0]} Correct the files; or name the fields that you need by "
            "--schema, such as --schema 'user STRING', of which Spark takes the last one; or "
            "import lines of JSON as they are, without --key, --event, --time, --order-by and "
            "--typed."
        ) from error


def _with_line(
    frame: DataFrame,
    schema: StructType | None,
    arguments: SimpleNamespace,
    options: Mapping[str, str],
) -> DataFrame:
    """Return lines with their columns; a typed stream has no row for an empty line."""
    from pyspark.sql import functions as F

    assert schema is not None
    if not schema.fields:
        return frame.selectExpr(f"value AS {_LINE}", "_metadata")
    parsed = F.from_json("value", schema, dict(options))
    if arguments.typed:
        frame = frame.where("trim(value) <> ''")
    metadata = F.col("_metadata").alias("_metadata")
    return frame.select(F.col("value").alias(_LINE), parsed.alias("row"), metadata).select(
        "row.*", _LINE, "_metadata"
    )


def _chosen(arguments: SimpleNamespace, frame: DataFrame) -> list[str]:
    """Return SQL expressions for key, value and time, and for the order of the rows of a key."""
    names = [name for name in frame.columns if name not in (_LINE, "_metadata")]
    is_export = arguments.typed or ("event" in names and set(names) <= _OF_EXPORTS)
    key = arguments.key or ("routing_key" if is_export and "routing_key" in names else None)
    time = arguments.time or ("timestamp" if is_export and "timestamp" in names else "now()")
    at = f"CAST({time} AS TIMESTAMP) AS timestamp"
    if arguments.typed:
        _check_no_loss(names)
        own = [quoted_name(name) for name in names if name not in _OF_READS]
        chosen = [f"CAST({key or 'NULL'} AS STRING) AS routing_key", at, *own]
    else:
        is_binary = key is not None and _is_binary(frame, key)
        text = key if is_binary else f"CAST({key or 'NULL'} AS STRING)"
        value = arguments.event or ("event" if is_export else _whole(frame, names))
        chosen = [f"{text} AS key", f"{value} AS value", at]
    if arguments.order_by:
        return [*chosen, f"{arguments.order_by} AS {ORDER}by"]
    if key is None:  # nothing has an order
        return chosen
    if is_export and {"segment_id", "offset"} <= set(names):  # the order of the stream
        places = enumerate(("segment_id", "offset"))
        return [*chosen, *(f"CAST({name} AS BIGINT) AS {ORDER}{n}" for n, name in places)]
    if arguments.source == "delta":
        raise InvalidInput(
            f"the Delta table {arguments.path} keeps no order of its rows, and the rows of a key "
            "need one: name it by --order-by, such as --order-by updated_at; or --order-by 0 if "
            "their order means nothing."
        )
    return [*chosen, *(f"_metadata.{name} AS {ORDER}{name}" for name in _PLACE)]


def _check_no_loss(names: list[str]) -> None:
    """Raise InvalidInput for columns that a typed stream lacks, unless an export made them."""
    lost = sorted({"scope", "stream", "segment_id", "offset"} & set(names))
    if lost and not {"segment_id", "offset"} <= set(names):
        raise InvalidInput(
            f"a typed stream has no column {lost[0]} of the user's, since streams have one of that "
            "name, and the import would lose it: rename it in the source, or import without "
            "--typed, which writes rows as JSON objects with all their columns."
        )


def _whole(frame: DataFrame, names: list[str]) -> str:
    """Return the expression of a row as one event: its line, or a JSON object."""
    if _LINE in frame.columns:
        return _LINE
    return row_json(frame, *names)


def _is_binary(frame: DataFrame, sql: str) -> bool:
    return frame.selectExpr(f"{sql} AS it").schema["it"].dataType.typeName() == "binary"


def in_order(frame: DataFrame) -> DataFrame:
    """Return a batch of a table or of files with the rows of each key in order, in one partition.

    The order is that of ``--order-by``, or of the files by their time and name, and of the rows in
    a file. Without keys a batch has none, unless ``--order-by`` is given.
    """
    from pyspark.sql import functions as F

    place = [name for name in frame.columns if name.startswith(ORDER)]
    columns = [name for name in frame.columns if name not in place]
    if not place:
        return frame
    ordered = frame.withColumn(f"{ORDER}row", F.monotonically_increasing_id())
    order = [F.col(name) for name in (*place, f"{ORDER}row")]
    spread = ordered.repartition(columns[0]).sortWithinPartitions(*order)
    return spread.select(*(F.col(quoted_name(name)) for name in columns))


PROG = "import_stream"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; return its exit status."""
    arguments = parse(argv)
    return run_copy(PROG, arguments, import_of(arguments))


def parse(argv: Sequence[str] | None) -> SimpleNamespace:
    """Parse the command line; an error in it exits with 2."""
    with _command().parsed(argv) as arguments:
        arguments.told = set()
        if (arguments.stream is None) == (arguments.scope is None):
            raise click.UsageError("name either --stream or --scope.")
        if arguments.scope is not None and not is_name(arguments.scope):
            raise click.UsageError(f"--scope: {arguments.scope!r} is not a valid scope name.")
        check_copy(arguments, arguments.source)
        _check_typed(arguments)
        is_kafka = arguments.source == KAFKA
        named = [n for n in ("topics", "topic_pattern") if getattr(arguments, n) is not None]
        if is_kafka and len(named) != 1:
            raise click.UsageError("kafka needs either --topics or --topic-pattern.")
        if not is_kafka and (named or arguments.scope is not None):
            raise click.UsageError(
                "--topics, --topic-pattern and --scope are for Kafka; use --stream."
            )
    return arguments


def _command() -> JobCommand:
    options = [
        option("--stream", parse=stream_name, metavar="SCOPE/STREAM", help="The stream to write."),
        option(
            "--scope",
            help="Kafka: write each topic to the stream of its name in this scope, in place of "
            "--stream.",
        ),
        option(
            "--from",
            "source",
            required=True,
            type=click.Choice(FORMATS),
            help="The kind of source.",
        ),
        option("--topics", metavar="NAMES", help="Kafka's topics, separated by commas."),
        option(
            "--topic-pattern",
            metavar="REGEX",
            help="A regular expression for the names of topics, in place of --topics.",
        ),
        option("--key", metavar="SQL", help="The routing key.  [default: Kafka's key, or none]"),
        option(
            "--event",
            metavar="SQL",
            help="The event, text or binary.  [default: the value, line or row]",
        ),
        flag(
            "--typed",
            help="Write to a typed stream: the columns of the table or files, or Kafka's payload "
            "and headers; a new stream takes their schema.",
        ),
        option("--time", metavar="SQL", help="The timestamp.  [default: Kafka's, or now]"),
        option(
            "--order-by",
            metavar="SQL",
            help="The order of the rows of a key in a batch of files.  [default: that of the "
            "files by time and name, and of the rows in each]",
        ),
        option(
            "--schema",
            metavar="DDL",
            help="The schema of the files.  [default: that of the files found]",
        ),
        option(
            "--segments",
            type=COUNT,
            default=1,
            help="The segments of a new stream.  [default: 1]",
        ),
        option("--max-rows", type=COUNT, help="Kafka: at most this many rows in a batch."),
        option(
            "--null-values",
            type=click.Choice(("fail", "skip", "empty")),
            default="fail",
            help="What to do with a row without a value, such as a tombstone.  [default: fail]",
        ),
        option(
            "--changed-files",
            type=click.Choice(("fail", "skip")),
            default="fail",
            help="What to do with a file that has changed after it was read, such as by appended "
            "rows: skip leaves out the new rows, and says so.  [default: fail]",
        ),
        flag("--drop-headers", help="Leave out Kafka's headers.  [default: fail]"),
        option(
            "--restored-lives",
            metavar="LIVES",
            help="The lives of restored streams, separated by commas, as the error names them, "
            "that lack no row of this import.",
        ),
    ]
    return copy_command(PROG, __doc__ or "", options)


def _check_typed(arguments: SimpleNamespace) -> None:
    """Raise UsageError if options of a stream of bytes are given for a typed one."""
    if not arguments.typed:
        return
    if arguments.stream is None:
        raise click.UsageError("--typed is for one stream: name it by --stream.")
    if arguments.key_encoding != "utf8" or arguments.null_values != "fail":
        raise click.UsageError(
            "--key-encoding and --null-values are for streams of bytes, not for --typed."
        )
    if arguments.event is not None and arguments.source != KAFKA:
        raise click.UsageError(
            "--event is for streams of bytes: with --typed the columns are written."
        )


def import_of(arguments: SimpleNamespace) -> Copy:
    """Return what the job copies."""
    target = arguments.stream or f"{arguments.scope}/*"
    source = arguments.topics or arguments.topic_pattern or arguments.path
    return Copy(
        kind=arguments.source,
        what=f"{arguments.source} {source} to {target}",
        preview=partial(_preview, arguments),
        writer=partial(_query, arguments),
        check=lambda: StreamManager(arguments.root),
        watch=partial(_check_files, arguments) if arguments.source in FILES else _no_check,
    )


def _preview(arguments: SimpleNamespace, spark: SparkSession) -> DataFrame:
    read = kafka_frame if arguments.source == KAFKA else table_frame
    frame = read(spark, arguments, is_stream=False)
    shown = [name for name in frame.columns if not name.startswith(ORDER)]
    texts = {"key", "value", "payload"}
    return frame.selectExpr(*(f"CAST({n} AS STRING) AS {n}" if n in texts else n for n in shown))


def _no_check(spark: SparkSession) -> None:
    """Look at nothing: Kafka and Delta know by themselves what has changed."""


def _check_files(arguments: SimpleNamespace, spark: SparkSession) -> None:
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


def _query(arguments: SimpleNamespace, spark: SparkSession) -> DataStreamWriter:
    """Return the query, which writes a batch at most once, however often it is repeated."""
    from pravega_spark.spark.versions import HAS_DATA_SOURCES

    _check_checkpoint(arguments, spark)
    options = _sink_options(arguments)
    if arguments.restored_lives is not None:
        options["restoredLives"] = arguments.restored_lives
    if arguments.source == KAFKA:
        frame = kafka_frame(spark, arguments, is_stream=True)
        writer = frame.writeStream.format("pravega").options(**options)
        if not HAS_DATA_SOURCES or filesystem_of(arguments.root) is not None:
            options["checkpointLocation"] = arguments.checkpoint
            writer = frame.writeStream.foreachBatch(partial(sink_batch, options))
    else:
        frame = table_frame(spark, arguments, is_stream=True)
        # The sink finds the batch's files there, by which it knows a batch from another one.
        options["checkpointLocation"] = arguments.checkpoint
        writer = frame.writeStream.foreachBatch(partial(_write_batch, options))
    writer = writer.option("checkpointLocation", arguments.checkpoint).queryName(PROG)
    if arguments.interval is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{round(arguments.interval * 1_000)} milliseconds")


def _check_checkpoint(arguments: SimpleNamespace, spark: SparkSession) -> None:
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
            "of another stream. Give each import a separate checkpoint; a new one copies from "
            "the start. To go on after those batches, create the stream first."
        )


def _sink_options(arguments: SimpleNamespace) -> dict[str, str]:
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


def _write_batch(options: dict[str, Any], batch: DataFrame, number: int) -> None:
    """Write a batch of files in order, once for the id of the query, which its checkpoint keeps."""
    from pravega_spark.spark.write.task_run import QUERY_ID

    context: Any = batch.sparkSession.sparkContext
    identity = {"txn_app_id": context.getLocalProperty(QUERY_ID), "txn_version": number}
    write_frame(in_order(batch), **options, **identity)


if __name__ == "__main__":
    sys.exit(main())
