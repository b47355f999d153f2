"""The batch source: the events between two cuts of each stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.spark.kept_plans import FramePlan
from pravega_spark.spark.options import warn_of_leftovers
from pravega_spark.spark.read.assigned_segments import check_assigned, only_assigned
from pravega_spark.spark.read.bounds import (
    BATCH_END,
    BATCH_START,
    check_order,
    resolve_bound,
    starting_cut,
)
from pravega_spark.spark.read.columns import constants_of
from pravega_spark.spark.read.data_loss import log_skipped
from pravega_spark.spark.read.discovery import matching_streams, planned_view
from pravega_spark.spark.read.filters import of_keys
from pravega_spark.spark.read.partitions import (
    PlannedRange,
    by_offset,
    packed,
    partition_counts,
    planned,
    read_events,
)
from pravega_spark.spark.read.typed_reads import check_columns
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.versions import DataSourceReader, InputPartition


class PravegaBatchReader(DataSourceReader):
    """Plans a batch read on the driver and reads its ranges in tasks.

    The events of a segment are in order inside a partition. A large segment is split by offset into
    several, and small ones share one.
    """

    def __init__(
        self, settings: ReadSettings, schema: StructType, since: float | None = None
    ) -> None:
        """Take the settings and the schema that Spark requests.

        ``since`` is when the planning began, by the boot clock: a view that was the newest then, or
        later, is not read again.
        """
        self.settings = settings
        self._schema = schema
        self._schema_json = schema.json()
        self.since = SYSTEM.monotonic() if since is None else since
        self.wanted = of_keys(settings.routing_keys)
        self.where: Any = None
        """What all wanted events satisfy, as an expression over the columns of a typed stream."""

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of all segments, with the chunks that may hold wanted events."""
        settings = self.settings
        names = settings.streams
        warn_of_leftovers(settings.leftovers, f"a read of {settings.pattern or ', '.join(names)}")
        if settings.pattern is not None:
            names = tuple(matching_streams(settings.root, settings.pattern))
        versions: dict[str, int] = {}
        store = open_store(settings.root)
        read = in_rounds(store, lambda name: self._ranges(store, name, versions), names)
        self.since = SYSTEM.monotonic()  # who asks once more wants the newest again
        found = [one for ranges in read for one in ranges]
        shares = partition_counts(found, settings.min_partitions)
        token = FramePlan.new_token()
        pieces: list[PlannedRange] = []
        for one, count in zip(found, shares, strict=True):
            to_tail = settings.ending is None
            plan = FramePlan(token, versions[one.rng.stream]) if to_tail else None
            pieces += by_offset(replace(one, plan=plan), count)
        return [*packed([[piece] for piece in pieces], settings.min_partitions)]

    def _ranges(self, store: Store, name: str, versions: dict[str, int]) -> list[PlannedRange]:
        settings = self.settings
        stream, view = planned_view(store, name, self.since)
        versions[name] = view.version
        check_assigned(settings, stream, view)
        schema = check_columns(view, self._schema, settings.column_names)
        bound = settings.starting or BATCH_START
        start = starting_cut(bound, settings.timestamp_strategy, stream, view)
        end = resolve_bound(settings.ending or BATCH_END, stream, view)
        if not settings.fail_on_data_loss:
            start, lost = start.clipped_to_head()
            end = end.above_head()
            if lost:
                log_skipped(view, lost)
        check_order(start, end, settings.starting, settings.ending)
        found = []
        for rng in only_assigned(settings, name, start.ranges_to(end)):
            constants = constants_of(name, rng.segment_id)
            key_range = view.lineage.find(rng.segment_id).key_range
            one = planned(rng, self.wanted, constants, key_range, stream.chunks)
            if one is not None:
                found.append(replace(one, schema=schema, where=self.where))
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's events as Arrow batches; runs in a task."""
        return read_events(self.settings, self._schema_json, partition)
