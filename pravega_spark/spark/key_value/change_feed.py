"""The changes of a key-value table as batch and streaming frames, over the readers of streams.

A change is one event of the change log, so offsets, limits and reader groups are those of the
source ``pravega``; only the columns differ. The changes of a primary key are in order, since they
share a segment, and its successors are read after it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from pravega_spark.key_value.change_log import advised
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.keys import KeyType
from pravega_spark.key_value.rows import RowLayout, entries_of_events
from pravega_spark.spark.key_value.columns import TableProjection
from pravega_spark.spark.read.batch import PravegaBatchReader
from pravega_spark.spark.read.micro_batch import PravegaStreamReader
from pravega_spark.spark.read.partitions import PlannedRange, read_range_events, read_ranges
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.versions import InputPartition, ReadLimit
from pravega_spark.values.names import table_of_log

EVENT_COLUMNS = StructType(
    [
        StructField("offset", LongType(), False),
        StructField("timestamp", TimestampType(), False),
        StructField("event", BinaryType(), False),
    ]
)


class TableChanges:
    """Turns the events of a partition into Spark's columns, in a task."""

    def __init__(
        self,
        settings: ReadSettings,
        configuration: KeyValueTableConfiguration,
        schema: StructType,
    ) -> None:
        """Take the settings and the schema that Spark requests."""
        self.settings = settings
        self.table = table_of_log(settings.streams[0]) or settings.streams[0]
        self._schema = schema
        key_type = KeyType(configuration.key_type)
        self._layout = RowLayout(key_type, configuration.secondary_key_length > 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's changes."""
        return read_ranges(self.settings, partition, self._of_range)

    def _of_range(
        self, one: PlannedRange, watermark_us: int | None
    ) -> Generator[pa.RecordBatch, None, None]:
        project = TableProjection(self._layout, one.rng.life, self._schema)
        with advised(self.table):
            for events in read_range_events(self.settings, EVENT_COLUMNS.json(), one):
                entries = entries_of_events(one.rng.segment_id, events)
                yield project(self._layout.rows_of_entries(entries))


class TableChangeReader(PravegaBatchReader):
    """Reads the changes between two positions of the log; those of a segment in order."""

    def __init__(self, changes: TableChanges) -> None:
        super().__init__(changes.settings, EVENT_COLUMNS)
        self._changes = changes

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of all segments, with the chunks that hold them."""
        with advised(self._changes.table):
            return super().partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's changes; runs in a task."""
        return self._changes.read(partition)


class TableChangeStream(PravegaStreamReader):
    """Plans micro-batches of changes on the driver and reads them in tasks."""

    def __init__(self, changes: TableChanges) -> None:
        super().__init__(changes.settings, EVENT_COLUMNS)
        self._changes = changes

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query starts."""
        with advised(self._changes.table):
            return super().initialOffset()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` if there is nothing to read."""
        with advised(self._changes.table):
            return super().latestOffset(start, limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run at the present tail."""
        with advised(self._changes.table):
            super().prepareForTriggerAvailableNow()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the micro-batch as ranges of segments, with the chunks that hold them."""
        with advised(self._changes.table):
            return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's changes; runs in a task."""
        return self._changes.read(partition)
