"""A stream at one version: its state as typed records, which are decoded on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pravega_spark.engine.kinds import KEPT_PLACE, LogKind, kind_with, log_title
from pravega_spark.engine.layout.epochs import Layout, Lineage, no_such_segment
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.log.snapshot import Snapshot
from pravega_spark.engine.stream.records import (
    EPOCH_PREFIX,
    FENCE_DOMAIN,
    NOTE_PREFIX,
    OUTCOME_PREFIX,
    RESTORED_DOMAIN,
    SAMPLE_PREFIX,
    SEGMENT_PREFIX,
    STREAM_DOMAIN,
    SUBSCRIBER_PREFIX,
    WRITER_PREFIX,
    FenceRecord,
    OpenTransaction,
    PlaceMark,
    SampleRecord,
    SegmentRecord,
    SizedCut,
    StreamRecord,
    StreamState,
    SubscriberRecord,
    TransactionOutcome,
    WriterRecord,
    decode_epoch,
    decode_fence,
    decode_mark,
    decode_open,
    decode_outcome,
    decode_restoration,
    decode_sample,
    decode_segment,
    decode_stream,
    decode_subscriber,
    decode_writer,
)
from pravega_spark.engine.stream.table_schema import table_format
from pravega_spark.errors import (
    CorruptLog,
    IllegalState,
    InvalidInput,
    NoSuchStream,
    StaleIdentity,
)
from pravega_spark.primitives.lazy_property import lazy_property
from pravega_spark.values.segments import END, Epoch, StreamCut, segment_epoch
from pravega_spark.values.times import utc_text

_Call = ParamSpec("_Call")
_Record = TypeVar("_Record")


PastLayouts = Callable[["StreamView", int], "Layout | None"]
"""Returns a view with the epochs from a number on; None if one of them is unknown."""


class StreamView:
    """A stream at one version: immutable, and cheap to create from a snapshot."""

    def __init__(self, snapshot: Snapshot, past: PastLayouts | None = None) -> None:
        """Decode the stream's record; others are decoded on first use.

        ``past`` reads forgotten epochs in the stream's history; without it they stay unknown.
        """
        text = snapshot.domains.get(STREAM_DOMAIN)
        if text is None:
            raise CorruptLog(
                f"{snapshot.where}: version {snapshot.version} of the log holds no "
                f"{STREAM_DOMAIN}. Restore the log from a copy.",
                path=snapshot.where,
                version=snapshot.version,
            )
        self.snapshot = snapshot
        self.event_format = table_format(snapshot.metadata, snapshot.where)
        """The columns of the stream's events."""
        record: StreamRecord = self._read(decode_stream, text)
        schema = self.event_format.schema
        self.record = record if schema is None else record.with_schema(schema)
        self._segments = dict[int, SegmentRecord]()
        self._read_past = past
        self._past = dict[int, Layout | None]()

    def _read(
        self, decode: Callable[_Call, _Record], *args: _Call.args, **kwargs: _Call.kwargs
    ) -> _Record:
        """Decode a record; an error of damage names this table."""
        try:
            return decode(*args, **kwargs)
        except CorruptLog as error:
            error.locate(self.snapshot.where)
            raise

    @property
    def stream(self) -> str:
        """The stream's name, ``scope/stream``."""
        return self.record.stream

    @property
    def life(self) -> int:
        """The creation count of the name, from 1."""
        return self.record.life

    @property
    def version(self) -> int:
        """The log version."""
        return self.snapshot.version

    @property
    def timestamp_ms(self) -> int:
        """The time of the version's commit."""
        return self.snapshot.timestamp_ms

    @property
    def oldest_epoch(self) -> int:
        """The oldest epoch that the log's state keeps."""
        return self.record.oldest_epoch

    @lazy_property
    def active(self) -> Epoch:
        """The active epoch."""
        return self.epoch(self.record.active_epoch)

    def epoch(self, number: int) -> Epoch:
        """Return a kept epoch; raise InvalidInput for any other number."""
        text = self.snapshot.domains.get(f"{EPOCH_PREFIX}{number}")
        if text is None:
            raise InvalidInput(
                f"stream {self.stream} keeps the epochs {self.oldest_epoch} to "
                f"{self.record.active_epoch}; epoch {number} is not one of them."
            )
        return self._read(decode_epoch, number, text)

    def since(self, number: int) -> Layout | None:
        """Return this version with forgotten epochs, too, from a number on; None if unknown.

        Reads the stream's history, once for each number.
        """
        if number not in self._past:
            self._past[number] = None if self._read_past is None else self._read_past(self, number)
        return self._past[number]

    def has_segment(self, segment_id: int) -> bool:
        """Return True if the log's state keeps the segment's record."""
        return f"{SEGMENT_PREFIX}{segment_id}" in self.snapshot.domains

    def segment(self, segment_id: int) -> SegmentRecord:
        """Return a segment's record; raise NoSuchSegment if it has none."""
        known = self._segments.get(segment_id)
        if known is None:
            known = self._segments[segment_id] = self._decoded(segment_id)
        return known

    def _decoded(self, segment_id: int) -> SegmentRecord:
        text = self.snapshot.domains.get(f"{SEGMENT_PREFIX}{segment_id}")
        if text is None:
            raise no_such_segment(self, segment_id)
        return self._read(decode_segment, segment_id, text)

    def writer(self, writer_id: str) -> WriterRecord | None:
        """Return a writer's record, or None if the log has none."""
        text = self.snapshot.domains.get(f"{WRITER_PREFIX}{writer_id}")
        note = self.snapshot.domains.get(f"{NOTE_PREFIX}{writer_id}")
        return None if text is None else self._read(decode_writer, writer_id, text, note)

    def writer_changes(self, record: WriterRecord) -> dict[str, str]:
        """Return the domains that a writer's next record changes; its note only if it is new."""
        changes = {f"{WRITER_PREFIX}{record.writer_id}": record.encode()}
        name, note = f"{NOTE_PREFIX}{record.writer_id}", record.encode_note()
        if note is not None and note != self.snapshot.domains.get(name):
            changes[name] = note
        return changes

    @lazy_property
    def transactions(self) -> dict[str, OpenTransaction]:
        """The transactions without an outcome, by id."""
        return {
            name: self._read(decode_open, name, text) for name, text in self.snapshot.open.items()
        }

    def transaction(self, transaction_id: str) -> OpenTransaction | None:
        """Return a transaction without an outcome, or None if it is unknown or has one."""
        text = self.snapshot.open.get(transaction_id)
        return None if text is None else self._read(decode_open, transaction_id, text)

    def outcome(self, transaction_id: str) -> TransactionOutcome | None:
        """Return a transaction's outcome, or None if it has none, or none that is still kept."""
        text = self.snapshot.domains.get(f"{OUTCOME_PREFIX}{transaction_id}")
        return None if text is None else self._read(decode_outcome, transaction_id, text)

    def subscriber(self, name: str) -> SubscriberRecord | None:
        """Return a subscriber's record, also a removed one's, or None if the log has none."""
        text = self.snapshot.domains.get(f"{SUBSCRIBER_PREFIX}{name}")
        return None if text is None else self._read(decode_subscriber, name, text)

    @lazy_property
    def subscribers(self) -> list[SubscriberRecord]:
        """The present subscribers, by name."""
        names = self.snapshot.names(SUBSCRIBER_PREFIX)
        found = (self.subscriber(name.removeprefix(SUBSCRIBER_PREFIX)) for name in sorted(names))
        return [record for record in found if record is not None and not record.removed]

    @lazy_property
    def samples(self) -> list[SampleRecord]:
        """The retention set, oldest first."""
        domains = self.snapshot.domains
        found = (
            (int(name.removeprefix(SAMPLE_PREFIX)), domains[name])
            for name in self.snapshot.names(SAMPLE_PREFIX)
        )
        return [self._read(decode_sample, version, text) for version, text in sorted(found)]

    @lazy_property
    def fence(self) -> FenceRecord:
        """The newest fencing token."""
        text = self.snapshot.domains.get(FENCE_DOMAIN)
        return FenceRecord() if text is None else self._read(decode_fence, text)

    @property
    def kind(self) -> LogKind:
        """What is true of logs as this one."""
        return kind_with(self.snapshot.domains)

    def marked(self, domain: str) -> PlaceMark | None:
        """Return the place that a domain marks, or None."""
        text = self.snapshot.domains.get(domain)
        return None if text is None else self._read(decode_mark, text)

    @lazy_property
    def kept_place(self) -> StreamCut | None:
        """The cut before the place that retention keeps, without which what follows is lost.

        None for a stream without one, and where it is gone or its segment was scaled.
        """
        found = self.marked(KEPT_PLACE.domain)
        if found is None:
            return None
        offset, segment_id = found.offset, found.segment_id
        later = self.marked(KEPT_PLACE.or_later)
        if later is not None and later.segment_id == segment_id:
            offset = max(offset, later.offset)
        if self.active.segment_ids != (segment_id,) or self.is_truncated(segment_id, offset):
            return None
        return StreamCut(self.stream, self.life, {segment_id: offset})

    @lazy_property
    def restored_ms(self) -> int | None:
        """When a restore began this life, or None if none did, or one of an earlier version."""
        text = self.snapshot.domains.get(RESTORED_DOMAIN)
        found = None if text is None else self._read(decode_restoration, text)
        return None if found is None or found.life != self.life else found.time_ms

    @lazy_property
    def total_bytes(self) -> int:
        """Bytes of all events of this life, also of truncated ones."""
        ids = (int(n.removeprefix(SEGMENT_PREFIX)) for n in self.snapshot.names(SEGMENT_PREFIX))
        return self.record.gone_bytes + sum(self.segment(s).size_bytes for s in ids)

    def sized(self, cut: StreamCut, bytes_at: Callable[[int, int], int | None]) -> SizedCut:
        """Return a cut of this version with the bytes of its segments, except truncated ones.

        ``bytes_at`` is as for :meth:`LocatedCut.bytes_to`; None leaves a segment out.
        """
        sizes = dict[int, int]()
        for segment_id, offset in cut:
            if offset > 0 and self.has_segment(segment_id):
                record = self.segment(segment_id)
                if offset == record.next_offset:
                    sizes[segment_id] = record.size_bytes
                elif not self.is_truncated(segment_id, offset):
                    size = bytes_at(segment_id, offset)
                    if size is not None:
                        sizes[segment_id] = size
        return SizedCut(cut.positions, sizes)

    @lazy_property
    def lineage(self) -> Lineage:
        """The successors and predecessors of segments."""
        return Lineage(self)

    @lazy_property
    def head(self) -> StreamCut:
        """The first readable cut."""
        return StreamCut(self.stream, self.life, self.record.head)

    @lazy_property
    def located_head(self) -> LocatedCut:
        """The head as a located cut."""
        return locate(self, self.head)

    def head_offset(self, segment_id: int) -> int:
        """Return the first readable offset of a segment; its next offset if none is readable."""
        offset = self.located_head.offset_in(self.lineage.find(segment_id))
        return self.segment(segment_id).next_offset if offset == END else max(0, offset)

    def is_truncated(self, segment_id: int, offset: int) -> bool:
        """Return True if an offset of a segment lies below the head.

        A forgotten segment does; a segment that this version does not know yet does not.
        """
        if not self.has_segment(segment_id):
            return segment_epoch(segment_id) < self.oldest_epoch
        first = self.located_head.offset_in(self.lineage.find(segment_id))
        return first == END or offset < first

    @property
    def truncated_by(self) -> str:
        """The author and time of the last truncation, as a part of a sentence, or empty."""
        last = self.record.truncation
        if last is None:
            return ""
        return f" by {last.by} at version {last.version} ({utc_text(last.time_ms)})"

    @lazy_property
    def tail(self) -> StreamCut:
        """The cut after the last event: the active segments at their next offsets."""
        return self.located_tail.cut

    @lazy_property
    def located_tail(self) -> LocatedCut:
        """The tail as a located cut."""
        return locate(self, StreamCut.LATEST)

    def check_life(self, life: int) -> None:
        """Raise StaleIdentity or NoSuchStream unless the stream is in this life."""
        self.check_exists()
        if life != self.life:
            raise StaleIdentity(
                f"{log_title(self.stream)} was deleted and created again, or restored from a copy: "
                f"it is in life {self.life}, and this call or object belongs to life {life}. Open "
                "it again.",
                name=self.stream,
                life=life,
                current_life=self.life,
            )

    def check_not_sealing(self, change: str) -> None:
        """Raise IllegalState while the stream is being sealed; ``change`` is the refused verb."""
        if self.record.state is StreamState.SEALING:
            raise IllegalState(
                f"{log_title(self.stream)} is being sealed (version {self.version}) and cannot be "
                f"{change} before that is done. Seal it again to finish the seal."
            )

    def check_raw(self, what: str) -> None:
        """Raise IllegalState for a typed stream; ``what`` is what only raw events can be."""
        if not self.event_format.is_raw:
            raise IllegalState(
                f"{log_title(self.stream)} is typed, and {what} are made of raw events: create a "
                "stream without a schema for them."
            )

    def check_exists(self) -> None:
        """Raise NoSuchStream if the stream was deleted."""
        if self.record.state is StreamState.DELETED:
            raise NoSuchStream(
                f"{log_title(self.stream)} does not exist: it was deleted (version {self.version} "
                "of its log).",
                stream=self.stream,
            )


ViewCheck = Callable[[StreamView], None]
"""Raises for a view that a commit may not follow."""
