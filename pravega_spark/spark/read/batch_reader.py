"""The batch source: the events between two cuts of each stream, at one version of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.engine.stream.repair import existing_view
from pravega_spark.model import SegmentRange
from pravega_spark.spark.read.input_partitions import by_offset, counts, read_events
from pravega_spark.spark.read.offset_planner import matching, report_lost
from pravega_spark.spark.read.read_bounds import check_order, resolve, starting
from pravega_spark.spark.settings import ReadBound, ReadSettings

logger = logging.getLogger(__name__)

_LATEST = ReadBound("endingOffsets", "latest")


class PravegaBatchReader(DataSourceReader):
    """Plans a batch read on the driver and reads its ranges in tasks.

    Events are in order inside a partition; large segments are split by offset into several
    partitions, which follow each other.
    """

    def __init__(self, settings: ReadSettings, schema: StructType) -> None:
        """Take the settings and the schema that Spark wants."""
        self.settings = settings
        self._schema_json = schema.json()

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of all segments, with the chunks that hold them."""
        settings = self.settings
        names = settings.streams
        if settings.pattern is not None:
            names = tuple(matching(settings.root, settings.pattern))
        found = [ranges for name in names for ranges in self._ranges(name)]
        shares = counts([rng for rng, _ in found], settings.min_partitions)
        planned: list[InputPartition] = []
        for (rng, refs), count in zip(found, shares, strict=True):
            planned += by_offset(rng, refs, count)
        return planned

    def _ranges(self, name: str) -> list[tuple[SegmentRange, list[ChunkRef]]]:
        settings = self.settings
        stream = open_stream(settings.root, name)
        view = existing_view(stream)
        begin = starting(settings.starting, "earliest", settings.timestamp_strategy, stream, view)
        end = resolve(settings.ending or _LATEST, stream, view)
        if not settings.fail_on_data_loss:
            begin, lost = begin.clipped_to_head()
            end, _ = end.clipped_to_head()
            if lost:
                report_lost(view, lost)
        check_order(begin, end, settings.starting, settings.ending)
        return [(rng, stream.chunks(rng)) for rng in begin.ranges_to(end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's events as Arrow batches; runs in a task."""
        return read_events(self.settings, self._schema_json, partition)
