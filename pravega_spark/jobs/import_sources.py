"""What an import reads: frames with the columns key, value and timestamp of each row.

For a typed stream they are routing_key, timestamp and the columns of the stream.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pravega_spark.errors import InvalidInput
from pravega_spark.jobs.copy_command_line import KAFKA, kafka_options
from pravega_spark.schemas.sql_types import quoted_name
from pravega_spark.spark.lossless_json import row_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

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


def kafka_frame(spark: SparkSession, arguments: Namespace, *, is_stream: bool) -> DataFrame:
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


def table_frame(spark: SparkSession, arguments: Namespace, *, is_stream: bool) -> DataFrame:
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


def _options(arguments: Namespace) -> dict[str, str]:
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
    spark: SparkSession, arguments: Namespace, options: Mapping[str, str]
) -> StructType | None:
    """Return the schema of files: the one that was given, or that of the files that are there.

    Values of CSV are texts, unless ``inferSchema`` is asked for: 007 is no number.
    """
    from pyspark.errors import AnalysisException
    from pyspark.sql.types import StructType

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
        if error.getCondition() != "COLUMN_ALREADY_EXISTS":
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
    arguments: Namespace,
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


def _chosen(arguments: Namespace, frame: DataFrame) -> list[str]:
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
