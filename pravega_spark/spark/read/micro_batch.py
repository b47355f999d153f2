"""The streaming source: micro-batches between stream cuts, with events of a key in order.

How often a streaming query that is idle looks at its streams: seldom enough to cost little. Without
a trigger Spark asks about 90 times a second, at any cost of the answer. So the source rests before
it looks again after a look that found nothing. A first event waits for that rest at most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.runtime.log_fields import log_fields, own_logger
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.parallel_calls import in_rounds
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import IllegalState, NoSuchStream, StaleIdentity, TruncatedData
from pravega_spark.maintenance.auto import maintain_while_open, wanted
from pravega_spark.spark.read.assigned_segments import covered, covered_losses, wanted_of
from pravega_spark.spark.read.columns import WATERMARK, constants_of
from pravega_spark.spark.read.data_loss import (
    check_root,
    log_skipped,
    recovery_advice,
    truncated_error,
)
from pravega_spark.spark.read.filters import of_keys
from pravega_spark.spark.read.offsets import OffsetPlanner
from pravega_spark.spark.read.partitions import (
    PlannedRange,
    in_order,
    packed,
    partition_counts,
    planned,
    read_events,
)
from pravega_spark.spark.read.typed_reads import check_columns
from pravega_spark.spark.settings import ReadSettings
from pravega_spark.spark.source_offsets import (
    OffsetOwner,
    StreamOffset,
    StreamOffsets,
    decode,
    encode,
    owner_of,
    present,
    root_id_of,
)
from pravega_spark.spark.versions import (
    HAS_TRIGGERS,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
    spark_release,
)
from pravega_spark.values.limits import IDLE_LOOK_SECONDS, IDLE_LOOK_SHARE, STREAM_REFRESH_SECONDS
from pravega_spark.values.segments import END, KeyRange, SegmentRange, StreamCut

if TYPE_CHECKING:
    from pravega_spark.spark.groups.query_reader_group import QueryMembership
    from pravega_spark.spark.read.watermark import StreamEnd


class IdlePace:
    """The looks of one run of a query."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = SYSTEM.sleep,
    ) -> None:
        """Let the first look begin at once."""
        self._clock, self._sleep = clock, sleep
        self._begun, self._due = 0.0, -math.inf

    def begin(self) -> None:
        """Rest until the next look may begin."""
        left = self._due - self._clock()
        if left > 0:
            self._sleep(left)
        self._begun, self._due = self._clock(), -math.inf

    def found_nothing(self) -> None:
        """Note that the look ends, and that the next one has time."""
        took = self._clock() - self._begun
        pause = max(IDLE_LOOK_SECONDS, IDLE_LOOK_SHARE * took)
        self._due = self._begun + min(pause, STREAM_REFRESH_SECONDS)


logger = own_logger(__name__)


class PravegaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver and reads them in tasks.

    Only the driver's copy has the state of the run; the copies in tasks have none. Every query
    starts a new Python process for the driver's copy, so rarely needed parts are imported later.

    Spark 4.0 and 4.1 tell a source neither its trigger nor where a micro-batch begins. That is
    where the last planned one ended: there Spark plans an empty batch at a checkpoint's last offset
    before it asks for more. Trigger.AvailableNow is a single batch there, so the first answer of
    each run has all that there is; a run that repeats a planned batch gets no answer, and says so.
    """

    def __init__(
        self, settings: ReadSettings, schema: StructType, *, is_told: bool = False
    ) -> None:
        """Take the settings and the schema that Spark requests.

        ``is_told`` is for planners of our own, which tell all of it on every Spark.
        """
        self.settings = settings
        self._schema = schema
        self._schema_json = schema.json()
        self.since = SYSTEM.monotonic()
        """When the planning began: a view that was the newest then, or later, is new enough."""
        self._has_watermark = WATERMARK.name in schema.names
        self._pace = IdlePace()
        self._planner: OffsetPlanner | None = None
        self._membership: QueryMembership | None = None
        self._is_stopped = False
        self._planned_to: dict[str, Any] | None = None
        """The end of the last planned micro-batch; of an earlier run where Spark names that."""
        self._has_answered = False
        """Whether a Spark that tells no start has asked for the end of a batch."""
        self._may_repeat = not (is_told or HAS_TRIGGERS)
        """Whether a batch that an earlier run planned can be the only one of this run."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the state of the run."""
        return {**self.__dict__, "_planner": None, "_membership": None, "_planned_to": None}

    @property
    def planner(self) -> OffsetPlanner:
        """The planner of this run, created on first use."""
        if self._planner is None:
            self._planner = OffsetPlanner(self.settings, since=self.since)
            maintain_while_open(
                open_store(self.settings.root),
                self,
                lambda reader: reader._is_stopped,
                maintain=wanted(self.settings.maintain),
            )
        return self._planner

    @property
    def membership(self) -> QueryMembership | None:
        """The query's membership in its reader group, if it has one."""
        if self._membership is None and self.settings.group is not None:
            from pravega_spark.spark.groups.query_reader_group import QueryMembership

            self._membership = QueryMembership(self.settings, self.settings.group)
        return self._membership

    def _encode(self, offsets: StreamOffsets) -> dict[str, Any]:
        membership = None if self.planner.root_id is None else self.membership
        owner = OffsetOwner(self.settings.root) if membership is None else membership.owner
        return encode(offsets, owner, self.planner.root_id)

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query starts: at its reader group's position, or by the options.

        Spark calls this twice at the start, and again after a crash in the first batch.
        """
        membership = None if self.planner.root_id is None else self.membership
        group_cuts = None if membership is None else membership.group_cuts()
        return self._encode(self.planner.initial_offsets(group_cuts))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one limit, since Spark takes only one; latestOffset applies all of them."""
        settings = self.settings
        if settings.max_events is not None:
            return ReadMaxRows(settings.max_events)
        if settings.max_bytes is not None:
            return ReadMaxBytes(settings.max_bytes)
        if settings.min_events is not None:
            return ReadMinRows(settings.min_events)
        return ReadAllAvailable()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch; ``start`` if there is nothing to read.

        Spark calls this after the previous batch has finished, so every event before ``start`` is
        processed. Spark 4.0 and 4.1 give no parameters.
        """
        self._pace.begin()
        whole = False
        if start is None or limit is None:
            if not self._has_answered:
                self._has_answered, whole = True, not self.settings.limit_first_batch
                self._may_repeat = False
                self._warn_of_no_trigger()
            start = self._planned_to or self.initialOffset()
        begin = decode(start)
        self.planner.check_root(begin, root_id_of(start))
        self.planner.check_start(begin)
        membership = self.membership
        if membership is not None:
            membership.check(present(begin), owner_of(start))
        limited = not (whole or isinstance(limit, ReadAllAvailable))
        end = self.planner.next_offsets(begin, limited=limited, whole=whole)
        if membership is not None:
            membership.finish_batch(
                present(begin), last=self.planner.is_available_now and end == begin
            )
        if end != begin:
            return self._encode(end)
        self._pace.found_nothing()
        return start

    @property
    def _name(self) -> str:
        return self.settings.pattern or ", ".join(self.settings.streams)

    def _warn_of_no_trigger(self) -> None:
        """Say what a run does otherwise, once."""
        name = self._name
        first = (
            "option limitFirstBatch lets the limits hold from the first batch on, and "
            "Trigger.AvailableNow ends with that"
            if self.settings.limit_first_batch
            else "the first batch reads all that there is, whatever the limits, and with "
            "Trigger.AvailableNow it is the only one"
        )
        logger.warning(
            "a query of %s: Spark %s tells a source neither its trigger nor its limits. In this "
            "run %s; progress reports have no latestOffset. Nothing is lost or read twice, and "
            "pravega_spark.stream_frame has all of it.",
            name,
            spark_release(),
            first,
            extra=log_fields("read", name),
        )

    def _warn_of_repeat(self) -> None:
        """Say, once, that a run begins with a planned batch, with which it may end."""
        self._may_repeat = False
        logger.warning(
            "a query of %s: this run repeats the batch that an earlier run planned and did not "
            "finish. With Trigger.AvailableNow or Trigger.Once Spark %s ends there: start it once "
            "more for the rest. A run without an end goes on by itself.",
            self._name,
            spark_release(),
            extra=log_fields("read", self._name),
        )

    def _check_order_of_calls(self, begin: StreamOffsets) -> None:
        """Raise IllegalState if Spark asked for the end of a batch before it named its start."""
        if not self.planner.is_initial(begin):
            raise IllegalState(
                "this session has spark.sql.streaming.triggerAvailableNowWrapper.enabled, with "
                "which Spark asks where a run ends before it says where it goes on. Set it to "
                "false: Trigger.AvailableNow then reads all that there is as one batch."
            )

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run at the present tails."""
        self.planner.prepare_available_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the tails, for Spark's progress reports, and who holds the watermark if any do."""
        latest = self.planner.latest_offsets()
        held_by = self.planner.watermark.held_by if self._has_watermark else {}
        if not latest:
            return None
        return {**self._encode(latest), **({"held_by": held_by} if held_by else {})}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the micro-batch as ranges of segments, with the chunks that hold them."""
        begin, until = decode(start), present(decode(end))
        if self._has_answered and self._planned_to is None:
            self._check_order_of_calls(begin)
        if self._may_repeat and start != end:
            self._warn_of_repeat()
        self._planned_to = end
        self.planner.check_root(until, root_id_of(end))
        starts = {name: _batch_start(begin.get(name), offset) for name, offset in until.items()}
        if self.membership is not None:
            self.membership.check(starts, owner_of(end))
        read = in_rounds(
            open_store(self.settings.root),
            lambda name: self._ranges(name, starts[name].cut, until[name]),
            list(until),
        )
        found = [group for ranges in read for group in in_order(ranges)]
        shares = partition_counts(found, self.settings.min_partitions)
        parts: list[Sequence[PlannedRange]] = []
        for group, count in zip(found, shares, strict=True):
            parts += group.by_key(count)
        partitions = packed(parts, self.settings.min_partitions)
        if self._has_watermark and partitions:
            watermark_us = self.planner.watermark.time_us(self._ends(until))
            for partition in partitions:
                partition.watermark_us = watermark_us
        return [*partitions]

    def _ends(self, until: StreamOffsets) -> Iterator[StreamEnd]:
        """Yield where the micro-batch ends in each stream."""
        from pravega_spark.spark.read.watermark import StreamEnd

        for name, offset in until.items():
            try:
                stream, view = self.planner.newest(name)
                view.check_life(offset.life)
            except (NoSuchStream, StaleIdentity):  # allowed, or _ranges has raised it
                continue
            yield StreamEnd(stream, view, offset.cut)

    def _ranges(
        self, name: str, begin: StreamCut, offset: StreamOffset
    ) -> list[tuple[PlannedRange, KeyRange]]:
        if begin == offset.cut:
            return []
        try:
            stream, view = self.planner.newest(name)
            view.check_life(offset.life)
        except (NoSuchStream, StaleIdentity) as error:
            check_root(open_store(self.settings.root))
            if self.settings.fail_on_data_loss:
                raise
            logger.warning(
                "failOnDataLoss=false: left stream %s out of a batch: %s",
                name,
                error,
                extra=log_fields("read", name),
            )
            return []
        reads = offset.reads or wanted_of(self.settings, name)
        self.planner.check_coverage(view, offset)  # the batch may be of an earlier run
        start, end = locate(view, begin), locate(view, offset.cut)
        clipped, all_lost = start.clipped_to_head()
        lost = tuple(rng for rng in covered_losses(reads, all_lost) if _begins_before(rng, end))
        if lost and self.settings.fail_on_data_loss:
            raise truncated_error(view, clipped, lost, self.settings.group)
        if lost:
            log_skipped(view, lost)
        start, end = clipped, end.above_head()
        if start.is_at_or_after(end):
            return []
        schema = check_columns(view, self._schema, self.settings.column_names)
        found = []
        for rng in covered(reads, start.ranges_to(end)):
            key_range = view.lineage.find(rng.segment_id).key_range
            constants = constants_of(name, rng.segment_id)
            chunks = partial(self._chunks, stream)
            one = planned(rng, of_keys(self.settings.routing_keys), constants, key_range, chunks)
            if one is not None:
                found.append((replace(one, schema=schema), key_range))
        return found

    def _chunks(self, stream: StreamLog, rng: SegmentRange) -> list[ChunkRef]:
        try:
            return stream.chunks(rng)
        except TruncatedData as error:
            raise TruncatedData(
                f"{error} {recovery_advice(self.settings.group)}", head=error.head, lost=error.lost
            ) from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's events as Arrow batches; runs in a task."""
        return read_events(self.settings, self._schema_json, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: Spark calls this after ``latestOffset`` has already reported the batch."""

    def stop(self) -> None:
        """Leave the reader group. Spark does not always call this."""
        self._is_stopped = True
        if self._membership is not None:
            self._membership.leave()


def _begins_before(lost: SegmentRange, end: LocatedCut) -> bool:
    """Return whether lost events are those of a batch up to ``end``; forgotten ones may be."""
    layout = end.layout
    if not layout.has_segment(lost.segment_id):
        return True
    offset = end.offset_in(layout.lineage.find(lost.segment_id))
    return offset == END or offset > lost.start


def _batch_start(start: StreamOffset | None, end: StreamOffset) -> StreamOffset:
    """Return where a batch starts in one stream; a new stream starts at its origin."""
    return replace(end, cut=end.origin if start is None else start.batch_start(end))
