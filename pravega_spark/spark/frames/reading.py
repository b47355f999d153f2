"""A batch frame that the driver plans and executors read, without the data source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pravega_spark.errors import InvalidOption
from pravega_spark.spark.mapped_tasks import in_tasks
from pravega_spark.spark.settings import ReadSettings, call_options, check_batch, read_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from pravega_spark.spark.read.partitions import EventPartition
    from pravega_spark.spark.versions import InputPartition
    from pravega_spark.stream import Stream


def read_frame(
    spark: SparkSession,
    stream: str | Stream | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    **options: Any,
) -> DataFrame:
    """Return the events between two cuts as a batch frame, on every Spark with ``mapInArrow``.

    Rows, columns, order and options are those of ``spark.read.format("pravega")``, and so is the
    code that reads them in tasks. The call plans what is read, by the newest version of each
    stream, so every action on the frame reads the same events.

    Raises InvalidOption for an option that needs the data source, and what a batch read raises. An
    error of rows is found in a task of an action, and arrives as PySpark's PythonException, with
    its name and text.
    """
    from pravega_spark.spark.read.batch import PravegaBatchReader
    from pravega_spark.spark.read.typed_reads import check_request

    settings = frame_settings(stream, root, options)
    check_batch(settings, streaming="for_each_range")
    schema = read_schema(settings)
    reader = PravegaBatchReader(settings, schema)
    check_request(settings, schema, reader.since)
    return planned_frame(spark, settings, schema, reader.partitions())


def frame_settings(
    stream: str | Stream | None, root: str | os.PathLike[str] | None, options: dict[str, Any]
) -> ReadSettings:
    """Parse a call's arguments as the options of a read; raise InvalidOption."""
    settings = read_settings(call_options(stream, root, options))
    if settings.metadata is not None:
        raise InvalidOption(
            f"option metadata={settings.metadata} is for spark.read.format('pravega'), and a frame "
            "without the data source has events: remove it, and ask the manager, or the command "
            "line, which need no Spark."
        )
    if settings.push_filters:
        raise InvalidOption(
            "option pushFilters is for spark.read.format('pravega'): without the data source Spark "
            "tells nobody the conditions. Remove it, and name the keys by routingKeys, the "
            "segments by assign, or a start and an end."
        )
    return settings


def read_schema(settings: ReadSettings) -> StructType:
    """Return the columns of a read."""
    from pravega_spark.spark.read.columns import frame_schema
    from pravega_spark.spark.read.typed_reads import typed_columns

    return frame_schema(settings, typed_columns(settings))


def planned_frame(
    spark: SparkSession,
    settings: ReadSettings,
    schema: StructType,
    partitions: Sequence[InputPartition],
) -> DataFrame:
    """Return the events of planned partitions as a frame, in their order."""
    from pravega_spark.spark.read.partitions import read_events

    pinned = [cast("EventPartition", one).pinned() for one in partitions]
    return in_tasks(spark, pinned, partial(read_events, settings, schema.json()), schema)
