"""One open stream: its log, immutable typed views of it, and its chunks by offset."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timezone
from functools import cached_property
from typing import TypeVar

from pravega_spark.engine import chunk_reading, cuts, hygiene
from pravega_spark.engine.actions import DAMAGE, Add
from pravega_spark.engine.chunk import ChunkRef
from pravega_spark.engine.epochs import Lineage
from pravega_spark.engine.files import OFFSET_COLUMN, SEGMENT_COLUMN
from pravega_spark.engine.log import Committed, Log, Proposal
from pravega_spark.engine.places import Place, locate
from pravega_spark.engine.records import (
    EPOCH_PREFIX,
    NOTE_PREFIX,
    OUTCOME_PREFIX,
    SAMPLE_PREFIX,
    SEGMENT_PREFIX,
    STREAM_DOMAIN,
    SUBSCRIBER_PREFIX,
    WRITER_PREFIX,
    OpenTransaction,
    Outcome,
    SampleRecord,
    SegmentRecord,
    SizedCut,
    StreamRecord,
    StreamState,
    SubscriberRecord,
    WriterRecord,
    decode_epoch,
    decode_open,
    decode_outcome,
    decode_sample,
    decode_segment,
    decode_stream,
    decode_subscriber,
    decode_writer,
)
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.snapshot import Snapshot
from pravega_spark.engine.store import Store, open_store
from pravega_spark.errors import (
    CorruptLog,
    DataLoss,
    IllegalState,
    InvalidInput,
    NoSuchSegment,
    NoSuchStream,
    StaleIdentity,
    TruncatedData,
)
from pravega_spark.model import (
    END,
    Epoch,
    SegmentRange,
    StreamCut,
    segment_epoch,
    segment_text,
)
from pravega_spark.names import split_stream

EVENT_COLUMNS: Mapping[str, str] = {
    SEGMENT_COLUMN: "long",
    OFFSET_COLUMN: "long",
    "offset_delta": "integer",
    "routing_key": "string",
    "timestamp": "timestamp",
    "event": "binary",
}


Sizes = dict[tuple[int, int], int]
"""Bytes of segments before offsets."""


def events_path(name: str) -> str:
    """Return the key of a stream's table of events."""
    return f"{name}/events"


_WAY_ON = "create it first, or name another."
_Value = TypeVar("_Value")


class StreamView:
    """A stream at one version: immutable, and cheap to make from a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Read the stream's record; the rest is read when it is asked for."""
        text = snapshot.domains.get(STREAM_DOMAIN)
        if text is None:
            raise CorruptLog(f"version {snapshot.version} of the log holds no {STREAM_DOMAIN}.")
        self.snapshot = snapshot
        self.record: StreamRecord = decode_stream(text)
        self._segments = dict[int, SegmentRecord]()

    @property
    def stream(self) -> str:
        """The stream's name, ``scope/stream``."""
        return self.record.stream

    @property
    def life(self) -> int:
        """Which creation of the name this is, from 1."""
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
        """The oldest epoch whose record is kept in the log's state."""
        return self.record.oldest_epoch

    @cached_property
    def active(self) -> Epoch:
        """The active epoch."""
        return self.epoch(self.record.active_epoch)

    def epoch(self, number: int) -> Epoch:
        """Return an epoch that is kept; raise InvalidInput for any other number."""
        text = self.snapshot.domains.get(f"{EPOCH_PREFIX}{number}")
        if text is None:
            raise InvalidInput(
                f"stream {self.stream} keeps the epochs {self.oldest_epoch} to "
                f"{self.record.active_epoch}; epoch {number} is not one of them."
            )
        return decode_epoch(number, text)

    def has_segment(self, segment_id: int) -> bool:
        """Tell whether the segment's record is kept."""
        return f"{SEGMENT_PREFIX}{segment_id}" in self.snapshot.domains

    def segment(self, segment_id: int) -> SegmentRecord:
        """Return a segment's record; raise NoSuchSegment if there is none."""
        known = self._segments.get(segment_id)
        if known is None:
            known = self._segments[segment_id] = self._decoded(segment_id)
        return known

    def _decoded(self, segment_id: int) -> SegmentRecord:
        text = self.snapshot.domains.get(f"{SEGMENT_PREFIX}{segment_id}")
        if text is None:
            raise NoSuchSegment(
                f"stream {self.stream} has no segment {segment_text(segment_id)}; its active ones "
                f"are {', '.join(map(str, self.active.segments))}."
            )
        return decode_segment(segment_id, text)

    def writer(self, writer_id: str) -> WriterRecord | None:
        """Return how far the log has a writer, or None if it does not know it."""
        text = self.snapshot.domains.get(f"{WRITER_PREFIX}{writer_id}")
        note = self.snapshot.domains.get(f"{NOTE_PREFIX}{writer_id}")
        return None if text is None else decode_writer(writer_id, text, note)

    def writer_changes(self, record: WriterRecord) -> dict[str, str]:
        """Return the domains that a writer's next record changes: its note only if it is new."""
        changes = {f"{WRITER_PREFIX}{record.writer_id}": record.encode()}
        name, note = f"{NOTE_PREFIX}{record.writer_id}", record.encode_note()
        if note is not None and note != self.snapshot.domains.get(name):
            changes[name] = note
        return changes

    @cached_property
    def transactions(self) -> dict[str, OpenTransaction]:
        """The transactions without an outcome, by id."""
        return {name: decode_open(name, text) for name, text in self.snapshot.open.items()}

    def transaction(self, transaction_id: str) -> OpenTransaction | None:
        """Return a transaction without an outcome, or None if it is not such a one."""
        text = self.snapshot.open.get(transaction_id)
        return None if text is None else decode_open(transaction_id, text)

    def outcome(self, transaction_id: str) -> Outcome | None:
        """Return how a transaction ended, or None if it did not, or too long ago to be kept."""
        text = self.snapshot.domains.get(f"{OUTCOME_PREFIX}{transaction_id}")
        return None if text is None else decode_outcome(transaction_id, text)

    def subscriber(self, group: str) -> SubscriberRecord | None:
        """Return a subscriber's record, also a removed one's, or None if there never was one."""
        text = self.snapshot.domains.get(f"{SUBSCRIBER_PREFIX}{group}")
        return None if text is None else decode_subscriber(group, text)

    @cached_property
    def subscribers(self) -> list[SubscriberRecord]:
        """The subscribers that are not removed, by name."""
        names = self.snapshot.names(SUBSCRIBER_PREFIX)
        found = (self.subscriber(name.removeprefix(SUBSCRIBER_PREFIX)) for name in sorted(names))
        return [record for record in found if record is not None and not record.removed]

    @cached_property
    def samples(self) -> list[SampleRecord]:
        """The retention set, oldest first."""
        domains = self.snapshot.domains
        found = (
            (int(name.removeprefix(SAMPLE_PREFIX)), domains[name])
            for name in self.snapshot.names(SAMPLE_PREFIX)
        )
        return [decode_sample(version, text) for version, text in sorted(found)]

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all events since the creation of this life, also of those truncated."""
        ids = (int(n.removeprefix(SEGMENT_PREFIX)) for n in self.snapshot.names(SEGMENT_PREFIX))
        return self.record.gone_bytes + sum(self.segment(s).size_bytes for s in ids)

    def sized(self, cut: StreamCut, bytes_at: Callable[[int, int], int | None]) -> SizedCut:
        """Return a cut of this version with its bytes, except those below the head.

        ``bytes_at`` is as for :func:`cuts.distance_bytes`; None leaves a segment out.
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

    @cached_property
    def lineage(self) -> Lineage:
        """Which segment follows which."""
        return Lineage(self)

    @cached_property
    def head(self) -> StreamCut:
        """The first place that can be read."""
        return StreamCut(self.stream, self.life, self.record.head)

    @cached_property
    def head_place(self) -> Place:
        """The head, laid over the key space."""
        return locate(self.lineage, self.head)

    def head_offsets(self, segment_ids: Iterable[int]) -> dict[int, int]:
        """Return the first offset of each segment that can be read; its end where none can."""
        marks = {s: self.head_place.of(self.lineage.find(s)) for s in segment_ids}
        return {
            s: self.segment(s).next_offset if mark == END else max(0, mark)
            for s, mark in marks.items()
        }

    def head_offset(self, segment_id: int) -> int:
        """Return the first offset that can be read of a segment that the head names, or follows it.

        That is its end where it was truncated as a whole.
        """
        mark = self.record.head.get(segment_id, 0)
        return self.segment(segment_id).next_offset if mark == END else max(0, mark)

    def is_truncated(self, segment_id: int, offset: int) -> bool:
        """Tell whether an offset of a segment lies below the head.

        A segment that is forgotten does; one that this version does not know yet does not.
        """
        if not self.has_segment(segment_id):
            return segment_epoch(segment_id) < self.oldest_epoch
        mark = self.head_place.of(self.lineage.find(segment_id))
        return mark == END or offset < mark

    @property
    def truncated_by(self) -> str:
        """Who moved the head last and when, as a part of a sentence; empty if nobody did."""
        last = self.record.truncation
        if last is None:
            return ""
        time = datetime.fromtimestamp(last.time_ms / 1_000, timezone.utc)
        return f" by {last.by} at version {last.version} ({time:%Y-%m-%d %H:%M:%S} UTC)"

    @cached_property
    def tail(self) -> StreamCut:
        """The place after the last event: the active segments at their next offsets."""
        return cuts.tail(self)

    def check_life(self, life: int) -> None:
        """Raise StaleIdentity or NoSuchStream unless this is that life of the stream."""
        self.check_exists()
        if life != self.life:
            raise StaleIdentity(
                f"stream {self.stream} was deleted and created again, or restored from a copy: it "
                f"is in life {self.life}, and what is used here belongs to life {life}. Open it "
                "anew."
            )

    def check_not_sealing(self, change: str) -> None:
        """Raise IllegalState while the stream is being sealed; ``change`` says what has to wait."""
        if self.record.state is StreamState.SEALING:
            raise IllegalState(
                f"stream {self.stream} is being sealed (seen at version {self.version}): it can be "
                f"{change} again when that is done; finish it by StreamManager.seal_stream."
            )

    def check_exists(self) -> None:
        """Raise NoSuchStream if the stream was deleted."""
        if self.record.state is StreamState.DELETED:
            raise NoSuchStream(
                f"stream {self.stream} does not exist: it was deleted (seen at version "
                f"{self.version} of its log); {_WAY_ON}"
            )


class Stream:
    """An open stream of one process: thread-safe; a forked child must open its own."""

    def __init__(self, store: Store, name: str, runtime: Runtime = SYSTEM) -> None:
        """Name the stream; nothing is read until it is needed."""
        split_stream(name)
        self.name = name
        self.store = store
        self.path = events_path(name)
        self.runtime = runtime
        self.log = Log(store, self.path, runtime)
        self.log.maintain = hygiene.in_background
        self._view: StreamView | None = None

    def now_ms(self) -> int:
        """Return the time for what is committed now, in ms since 1970."""
        return self.log.clock.now_ms()

    @property
    def root_url(self) -> str:
        """The root, from which another process can open the same stream."""
        return self.store.url

    def view(self, refresh: bool = True, *, life: int | None = None) -> StreamView:
        """Return the newest view (one storage call if nothing is new), or the last known one.

        Raises NoSuchStream if the stream does not exist, StaleIdentity if it is not in ``life``.
        """
        snapshot = self.log.snapshot
        if refresh or snapshot is None:
            snapshot = self.log.refresh(settle=True)
        if snapshot is None:
            raise self.absent()
        view = self.view_of(snapshot)
        view.check_exists()
        if life is not None:
            view.check_life(life)
        return view

    def view_of(self, snapshot: Snapshot) -> StreamView:
        """Return the view of a snapshot: one for all who ask for the newest snapshot.

        What a commit needs to know can so be worked out before the log is held for it.
        """
        known = self._view
        if known is None or known.snapshot is not snapshot:
            known = self._view = StreamView(snapshot)
        return known

    def absent(self) -> NoSuchStream:
        """Return the error that a stream without a log raises."""
        return NoSuchStream(f"stream {self.name} does not exist under {self.root_url}; {_WAY_ON}")

    def life_of(self, life: int | None) -> int:
        """Return the life that a call was made for: the one it names, or the present one."""
        return self.view().life if life is None else life

    def commit(
        self, decide: Callable[[StreamView], Proposal[_Value]], *, life: int
    ) -> Committed[_Value]:
        """Commit what ``decide`` proposes on the newest view of one life of the stream.

        ``life`` is the one that the caller saw when its call began: after that one has ended
        nothing is committed, however long the call was stopped in between. Raises StaleIdentity,
        NoSuchStream, what ``decide`` raises, and what :meth:`Log.commit` does.
        """

        def decide_on(snapshot: Snapshot | None) -> Proposal[_Value]:
            if snapshot is None:
                raise self.absent()
            view = self.view_of(snapshot)
            view.check_life(life)
            return decide(view)

        return self.log.commit(decide_on)

    def chunks(self, rng: SegmentRange) -> list[ChunkRef]:
        """Return the chunks that cover exactly the range, in offset order.

        Raises TruncatedData for a range that begins below the head as it is known here, even if a
        chunk still holds it; DataLoss for events that the log does not have, StaleIdentity or
        NoSuchStream for a life that ended.
        """
        if rng.start >= rng.end:
            return []
        view = self.view(refresh=False)
        if view.life == rng.life and view.is_truncated(rng.segment_id, rng.start):
            raise _truncated(view, rng)
        return self._resolved(rng)

    def _resolved(self, rng: SegmentRange) -> list[ChunkRef]:
        """Do what :meth:`chunks` does, below the head as well while chunks are left there."""
        refs, at = self._covering(rng)
        return refs if at >= rng.end else self._look_again(rng)

    def _covering(self, rng: SegmentRange) -> tuple[list[ChunkRef], int]:
        """Return the chunks of the range, and how far they cover it without a gap."""
        with self.log.files() as files:
            refs = [chunk_ref(add) for add in files.find(rng.segment_id, rng.start, rng.end)]
        at = rng.start
        for ref in refs:
            if ref.base_offset > at:
                break
            at = ref.end
        return refs, at

    def _look_again(self, rng: SegmentRange) -> list[ChunkRef]:
        """Do what :meth:`chunks` does at the head of the log: what is known may be older."""
        view = self.view()
        view.check_life(rng.life)
        refs, at = self._covering(rng)
        if at >= rng.end:
            return refs
        if view.is_truncated(rng.segment_id, at):
            raise _truncated(view, rng)
        raise DataLoss(
            f"{rng} cannot be read: the log of version {view.version} has no chunk with offset "
            f"{at}; the segment's next offset is {view.segment(rng.segment_id).next_offset}."
        )

    def bytes_at(self, segment_id: int, offset: int, view: StreamView | None = None) -> int:
        """Return the cumulative bytes of the segment's events before ``offset``, exactly.

        Below the head as well, while a chunk is left that tells; else raises TruncatedData.
        """
        found = self._bytes_or_chunk(segment_id, offset, view or self.view(refresh=False))
        return found if isinstance(found, int) else self._bytes_inside(found, offset)

    def bytes_of(self, places: Collection[tuple[int, int]], view: StreamView) -> Sizes:
        """Do what :meth:`bytes_at` does for many segments; several chunks are read at once."""
        found = {place: self._bytes_or_chunk(*place, view) for place in places}
        inside = [(place, ref) for place, ref in found.items() if isinstance(ref, ChunkRef)]
        sizes = self.runtime.each(lambda item: self._bytes_inside(item[1], item[0][1]), inside)
        told = {place: size for place, size in found.items() if isinstance(size, int)}
        return told | {place: size for (place, _), size in zip(inside, sizes, strict=True)}

    def _bytes_or_chunk(self, segment_id: int, offset: int, view: StreamView) -> int | ChunkRef:
        """Return the bytes before an offset if the log tells them, or the chunk that does."""
        record = view.segment(segment_id)
        if offset <= 0:
            return 0
        if offset >= record.next_offset:
            return record.size_bytes
        rng = SegmentRange(self.name, view.life, segment_id, offset, offset + 1)
        (ref,) = self._resolved(rng)
        return ref.base_bytes if ref.base_offset == offset else ref

    def _bytes_inside(self, ref: ChunkRef, offset: int) -> int:
        return chunk_reading.bytes_before(self.store, self.path, ref, offset)

    def offset_after(self, rng: SegmentRange, size_bytes: int) -> tuple[int, int]:
        """Return the first offset of a range with so many bytes of the segment before it.

        And how many there are. The end of the range, if it does not have so many.
        """
        for ref in self._resolved(rng):
            if ref.base_bytes + ref.event_bytes >= size_bytes:
                left = size_bytes - ref.base_bytes
                offset, size = chunk_reading.offset_after(self.store, self.path, ref, left)
                if offset < rng.end:
                    return offset, ref.base_bytes + size
        return rng.end, self.bytes_at(rng.segment_id, rng.end)


def _truncated(view: StreamView, rng: SegmentRange) -> TruncatedData:
    return TruncatedData(
        f"{rng} was truncated{view.truncated_by} up to the head {view.head}; go on at the head."
    )


def chunk_ref(add: Add) -> ChunkRef:
    """Return a file of the log as a chunk."""
    try:
        tags = add.tags or {}
        return ChunkRef(
            add.path,
            int(add.partition[SEGMENT_COLUMN]),
            int(add.partition[OFFSET_COLUMN]),
            int(tags["rows"]),
            add.size,
            int(tags["bytes"]),
            int(tags["baseBytes"]),
            int(tags["minTimestamp"]),
            int(tags["maxTimestamp"]),
        )
    except DAMAGE as error:
        raise CorruptLog(f"the log's file {add.path} is no chunk: {error!r}.") from error


class _OpenStreams:
    """The streams of this process, by root and name; a forked child begins with none."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Forget all, the lock too, which a thread of the parent may hold for ever."""
        self._lock = threading.Lock()
        self._streams: dict[tuple[str, str], Stream] = {}

    def get(self, store: Store, name: str) -> Stream:
        """Return the stream that was opened before, or open it."""
        key = (store.url, name)
        with self._lock:
            stream = self._streams.get(key)
            if stream is None or stream.store is not store:
                if len(self._streams) >= _OPEN_LIMIT:
                    self._streams.pop(next(iter(self._streams)))
                stream = self._streams[key] = Stream(store, name)
            return stream


_OPEN_LIMIT = 1_024
_open = _OpenStreams()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.renew)


def open_stream(root: str | Store, name: str) -> Stream:
    """Return this process's stream of that root and name; it need not exist yet.

    Streams are cached by process, so that a worker of Spark keeps its snapshot between tasks.
    """
    return _open.get(open_store(root) if isinstance(root, str) else root, name)
