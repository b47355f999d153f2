"""Frozen values of the stream model: segments, epochs, cuts, positions, events. No I/O."""

from __future__ import annotations

import enum
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Final

from pravega_spark.arguments import is_number, shown
from pravega_spark.errors import IllegalState, InvalidInput, InvalidStreamCut
from pravega_spark.names import split_log
from pravega_spark.policies import StreamConfiguration
from pravega_spark.units import count_text, size_text, time_text

Deserializer = Callable[[bytes], Any]
"""Turns the bytes of an event into ``Event.data``."""

END: Final = -1
"""In a cut instead of an offset: the segment is sealed and was read to its end."""
NOT_REACHED: Final = -2
"""In a cut instead of an offset: the segment lies after the cut, behind an unfinished one."""

_SPECIAL_TEXT: Final = {END: "end", NOT_REACHED: "future"}
_SPECIAL_OF: Final = {text: value for value, text in _SPECIAL_TEXT.items()}
_SEGMENT: Final = re.compile(r"(0|[1-9][0-9]{0,9})#(0|[1-9][0-9]{0,9})")
_UTC_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)


def make_segment_id(number: int, epoch: int) -> int:
    """Return the 64-bit id: creation epoch in the high half, number in the low half."""
    if not (0 <= number < 1 << 31 and 0 <= epoch < 1 << 31):
        raise InvalidInput(f"segment number {number} and epoch {epoch} must be in [0, 2^31).")
    return epoch << 32 | number


def segment_number(segment_id: int) -> int:
    """Return the number of a segment id."""
    return segment_id & 0xFFFFFFFF


def segment_epoch(segment_id: int) -> int:
    """Return the creation epoch of a segment id."""
    return segment_id >> 32


@lru_cache(maxsize=8192)
def segment_text(segment_id: int) -> str:
    """Return the id as text: ``number#epoch``."""
    return f"{segment_number(segment_id)}#{segment_epoch(segment_id)}"


def parse_segment(text: str) -> int:
    """Parse the text of :func:`segment_text`; raise InvalidInput for any other text."""
    match = _SEGMENT.fullmatch(text)
    if match is None:
        raise InvalidInput(f"a segment is written number#epoch, such as 3#1; got {shown(text)}.")
    return make_segment_id(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """A half-open range ``[low, high)`` of the key space [0, 1)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        """Raise InvalidInput for a range outside of [0, 1)."""
        low, high = self.low, self.high
        if type(low) is float and type(high) is float and 0.0 <= low < high <= 1.0:
            return
        if not (is_number(low) and is_number(high)):
            raise InvalidInput(
                f"a key range has two numbers, low and high; got {shown(low)} and {shown(high)}."
            )
        if not 0.0 <= low < high <= 1.0:
            raise InvalidInput(f"key range [{low}, {high}) is not a part of [0, 1).")

    def overlaps(self, other: KeyRange) -> bool:
        """Return True if the two ranges overlap."""
        return self.low < other.high and other.low < self.high


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment of an epoch: its id and its key range."""

    segment_id: int
    key_range: KeyRange

    def __hash__(self) -> int:
        """Hash by id, which is unique in a stream: segments are looked up often."""
        return hash(self.segment_id)

    @property
    def number(self) -> int:
        """The number, unique in the stream except for copies by rolling transactions."""
        return segment_number(self.segment_id)

    @property
    def epoch(self) -> int:
        """The epoch that created the segment."""
        return segment_epoch(self.segment_id)

    def __str__(self) -> str:
        """Return ``number#epoch``."""
        return segment_text(self.segment_id)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One layout of the key space: segments, sorted by range, that tile [0, 1) once."""

    number: int
    reference: int
    created_ms: int
    segments: tuple[Segment, ...]
    splits: int = 0
    merges: int = 0

    def __post_init__(self) -> None:
        """Assert that the segments tile the key space."""
        at = 0.0
        for segment in self.segments:
            assert segment.key_range.low == at, f"epoch {self.number} has a gap at {at}"
            at = segment.key_range.high
        assert at == 1.0, f"epoch {self.number} ends at {at}, not at 1.0"

    def segment(self, segment_id: int) -> Segment | None:
        """Return the segment with that id, or None."""
        return next((s for s in self.segments if s.segment_id == segment_id), None)

    def overlapping(self, key_range: KeyRange) -> tuple[Segment, ...]:
        """Return the segments that overlap the range, in range order."""
        return tuple(s for s in self.segments if s.key_range.overlaps(key_range))

    @property
    def segment_ids(self) -> tuple[int, ...]:
        """The ids in range order."""
        return tuple(s.segment_id for s in self.segments)


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment's length in events and in bytes, and the epoch that sealed it (None if open).

    ``next_offset`` is the offset of the next event. A scale that seals a segment opens its
    successors in ``sealed_epoch``. A segment that was sealed with its stream has no successors,
    and belongs to that epoch itself.
    """

    segment_id: int
    next_offset: int = 0
    size_bytes: int = 0
    sealed_epoch: int | None = None

    @property
    def is_sealed(self) -> bool:
        """Whether the segment accepts no more events."""
        return self.sealed_epoch is not None


@dataclass(frozen=True, slots=True)
class StreamCut:
    """A consistent position in a stream: for each segment the offset of the next event to read.

    ``positions`` maps segment ids to offsets in events, or to ``END`` (sealed and read to its
    end) or ``NOT_REACHED`` (a predecessor is not finished). ``life`` counts the creations of the
    stream's name: a cut of an earlier life is refused. ``StreamCut.EARLIEST`` and
    ``StreamCut.LATEST`` are resolved when they are used. The text form is canonical: equal cuts
    have equal texts, and ``parse`` reads them.
    """

    stream: str
    life: int
    positions: Mapping[int, int] = field(default_factory=dict)

    EARLIEST: ClassVar[StreamCut]
    LATEST: ClassVar[StreamCut]

    def __post_init__(self) -> None:
        """Sort and freeze the positions."""
        if not isinstance(self.positions, Mapping):
            raise InvalidStreamCut(
                f"cut of {self.stream}: positions map segment ids to offsets, got "
                f"{shown(self.positions)}."
            )
        for cell in self.positions.items():
            if not (type(cell[0]) is int and type(cell[1]) is int):  # no bool
                raise InvalidStreamCut(
                    f"cut of {self.stream}: {cell} must be a segment id and an offset, both whole "
                    "numbers."
                )
        ordered = dict(sorted(self.positions.items()))
        for segment_id, offset in ordered.items():
            if offset < NOT_REACHED:
                raise InvalidStreamCut(
                    f"cut of {self.stream}: segment {segment_text(segment_id)} has the offset "
                    f"{offset}; offsets count events from 0."
                )
        object.__setattr__(self, "positions", MappingProxyType(ordered))

    @property
    def is_bound(self) -> bool:
        """Whether the cut names positions, and is not EARLIEST or LATEST."""
        return bool(self.stream)

    def __hash__(self) -> int:
        """Hash by value."""
        return hash((self.stream, self.life, tuple(self.positions.items())))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Iterate over (segment id, offset, END or NOT_REACHED) in the order of ids."""
        return iter(self.positions.items())

    def __str__(self) -> str:
        """Return the canonical text, such as ``nyc/flights@1:0#0=120,1#0=end,2#1=future``."""
        if not self.is_bound:
            return "latest" if self.life < 0 else "earliest"
        cells = (f"{segment_text(s)}={_SPECIAL_TEXT.get(o, o)}" for s, o in self)
        return f"{self.stream}@{self.life}:{','.join(cells)}"

    @classmethod
    def of(cls, cut: StreamCut | str) -> StreamCut:
        """Return a cut unchanged, or parse its text; raise InvalidStreamCut for anything else."""
        if isinstance(cut, str):
            return cls.parse(cut)
        if not isinstance(cut, cls):
            raise InvalidStreamCut(
                f"a stream cut must be a StreamCut or its text, got {shown(cut)}."
            )
        return cut

    @classmethod
    def parse(cls, text: str) -> StreamCut:
        """Parse the text of a cut; raise InvalidStreamCut for any other text."""
        if text in ("earliest", "latest"):
            return cls.EARLIEST if text == "earliest" else cls.LATEST
        match = re.fullmatch(r"([^@]+)@([0-9]{1,19}):(.*)", text)
        if match is None:
            raise InvalidStreamCut(
                f"{shown(text)} is not a valid stream cut; write "
                "scope/stream@life:number#epoch=offset,..., 'earliest' or 'latest'."
            )
        split_log(match[1])
        positions: dict[int, int] = {}
        for cell in filter(None, match[3].split(",")):
            segment, _, value = cell.partition("=")
            number = int(value) if re.fullmatch(r"[0-9]{1,19}", value) else value
            segment_id, offset = _cell(match[1], segment, number)
            if segment_id in positions:
                raise InvalidStreamCut(f"the cut of {match[1]} names segment {segment} twice.")
            positions[segment_id] = offset
        return cls(match[1], int(match[2]), positions)

    def to_json(self) -> dict[str, int | str]:
        """Return ``{"0#0": 120, "1#0": "end"}``, in the order of ids."""
        return {segment_text(s): _SPECIAL_TEXT.get(o, o) for s, o in self}

    @classmethod
    def from_json(cls, stream: str, life: int, record: Mapping[str, int | str]) -> StreamCut:
        """Decode the result of :meth:`to_json`."""
        return cls(stream, life, dict(_cell(stream, s, o) for s, o in record.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value (a mapping proxy does not pickle)."""
        return StreamCut, (self.stream, self.life, dict(self.positions))


def _cell(stream: str, segment: str, value: int | str) -> tuple[int, int]:
    """Decode a segment and its offset, ``end`` or ``future``."""
    try:
        segment_id = parse_segment(segment)
    except InvalidInput as error:
        raise InvalidStreamCut(f"the cut of {stream}: {error}") from None
    offset = _SPECIAL_OF.get(value) if isinstance(value, str) else value
    if offset is None:
        raise InvalidStreamCut(
            f"'{segment}={value}' in the cut of {stream} has no offset: write a number, 'end' or "
            "'future'."
        )
    return segment_id, offset


StreamCut.EARLIEST = StreamCut("", 0)
StreamCut.LATEST = StreamCut("", -1)


@dataclass(frozen=True, slots=True)
class EventPointer:
    """The permanent address of one event: stream, life, segment and offset."""

    stream: str
    life: int
    segment_id: int
    offset: int

    @property
    def segment(self) -> str:
        """The segment as ``number#epoch``."""
        return segment_text(self.segment_id)

    def __str__(self) -> str:
        """Return the canonical text, such as ``nyc/flights@1:0#0=120``."""
        return f"{self.stream}@{self.life}:{self.segment}={self.offset}"

    @classmethod
    def of(cls, pointer: EventPointer | str) -> EventPointer:
        """Return a pointer unchanged, or parse its text; raise InvalidInput for anything else."""
        if isinstance(pointer, str):
            return cls.parse(pointer)
        if not isinstance(pointer, cls):
            raise InvalidInput(
                f"an event pointer must be an EventPointer or its text, got {shown(pointer)}."
            )
        return pointer

    @classmethod
    def parse(cls, text: str) -> EventPointer:
        """Parse the text of a pointer; raise InvalidInput for any other text."""
        match = re.fullmatch(r"([^@]+)@([0-9]{1,19}):([0-9]+#[0-9]+)=([0-9]{1,19})", text)
        if match is None:
            raise InvalidInput(
                f"{shown(text)} is not a valid event pointer; write scope/stream@life:0#0=120."
            )
        split_log(match[1])
        return cls(match[1], int(match[2]), parse_segment(match[3]), int(match[4]))


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """Events ``[start, end)`` of one segment: a unit of work for any process."""

    stream: str
    life: int
    segment_id: int
    start: int
    end: int

    def __len__(self) -> int:
        """Return the number of events; raise InvalidInput if the range ends before its start."""
        count = self.end - self.start
        if count < 0:
            raise InvalidInput(f"{self} ends before its start.")
        return count

    def __str__(self) -> str:
        """Return the text that errors use."""
        return f"{self.stream} segment {segment_text(self.segment_id)} [{self.start}, {self.end})"


class Event:
    """An event that was read: data, routing key, time of writing and pointer."""

    is_large: ClassVar[bool] = False
    """Whether the payload is an object of its own, which ``data`` reads when it is first used."""

    __slots__ = (
        "_life",
        "_size_bytes",
        "_stream",
        "data",
        "offset",
        "routing_key",
        "segment_id",
        "timestamp_us",
    )

    def __init__(
        self,
        stream: str,
        life: int,
        segment_id: int,
        offset: int,
        data: Any,
        routing_key: str | None,
        timestamp_us: int,
    ) -> None:
        """Take the values of a chunk's row; ``data`` is bytes, or deserialized."""
        self._stream = stream
        self._life = life
        self.segment_id = segment_id
        self.offset = offset
        self.data = data
        self.routing_key = routing_key
        self.timestamp_us = timestamp_us

    @property
    def timestamp(self) -> datetime:
        """The time of writing by the writer's clock, in UTC."""
        return _UTC_EPOCH + timedelta(microseconds=self.timestamp_us)

    @property
    def pointer(self) -> EventPointer:
        """The address of the event, for ``fetch_event``."""
        return EventPointer(self._stream, self._life, self.segment_id, self.offset)

    @property
    def size_bytes(self) -> int:
        """The size of the payload, also of an event that was deserialized."""
        known: int | None = getattr(self, "_size_bytes", None)
        return len(self.data) if known is None else known

    def open(self) -> io.IOBase:
        """Return the payload as a file with ``read`` and ``seek``; of a large event, not read yet.

        Raises IllegalState for an event that was deserialized, unless it is large.
        """
        if not isinstance(self.data, bytes):
            raise IllegalState(
                f"the event {self.pointer} was deserialized to {type(self.data).__name__}, and its "
                "bytes are gone; read it without a deserializer to open it as a file."
            )
        return io.BytesIO(self.data)

    def decode_with(self, deserializer: Deserializer) -> None:
        """Replace the bytes by what the deserializer makes of them."""
        self._size_bytes = len(self.data)
        self.data = deserializer(self.data)

    def __repr__(self) -> str:
        """Show pointer, key and data."""
        return f"Event({self.pointer}, key={self.routing_key!r}, data={self.data!r})"


class RowEvent(Event):
    """An event of a typed stream: ``data`` is a dict of its columns."""

    __slots__ = ()

    def __init__(
        self,
        stream: str,
        life: int,
        segment_id: int,
        offset: int,
        data: dict[str, Any],
        routing_key: str | None,
        timestamp_us: int,
        size_bytes: int,
    ) -> None:
        """Take the values of a chunk's row; ``size_bytes`` is the sum of their sizes."""
        super().__init__(stream, life, segment_id, offset, data, routing_key, timestamp_us)
        self._size_bytes = size_bytes

    def open(self) -> io.IOBase:
        """Raise IllegalState: the event has columns, and no bytes."""
        raise IllegalState(
            f"the event {self.pointer} is of a typed stream and has columns, not bytes: use its "
            "data, or one binary column of it."
        )

    def decode_with(self, deserializer: Deserializer) -> None:
        """Leave the data as it is: a deserializer is for the bytes of raw events."""


class TransactionStatus(enum.Enum):
    """The states of a transaction; the last two are final."""

    OPEN = "OPEN"
    PREPARED = "PREPARED"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction in the stream's log: times in ms since 1970, ``ended_ms`` 0 if open.

    ``reason`` is why it was aborted; ``events`` and ``size_bytes`` count its committed events.
    """

    transaction_id: str
    status: TransactionStatus
    created_ms: int
    ended_ms: int = 0
    version: int = 0
    events: int = 0
    size_bytes: int = 0
    writer_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class SubscriberInfo:
    """A subscriber, for which a policy by consumption keeps events: times in ms since 1970.

    ``name`` is ``scope/group`` for a reader group; a plain subscriber's name has no slash. It needs
    nothing before ``cut``, and holds nothing if that is None. ``published_ms`` is None until it
    publishes its first cut; before that, ``cut`` is its starting point.
    """

    name: str
    generation: int
    cut: StreamCut | None
    published_ms: int | None
    since_ms: int


def _utc(time_us: int | None) -> datetime | None:
    """Return microseconds since 1970 as a datetime; None where that is None or has no datetime."""
    try:
        return None if time_us is None else _UTC_EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return None


@dataclass(frozen=True, slots=True)
class WriterMark:
    """What a writer noted last: all that it writes after ``cut`` is of ``time_us`` or later.

    ``version`` is the version of the log that holds the note. A writer that is not ``is_alive`` has
    left: its mark is used once more, and then dropped.
    """

    writer_id: str
    time_us: int
    """In microseconds since 1970."""
    cut: StreamCut
    version: int
    is_alive: bool = True

    @property
    def time(self) -> datetime | None:
        """The noted time, in UTC; None if it is beyond the years 1 to 9999."""
        return _utc(self.time_us)


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far the writers' times were at a cut of the stream, in microseconds since 1970.

    Every event whose time was noted as earlier than ``lower_us`` lies before ``cut``. ``upper_us``
    is the latest time that a writer had noted. ``version`` is the version of the log that holds
    the watermark, None if none does yet.
    """

    lower_us: int
    upper_us: int
    cut: StreamCut
    version: int | None = None

    @property
    def lower(self) -> datetime | None:
        """The lower bound, in UTC; None if it is beyond the years 1 to 9999."""
        return _utc(self.lower_us)

    @property
    def upper(self) -> datetime | None:
        """The upper bound, in UTC; None if it is beyond the years 1 to 9999."""
        return _utc(self.upper_us)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The times between which a reader is, by the writers' notes: in microseconds since 1970.

    What is still to be read is of ``lower_us`` or later: None before the first watermark.
    ``upper_us`` is the upper bound of the first watermark that is ahead of the whole position:
    None near the tail.
    """

    lower_us: int | None = None
    upper_us: int | None = None

    @property
    def lower(self) -> datetime | None:
        """The lower bound, in UTC, or None."""
        return _utc(self.lower_us)

    @property
    def upper(self) -> datetime | None:
        """The upper bound, in UTC, or None."""
        return _utc(self.upper_us)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream at one version: configuration, layout, head and tail.

    ``configuration_version`` is the version that set the configuration: an update that expects it
    is refused if another one came first.
    """

    stream: str
    life: int
    state: str
    version: int
    configuration: StreamConfiguration
    epoch: int
    segments: tuple[Segment, ...]
    head: StreamCut
    tail: StreamCut
    events: int
    size_bytes: int
    created_ms: int
    configuration_version: int
    files: FileTotals
    """The chunks of the newest version; ``Stream.storage`` also has what else is stored."""
    watermark: Watermark | None = None
    """As far as the notes of the newest version show it; None if no writer notes times."""


@dataclass(frozen=True, slots=True)
class FileTotals:
    """A number of files, and their size as stored."""

    files: int = 0
    size_bytes: int = 0

    def __add__(self, other: FileTotals) -> FileTotals:
        """Return both together."""
        return FileTotals(self.files + other.files, self.size_bytes + other.size_bytes)

    def __sub__(self, other: FileTotals) -> FileTotals:
        """Return these without the others."""
        return FileTotals(self.files - other.files, self.size_bytes - other.size_bytes)

    def __str__(self) -> str:
        """Return a text for people."""
        return f"{count_text(self.files, 'file')}, {size_text(self.size_bytes)}"


class MaintenanceKind(enum.Enum):
    """The work that keeps the streams of a root in order.

    The job ``maintenance`` does all kinds; those except sweeping and watermarks have a job of their
    own, too.
    """

    RETENTION = "retention"
    SCALING = "scaling"
    TRANSACTIONS = "transactions"
    COMPACTION = "compaction"
    SWEEPING = "sweeping"
    WATERMARKS = "watermarks"
    FOLDING = "folding"


@dataclass(frozen=True, slots=True)
class MaintenanceInfo:
    """The last finished run of a kind over all streams of a root, or of a scope.

    Times are in ms since 1970 by the storage's clock, and None without a run or a claim.
    """

    kind: MaintenanceKind
    scope: str | None
    """None for a run over all scopes."""
    interval_seconds: float
    """The root's setting: a run is due when the last one is older."""
    is_overdue: bool
    """Whether the last run is older than several intervals, or none is recorded."""
    finished_ms: int | None = None
    age_seconds: float | None = None
    by: str | None = None
    """What finished the run, with host and process: ``job on host-1, process 4711``."""
    started_ms: int | None = None
    streams: int = 0
    """The streams of that run, failed ones included."""
    failed: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)
    """Some of what failed, with the error of each."""
    claimed_by: str | None = None
    """What is doing the work now; another one begins when it has ended or the claim has."""
    claimed_until_ms: int | None = None
    streams_so_far: int = 0
    """The streams that a run in several shares has done; the next share continues there."""

    def __str__(self) -> str:
        """Return a line of text for people."""
        what = self.kind.value if self.scope is None else f"{self.kind.value} of {self.scope}"
        if self.age_seconds is None:
            return f"{what}: no run is recorded"
        counts = f"{count_text(self.streams, 'stream')}, {self.failed:,} failed"
        return f"{what}: {counts}, {time_text(self.age_seconds)} ago by {self.by}"
