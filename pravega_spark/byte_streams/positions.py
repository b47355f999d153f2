"""Where a byte of a stream is: its segment, its chunk, and the event that holds it.

Truncation at a byte: the head of a stream's bytes, which may lie inside an event. The head of the
stream is always the beginning of an event. The first byte that readers of bytes may read is a
separate record, ``pravega.byte_head``, that counts if it lies behind that event's first byte.
Both move in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from pravega_spark.engine.chunks import search
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json, typed
from pravega_spark.engine.stream.records import SegmentRecord
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.truncation import move_head, refuse_held
from pravega_spark.engine.stream.view import StreamView, ViewCheck
from pravega_spark.errors import (
    CorruptLog,
    DataLoss,
    IllegalState,
    InvalidInput,
    InvalidStreamCut,
    PravegaSparkError,
    SegmentTruncated,
    TooBusy,
    TruncatedData,
)
from pravega_spark.values.segments import SegmentRange, StreamCut, segment_text

BYTE_HEAD_DOMAIN: Final = "pravega.byte_head"
_ATTEMPTS: Final = 32


@dataclass(frozen=True, slots=True)
class ByteHead:
    """The first byte of a segment that may be read, counted from the segment's creation."""

    segment_id: int
    position: int

    def encode(self) -> str:
        """Return the JSON text."""
        return to_json([self.segment_id, self.position])

    def changes(self, view: StreamView, *, inside: bool) -> Mapping[str, str | None]:
        """Return the domain to set: this record if it lies inside an event, otherwise none."""
        if inside:
            return {BYTE_HEAD_DOMAIN: self.encode()}
        return {BYTE_HEAD_DOMAIN: None} if BYTE_HEAD_DOMAIN in view.snapshot.domains else {}

    @classmethod
    def of(cls, view: StreamView) -> ByteHead | None:
        """Return the record of a view; None without one."""
        text = view.snapshot.domains.get(BYTE_HEAD_DOMAIN)
        if text is None:
            return None
        try:
            segment_id, position = json.loads(text)
            return cls(typed(segment_id, int), typed(position, int))
        except DECODE_ERRORS as error:
            raise CorruptLog(
                f"{view.snapshot.where}: {BYTE_HEAD_DOMAIN} is {text!r}, which is not a position: "
                f"{error!r}. Restore the log from a copy.",
                path=view.snapshot.where,
                version=view.version,
            ) from error


def head_position(stream: StreamLog, view: StreamView, segment_id: int) -> int:
    """Return the first byte of a segment that may be read."""
    events = stream.bytes_at(segment_id, view.head_offset(segment_id), view)
    recorded = ByteHead.of(view)
    if recorded is None or recorded.segment_id != segment_id:
        return events
    return max(events, recorded.position)


def truncate_at_byte(
    stream: StreamLog,
    head: ByteHead,
    offset: int,
    offset_bytes: int,
    *,
    life: int,
    check: ViewCheck,
    past_subscribers: bool = False,
) -> None:
    """Move the head of the only active segment to a byte; nothing happens if it is there already.

    ``offset`` is that of the event that holds the byte, or begins with it; ``offset_bytes`` are the
    bytes before it. ``check`` raises for a view that the commit may not follow. Raises
    HeldBySubscriber, IllegalState while the stream is being sealed.
    """
    cut = StreamCut(stream.name, life, {head.segment_id: offset})
    allowed = None if past_subscribers else frozenset[str]()
    inside = head.position > offset_bytes

    def change(view: StreamView) -> Mapping[str, str | None]:
        check(view)
        return head.changes(view, inside=inside)

    def decide(view: StreamView) -> Proposal[bool]:
        if head_position(stream, view, head.segment_id) >= head.position:
            return None, True
        if view.head != cut:
            return None, False
        view.check_not_sealing("truncated")
        refuse_held(view, view.located_head, allowed, ())
        parameters = {"head": str(view.head), "by": "user", "byteHead": head.position}
        return Body("TRUNCATE STREAM", parameters, domains=change(view)), True

    for _ in range(_ATTEMPTS):
        view = stream.view(life=life)
        if head_position(stream, view, head.segment_id) >= head.position:
            return
        if view.head == cut:
            if stream.commit(decide, life=life).value:
                return
            continue
        try:
            move_head(
                stream,
                view,
                cut,
                by="user",
                allowed=allowed,
                bytes_at=lambda segment_id, at: offset_bytes,
                extra_domains=change,
            )
        except InvalidStreamCut:  # another truncation has passed it, or it is beyond the tail
            view = stream.view(life=life)
            if head_position(stream, view, head.segment_id) < head.position:
                raise
    raise TooBusy(
        f"stream {stream.name} was not truncated before byte {head.position}: other truncations "
        f"came first {_ATTEMPTS} times. Call again later."
    )


_Found = TypeVar("_Found")

_LOOK_UPS = 4
"""How often a chunk is looked up again that compaction or a sweep has replaced."""
_SMALL_CHUNK_BYTES = 4 << 20
"""A chunk of at most this size is read from its beginning, without a look at its footer."""


class Located(NamedTuple):
    """An event at or before a byte, where a read of it may begin."""

    offset: int
    offset_bytes: int
    """The bytes of the segment before the event."""
    event_bytes: int
    """About how long events are here."""
    chunk_rows: int
    """About how many events a chunk has here."""
    is_large: bool = False
    """Whether it is a large event, which is read alone."""


class ByteSegment:
    """The bytes of the only segment of a stream, in one life of it. Thread-safe."""

    def __init__(self, stream: StreamLog, *, life: int | None = None) -> None:
        """Take the stream's only active segment; raise IllegalState if it has several."""
        self.stream = stream
        view = stream.view(life=life)
        self.life = view.life
        view.check_raw("bytes")
        active = view.active.segment_ids
        if len(active) != 1:
            raise IllegalState(
                f"stream {stream.name} has {len(active)} segments, and only a stream of one "
                "segment has an order of bytes. Create one with ScalingPolicy.fixed(1), or merge "
                "the segments by a scale."
            )
        (self.segment_id,) = active

    def view(self, *, refresh: bool = True) -> StreamView:
        """Return the newest view of the life, or the last known one."""
        return self.stream.view(refresh, life=self.life)

    def record(self, view: StreamView) -> SegmentRecord:
        """Return the segment's length; raise SegmentTruncated if the head has left the segment."""
        if not view.has_segment(self.segment_id):
            raise SegmentTruncated(
                f"segment {segment_text(self.segment_id)} of stream {self.stream.name} was "
                f"truncated to its end{view.truncated_by}. Open the stream again.",
                head=view.head,
            )
        return view.segment(self.segment_id)

    def tail(self, view: StreamView) -> int:
        """Return the number of bytes that were written since the segment was created."""
        return self.record(view).size_bytes

    def head(self, view: StreamView) -> int:
        """Return the first byte that may be read."""
        self.record(view)
        return head_position(self.stream, view, self.segment_id)

    def newest_head(self) -> int:
        """Return the first byte that may be read, of the newest version."""
        return self.stream.on_newest(self.head, life=self.life)

    def check_readable(self, view: StreamView, position: int) -> None:
        """Raise SegmentTruncated for a position below the head."""
        if position < (head := self.head(view)):
            raise self.truncated(view, position, head)

    def truncated(self, view: StreamView, position: int, head: int) -> SegmentTruncated:
        """Return the error for a position below the head."""
        return SegmentTruncated(
            f"byte {position} of stream {self.stream.name} was truncated{view.truncated_by}; "
            f"continue at the head, byte {head}: seek(fetch_head_offset()).",
            head=view.head,
            head_offset=head,
        )

    def truncate_before(self, position: int, *, past_subscribers: bool, check: ViewCheck) -> None:
        """Make ``position`` the head; nothing happens if the head is there, or behind it.

        ``check`` raises for a view on which the caller may not truncate.
        """
        view = self.view()
        check(view)
        tail = self.tail(view)
        if position > tail:
            raise InvalidInput(
                f"stream {self.stream.name} cannot be truncated before byte {position}: its "
                f"durable bytes end at {tail}. Flush first, and give a position of at most "
                "fetch_tail_offset()."
            )
        if position <= self.newest_head():
            return
        try:
            offset, before = self._event_at(self.view(refresh=False), position)
        except TruncatedData:  # another truncation came first, and may have passed the position
            if self.newest_head() < position:
                raise
            return
        truncate_at_byte(
            self.stream,
            ByteHead(self.segment_id, position),
            offset,
            before,
            life=self.life,
            past_subscribers=past_subscribers,
            check=check,
        )

    def _event_at(self, view: StreamView, position: int) -> tuple[int, int]:
        """Return the offset of the event that holds a byte, and the bytes before it."""
        record = self.record(view)
        if position == record.size_bytes:
            return record.next_offset, position

        def find(ref: ChunkRef) -> tuple[int, int]:
            store, path = self.stream.store, self.stream.path
            after, size = search.offset_after(store, path, ref, position - ref.base_bytes)
            if ref.base_bytes + size == position:
                return after, position
            return after - 1, search.bytes_before(store, path, ref, after - 1)

        return self._in_chunk(view, position, find)

    def locate(self, view: StreamView, position: int) -> Located:
        """Return where to begin to read a byte between head and tail.

        Raises SegmentTruncated, and DataLoss for a file that does not exist.
        """

        def find(ref: ChunkRef) -> Located:
            average = ref.event_bytes // ref.rows
            if ref.event_bytes <= _SMALL_CHUNK_BYTES or ref.attachment:
                offset, before = ref.base_offset, 0
            else:
                store, path = self.stream.store, self.stream.path
                at = position - ref.base_bytes
                offset, before = search.row_group_with(store, path, ref, at)
            is_large = bool(ref.attachment)
            return Located(
                offset=offset,
                offset_bytes=ref.base_bytes + before,
                event_bytes=average,
                chunk_rows=ref.rows,
                is_large=is_large,
            )

        found = self._in_chunk(view, position, find)
        first = view.head_offset(self.segment_id)
        if found.offset >= first:
            return found
        before = self.stream.bytes_at(self.segment_id, first, view)
        return found._replace(offset=first, offset_bytes=before)

    def _in_chunk(
        self, view: StreamView, position: int, find: Callable[[ChunkRef], _Found]
    ) -> _Found:
        for attempt in range(_LOOK_UPS):
            try:
                return find(self.chunk_at(view, position))
            except FileNotFoundError as error:
                if attempt + 1 == _LOOK_UPS:
                    raise DataLoss(
                        f"byte {position} of stream {self.stream.name} is lost: the file of its "
                        f"chunk does not exist: {error} Restore the file from a copy.",
                        stream=self.stream.name,
                    ) from error
                view = self.view()
        raise AssertionError

    def chunk_at(self, view: StreamView, position: int) -> ChunkRef:
        """Return the chunk that holds a byte, by few look-ups however many chunks there are."""
        low = view.head_offset(self.segment_id)
        record = self.record(view)
        low_bytes = self.stream.bytes_at(self.segment_id, low, view)
        high, high_bytes = record.next_offset, record.size_bytes
        if position < low_bytes:  # the view is newer than the one that the caller has checked
            raise self.truncated(view, position, self.head(view))
        assert low_bytes <= position < high_bytes, (low_bytes, position, high_bytes)
        turn = 0
        while True:
            probe = low + (position - low_bytes) * (high - low) // (high_bytes - low_bytes)
            if turn % 3 == 2:  # events of very different lengths mislead the interpolation
                probe = (low + high) // 2
            turn += 1
            rng = SegmentRange(
                self.stream.name,
                life=self.life,
                segment_id=self.segment_id,
                start=probe,
                end=probe + 1,
            )
            try:
                (ref,) = self.stream.chunks(rng)
            except TruncatedData:
                newest = self.view(refresh=False)
                self.check_readable(newest, position)
                if newest.version == view.version:
                    raise
                return self.chunk_at(newest, position)
            if position < ref.base_bytes:
                high, high_bytes = ref.base_offset, ref.base_bytes
            elif position >= ref.base_bytes + ref.event_bytes:
                low, low_bytes = ref.end, ref.base_bytes + ref.event_bytes
            else:
                return ref

    def rest_of(self, view: StreamView, offset: int) -> SegmentRange:
        """Return the range from an event to the segment's end in a view."""
        end = self.record(view).next_offset
        return SegmentRange(
            self.stream.name, life=self.life, segment_id=self.segment_id, start=offset, end=end
        )

    def scaled(self, view: StreamView) -> PravegaSparkError | None:
        """Return the error for a segment that a scale has sealed; None for any other."""
        if view.active.segment_ids == (self.segment_id,):
            return None
        return IllegalState(
            f"stream {self.stream.name} was scaled: its bytes end at {self.tail(view)}, with "
            f"segment {segment_text(self.segment_id)}. Read the successors as streams of events, "
            "or open it again once it has one segment."
        )
