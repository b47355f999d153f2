"""RevisionedStream: a stream of one segment as a log that is written at a known revision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, NamedTuple

from pravega_spark.engine.kinds import MARK_DOMAIN, STATE_DOMAIN
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.log.commit import Proposal
from pravega_spark.engine.runtime.system import ProcessGuard
from pravega_spark.engine.stream import truncation
from pravega_spark.engine.stream.read import read_range
from pravega_spark.engine.stream.records import PlaceMark, StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append import ANY_OFFSET, sealed_error
from pravega_spark.engine.writing.encode import Serializer
from pravega_spark.errors import (
    ConditionFailed,
    IllegalState,
    InvalidInput,
    InvalidStreamCut,
    ObjectClosed,
    SegmentSealed,
    StaleIdentity,
    StreamSealed,
    TruncatedData,
)
from pravega_spark.event_writer import EventStreamWriter, write_revision
from pravega_spark.primitives.process_locks import new_lock
from pravega_spark.values.checks import check_function, shown
from pravega_spark.values.events import Deserializer
from pravega_spark.values.handles import ClosedByBlock, NotPicklable
from pravega_spark.values.segments import EventPointer, SegmentRange, StreamCut, segment_text


def compare_and_set_mark(
    stream: StreamLog, life: int, segment_id: int, expected: int | None, offset: int | None
) -> bool:
    """Set the mark of a segment in one commit if it is the expected one; None: there is none.

    A mark of another segment, of before a scale, counts as none. Raises StreamSealed.
    """

    def decide(view: StreamView) -> Proposal[bool]:
        known = view.marked(MARK_DOMAIN)
        present = None if known is None or known.segment_id != segment_id else known.offset
        if present != expected:
            return None, False
        if offset == present:
            return None, True
        if view.record.state is not StreamState.ACTIVE:
            raise StreamSealed(
                f"stream {stream.name} is sealed, and its mark cannot be moved any more.",
                stream=stream.name,
            )
        record = None if offset is None else PlaceMark(segment_id, offset, view.version + 1)
        body = Body(
            "SET REVISION MARK",
            parameters={"segment": segment_id, "offset": offset},
            domains={MARK_DOMAIN: None if record is None else record.encode()},
        )
        return body, True

    return stream.commit(decide, life=life).value


@total_ordering
@dataclass(frozen=True, slots=True)
class Revision:
    """How many values a revisioned stream had: its ``offset`` is the next value's.

    Revisions of one life of a stream are ordered. They travel between processes, pickled or as
    text, and carry the life, so none is ever valid for a stream that was created again.
    """

    stream: str
    life: int
    segment_id: int
    offset: int

    def __str__(self) -> str:
        """Return the canonical text, that of an event pointer."""
        return str(self.pointer)

    def __lt__(self, other: object) -> bool:
        """Compare by age; raise InvalidInput for a revision of another stream or life."""
        if not isinstance(other, Revision):
            return NotImplemented
        if self._log() != other._log():
            raise InvalidInput(
                f"the revisions {self} and {other} have no order: they are of different streams, "
                "lives or segments."
            )
        return self.offset < other.offset

    @property
    def pointer(self) -> EventPointer:
        """The pointer of the next value."""
        return EventPointer(
            self.stream, life=self.life, segment_id=self.segment_id, offset=self.offset
        )

    @classmethod
    def of(cls, revision: Revision | str) -> Revision:
        """Return a revision unchanged, or parse its text; raise InvalidInput for anything else."""
        if isinstance(revision, cls):
            return revision
        if not isinstance(revision, str):
            raise InvalidInput(f"a revision is a Revision or its text, got {shown(revision)}.")
        found = EventPointer.parse(revision)
        return cls(found.stream, life=found.life, segment_id=found.segment_id, offset=found.offset)

    def _log(self) -> tuple[str, int, int]:
        return self.stream, self.life, self.segment_id


class RevisionedValue(NamedTuple):
    """A value, and the revision just after it."""

    revision: Revision
    value: Any


class RevisionedStream(ClosedByBlock, NotPicklable):
    """Reads and writes one stream of a single segment by revisions; thread-safe.

    A value is an event without a routing key, so every other reader of the stream sees it. Made by
    ``StreamManager.revisioned_stream``. Every call raises StaleIdentity or NoSuchStream once the
    stream was created again or deleted, and SegmentSealed once it was scaled.
    """

    _NOT_PICKLABLE = "a RevisionedStream cannot be pickled; open it where it is used."

    def __init__(
        self,
        stream: StreamLog,
        *,
        serializer: Serializer | None = None,
        deserializer: Deserializer | None = None,
        life: int | None = None,
    ) -> None:
        """Open the present life of the stream.

        Raises StreamSealed, and IllegalState if it has several segments.
        """
        view = stream.view(refresh=life is None, life=life)
        if view.record.state is not StreamState.ACTIVE:
            raise sealed_error(view)
        view.check_raw("revisions and shared states")
        if len(view.active.segments) != 1:
            raise IllegalState(
                f"stream {stream.name} has {len(view.active.segments)} segments; revisions need a "
                "stream of one segment: ScalingPolicy.fixed(1)."
            )
        self._stream = stream
        self._life = view.life
        self._segment_id = view.active.segments[0].segment_id
        self._serializer = serializer
        self._deserializer = check_function("a deserializer", deserializer)
        self._guard = ProcessGuard(f"the revisioned stream {stream.name}")
        self._lock = new_lock()
        self._writer: EventStreamWriter | None = self._opened()
        self.is_closed = False
        """Whether it was closed; it then writes no more."""

    def _opened(self) -> EventStreamWriter:
        return EventStreamWriter(self._stream, serializer=self._serializer, life=self._life)

    # ------------------------------------------------------------------------------- reading

    def fetch_latest_revision(self) -> Revision:
        """Return the revision after the last value."""
        return self._latest(self._view())

    def fetch_oldest_revision(self) -> Revision:
        """Return the revision of the first value that can be read."""
        view = self._view()
        return self._revision(view.head_offset(self._segment_id))

    def read_from(self, start: Revision | str) -> Iterator[RevisionedValue]:
        """Yield the values after a revision, up to the last one at the time of the call.

        Each comes with the revision after it, which is where to go on. Raises TruncatedData, also
        later if the stream is truncated meanwhile.
        """
        view = self._view()
        return self._read(view, self._checked(start), self._latest(view))

    def read_range(self, start: Revision | str, end: Revision | str) -> Iterator[RevisionedValue]:
        """Yield the values between two revisions.

        Raises InvalidInput if the end lies before the start or after the last value, and
        TruncatedData as :meth:`read_from` does.
        """
        first, last, view = self._checked(start), self._checked(end), self._view()
        if not first <= last <= self._latest(view):
            raise InvalidInput(
                f"the revisions {first} to {last} are not a range of stream {self._stream.name}, "
                f"whose latest revision is {self._latest(view)}; give the earlier one first."
            )
        return self._read(view, first, last)

    def _read(self, view: StreamView, start: Revision, end: Revision) -> Iterator[RevisionedValue]:
        rng = SegmentRange(
            start.stream,
            life=start.life,
            segment_id=start.segment_id,
            start=start.offset,
            end=max(start.offset, end.offset),
        )
        if len(rng) and view.is_truncated(rng.segment_id, rng.start):
            raise TruncatedData(
                f"{rng} was truncated{view.truncated_by}; continue from the oldest revision, or "
                "from the mark.",
                head=view.head,
                lost=(rng,),
            )
        return self._values(rng)

    def _values(self, rng: SegmentRange) -> Iterator[RevisionedValue]:
        for batch in read_range(self._stream, rng, soon=True):
            offsets, events = batch.column("offset"), batch.column("event")
            for offset, event in zip(offsets.to_pylist(), events.to_pylist(), strict=True):
                value = event if self._deserializer is None else self._deserializer(event)
                yield RevisionedValue(self._revision(offset + 1), value)

    # ------------------------------------------------------------------------------- writing

    def write_conditionally(self, latest: Revision | str, value: Any) -> Revision | None:
        """Write a value if ``latest`` is still the latest revision; None if it is not.

        Returns the revision after the value, once that is durable. Raises StreamSealed,
        SegmentSealed, and CommitUnknown if it is unknown whether the value was written: the next
        call can be made, and reading tells.
        """
        return self._written(self._checked(latest).pointer, value)

    def write_unconditionally(self, value: Any) -> Revision:
        """Write a value after the last one without a condition; return the revision after it."""
        written = self._written(self._revision(ANY_OFFSET).pointer, value)
        assert written is not None, "nothing was compared"
        return written

    def _written(
        self, expected: EventPointer, value: Any, *, marked_by: str | None = None
    ) -> Revision | None:
        self._guard.check()
        with self._lock:
            if self.is_closed:
                raise ObjectClosed(
                    f"the revisioned stream {self._stream.name} was closed; open it again."
                )
            writer = self._writer = self._writer or self._opened()
        try:
            written = write_revision(writer, value, expected, marked_by=marked_by)
            pointer = written.result()
        except ConditionFailed as refused:
            if isinstance(refused.actual, StreamCut):
                raise self._scaled() from refused
            return None
        except InvalidInput:
            raise
        except BaseException:
            with self._lock:  # the next call opens a writer again
                if self._writer is writer:
                    self._writer = None
            raise
        return self._revision(pointer.offset + 1)

    # ---------------------------------------------------------------------- mark and truncation

    def get_mark(self) -> Revision | None:
        """Return the mark, a revision that all users of the stream share; None if it has none."""
        return self._mark(self._view())

    def compare_and_set_mark(
        self, expected: Revision | str | None, mark: Revision | str | None
    ) -> bool:
        """Set the mark if it is the expected one (None: there is none); False if it is not.

        The mark can move back, and None removes it. Raises InvalidInput for a revision that the
        stream has not reached.
        """
        known = None if expected is None else self._checked(expected)
        wanted = None if mark is None else self._checked(mark)
        latest = None if wanted is None else self.fetch_latest_revision()
        if wanted is not None and latest is not None and wanted > latest:
            raise InvalidInput(
                f"the mark {wanted} lies after the latest revision, {latest}; give one that the "
                "stream has reached."
            )
        return compare_and_set_mark(
            self._stream, self._life, self._segment_id, _offset(known), _offset(wanted)
        )

    def truncate_to_revision(self, revision: Revision | str) -> None:
        """Delete the values before a revision, for all readers; one that lies back does nothing.

        Raises InvalidInput for a revision that the stream has not reached, and HeldBySubscriber.
        """
        wanted = self._checked(revision)
        if wanted <= self.fetch_oldest_revision():
            return
        latest = self.fetch_latest_revision()
        if wanted > latest:
            raise InvalidInput(
                f"stream {self._stream.name} cannot be truncated to {wanted}: its latest revision "
                f"is {latest}."
            )
        cut = StreamCut(self._stream.name, self._life, {self._segment_id: wanted.offset})
        try:
            truncation.truncate(self._stream, cut, life=self._life)
        except InvalidStreamCut:
            if self.fetch_oldest_revision() < wanted:  # else another one has gone further
                raise

    # ------------------------------------------------------------------------------------ life

    def close(self) -> None:
        """Stop writing; reading goes on. A second call does nothing."""
        with self._lock:
            self.is_closed, writer, self._writer = True, self._writer, None
        if writer is not None:
            writer.close()

    def _view(self) -> StreamView:
        view = self._stream.view(life=self._life)
        if self._segment_id not in view.active.segment_ids:
            raise self._scaled()
        return view

    def _scaled(self) -> SegmentSealed:
        return SegmentSealed(
            f"stream {self._stream.name}: its segment {segment_text(self._segment_id)} was sealed "
            "by a scale, and revisions are those of one segment. Open the stream again if it has "
            "one segment, or copy its values into a new stream.",
            stream=self._stream.name,
            segment_id=self._segment_id,
        )

    def _latest(self, view: StreamView) -> Revision:
        return self._revision(view.segment(self._segment_id).next_offset)

    def _revision(self, offset: int) -> Revision:
        return Revision(
            self._stream.name, life=self._life, segment_id=self._segment_id, offset=offset
        )

    def _mark(self, view: StreamView) -> Revision | None:
        mark = view.marked(MARK_DOMAIN)
        if mark is None or mark.segment_id != self._segment_id:
            return None
        return self._revision(mark.offset)

    def _checked(self, revision: Revision | str) -> Revision:
        """Return a revision of this stream; raise InvalidInput or StaleIdentity for another."""
        found = Revision.of(revision)
        here = self._revision(found.offset)
        if found.stream == here.stream and found.life != here.life:
            raise StaleIdentity(
                f"the revision {found} is of life {found.life} of stream {found.stream}, which is "
                f"in life {here.life}; fetch a revision again.",
                name=found.stream,
                life=found.life,
                current_life=here.life,
            )
        if found != here or found.offset < 0:
            raise InvalidInput(
                f"{found} is not a revision of stream {here.stream}, segment "
                f"{segment_text(self._segment_id)}; fetch one of this stream."
            )
        return found


def first_revision(log: RevisionedStream) -> Revision:
    """Return the revision before every value that the stream has had."""
    return log._revision(0)


def write_state(log: RevisionedStream, latest: Revision, value: bytes) -> Revision | None:
    """Write a value conditionally at which a state begins: retention keeps the newest one."""
    return log._written(latest.pointer, value, marked_by=STATE_DOMAIN)


def _offset(revision: Revision | None) -> int | None:
    return None if revision is None else revision.offset
