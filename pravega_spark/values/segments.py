"""Segments, epochs, stream cuts, and positions in a stream. Frozen values, no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Final

from pravega_spark.errors import InvalidInput, InvalidStreamCut
from pravega_spark.values.checks import is_number, shown
from pravega_spark.values.names import split_log

END: Final = -1
"""In a cut instead of an offset: the segment is sealed and was read to its end."""
NOT_REACHED: Final = -2
"""In a cut instead of an offset: the segment lies after the cut, behind an unfinished one."""
_SPECIAL_TEXT: Final = {END: "end", NOT_REACHED: "future"}
_SPECIAL_OF: Final = {text: value for value, text in _SPECIAL_TEXT.items()}
_SEGMENT: Final = re.compile(r"(0|[1-9][0-9]{0,9})#(0|[1-9][0-9]{0,9})")


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
            raise InvalidInput(
                f"key range [{low}, {high}) is not a part of [0, 1); give 0 <= low < high <= 1."
            )

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
    """What a segment holds, its keys, and when it was created and sealed.

    ``next_offset`` is the offset of the next event, and ``size_bytes`` counts all bytes ever
    written, truncated ones included: both are final once it is sealed. A scale that seals a segment
    opens its successors in ``sealed_epoch``, None while it is open. A segment that was sealed with
    its stream has no successors, and belongs to that epoch itself.
    """

    segment_id: int
    next_offset: int = 0
    size_bytes: int = 0
    sealed_epoch: int | None = None
    key_range: KeyRange = field(kw_only=True)
    created_ms: int | None = field(kw_only=True)
    """When its epoch began, in ms since 1970; None if even the stream's history does not say it."""
    sealed_ms: int | None = field(default=None, kw_only=True)
    hot: bool | None = field(default=None, kw_only=True)
    """Whether the last run of automatic scaling found it due for a split, or nearly so.

    None for a sealed segment, a fixed number of segments, and before the first run.
    """
    cold: bool | None = field(default=None, kw_only=True)
    """Whether that run marked it for a merge, or it has been idle; None as for ``hot``."""

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
                raise InvalidStreamCut(
                    f"the cut of {match[1]} names segment {segment} twice; name it once."
                )
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
        return cls(
            match[1], life=int(match[2]), segment_id=parse_segment(match[3]), offset=int(match[4])
        )


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
        return f"{self.stream} segment {segment_text(self.segment_id)} [{self.start}, {self.end})"
