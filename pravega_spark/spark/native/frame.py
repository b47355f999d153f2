"""Frames of streams that Spark reads itself, exact between cuts: batch and streaming."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pravega_spark.engine.store.root_url import root_as_text
from pravega_spark.errors import InvalidOption
from pravega_spark.spark.settings import ReadSettings, call_options, check_batch, read_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pravega_spark.stream import Stream


def frame(
    spark: SparkSession,
    stream: str | Stream | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return the events between two cuts as a batch frame that Spark's own reader reads.

    The rows, columns and options are those of ``spark.read.format("pravega")``; the call fixes the
    bounds and the files, by one version of each stream. Rows have no order: sort by ``segment_id``
    and ``offset``. Filters on ``segment_id``, ``timestamp`` and ``routing_key`` skip chunks. A
    ``Stream`` brings its root along.

    Raises InvalidOption for options that a native frame cannot have; IllegalState for an encrypted
    stream, and for a session of Spark Connect; and what a batch read raises.
    """
    from pravega_spark.spark.hadoop_url import hadoop_scheme
    from pravega_spark.spark.native.jvm_bridge import chunk_reads
    from pravega_spark.spark.native.relation import ChunkRelation, NativeColumns
    from pravega_spark.spark.read.batch import PravegaBatchReader

    settings = native_settings(stream, root, options)
    check_batch(settings, streaming="stream_frame")
    chunk_reads(spark)  # before anything is read
    hadoop_scheme(spark, settings.root)
    columns = NativeColumns(settings)
    reader = PravegaBatchReader(settings, columns.schema, columns.since)
    return ChunkRelation(spark, settings, columns, streaming=False).frame(reader.partitions())


def stream_frame(
    spark: SparkSession,
    stream: str | Stream | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return a streaming frame whose rows Spark's own reader reads.

    The rows, columns, options and checkpoints are those of ``readStream.format("pravega")``, and a
    checkpoint of one continues in the other. Every micro-batch lies between two cuts; a key's
    events of one batch precede those of the next, and inside a batch ``offset`` tells their order:
    rows come in none, so sort by it where order matters.

    Raises InvalidOption for options that a native frame cannot have; IllegalState for an encrypted
    stream, and for a session of Spark Connect.
    """
    from pravega_spark.spark.native.stream import streaming_frame

    return streaming_frame(spark, native_settings(stream, root, options))


def native_settings(
    stream: str | Stream | None, root: str | os.PathLike[str] | None, options: dict[str, Any]
) -> ReadSettings:
    """Parse a call's arguments as the options of a read; raise InvalidOption."""
    settings = read_settings(call_options(stream, root, options))
    root_as_text(settings.root, "a native frame, which the JVM reads,")
    if settings.metadata is not None:
        raise InvalidOption(
            f"option metadata={settings.metadata} is for spark.read.format('pravega'); native "
            "frames read events."
        )
    if settings.min_partitions:
        raise InvalidOption(
            "option minPartitions is for format('pravega'); Spark splits the files of a native "
            "frame by spark.sql.files.maxPartitionBytes and spark.sql.files.minPartitionNum."
        )
    if settings.key_encoding != "utf8":
        raise InvalidOption(
            f"option keyEncoding={settings.key_encoding} is for format('pravega'), which decodes "
            "the keys; a native frame has them as they are stored."
        )
    return settings
