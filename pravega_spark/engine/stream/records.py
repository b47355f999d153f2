"""The stream's state as typed records: JSON values of the log's domain metadata.

| domain | record |
| --- | --- |
| ``pravega.stream`` | StreamRecord: identity with life, state, configuration, epochs, head |
| ``pravega.epoch.<n>`` | model.Epoch: segments with key ranges |
| ``pravega.segment.<id>`` | SegmentRecord: next offset, bytes, sealed or not |
| ``pravega.writer.<id>`` | WriterRecord: session, last number, version |
| ``pravega.note.<id>`` | the writer's last note and its event number; set when it changes |
| ``pravega.open.<id>`` | OpenTransaction: epoch, lease, writer |
| ``pravega.transaction.<id>`` | TransactionOutcome: committed or aborted, when, how much |
| ``pravega.subscriber.<name>`` | SubscriberRecord: generation, published cut, time |
| ``pravega.sample.<version>`` | SampleRecord, an entry of the retention set: time, size, tail |
| ``pravega.fence`` | FenceRecord: the newest fencing token |
| ``pravega.restored`` | Restoration: the life that a restore began, and when |

A place that another domain marks is a PlaceMark.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.config.stream_schema import StreamSchema
from pravega_spark.engine.log.snapshot import MANY_PREFIXES
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json, typed
from pravega_spark.engine.runtime.text_cache import cached_by_text
from pravega_spark.errors import CorruptLog
from pravega_spark.values.checks import shown
from pravega_spark.values.limits import DECODED_TEXT_CHARACTERS
from pravega_spark.values.segments import Epoch, KeyRange, Segment, StreamCut

_PREFIX = "_"


def anonymous_id(version: int, token: str) -> str:
    """Return an id for a writer without a user's id; it contains the version of its opening."""
    return f"{_PREFIX}{version}.{token}"


def is_anonymous(writer_id: str) -> bool:
    """Return True if :func:`anonymous_id` made the id; users' ids do not begin with ``_``."""
    return writer_id.startswith(_PREFIX)


def opened_at(writer_id: str) -> int:
    """Return the version at which an anonymous writer was opened."""
    return int(writer_id.removeprefix(_PREFIX).partition(".")[0])


STREAM_DOMAIN = "pravega.stream"
EPOCH_PREFIX = "pravega.epoch."
SEGMENT_PREFIX = "pravega.segment."
WRITER_PREFIX, NOTE_PREFIX, OUTCOME_PREFIX = MANY_PREFIXES
SUBSCRIBER_PREFIX = "pravega.subscriber."
SAMPLE_PREFIX = "pravega.sample."
FENCE_DOMAIN = "pravega.fence"
RESTORED_DOMAIN = "pravega.restored"
FORMAT = 1
RESTORED_SESSION = -1
"""Session of a query's or an application's record after a restore; otherwise it is 0."""


_Call = ParamSpec("_Call")
_Record = TypeVar("_Record")


def _sound(decode: Callable[_Call, _Record]) -> Callable[_Call, _Record]:
    """Make a decoder raise CorruptLog for text that its encoder cannot have written."""

    @wraps(decode)
    def checked(*args: _Call.args, **kwargs: _Call.kwargs) -> _Record:
        try:
            return decode(*args, **kwargs)
        except DECODE_ERRORS as error:
            kind = decode.__name__.removeprefix("decode_")
            given = ", ".join(map(shown, args))
            raise CorruptLog(
                f"the log holds a damaged record of a {kind} ({given}): {error!r}; restore it from "
                "a copy."
            ) from error

    return checked


class StreamState(enum.Enum):
    """The state of a stream."""

    ACTIVE = "ACTIVE"
    SEALING = "SEALING"
    SEALED = "SEALED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Truncation:
    """The last truncation: its version, time (ms since 1970) and author."""

    version: int
    time_ms: int
    by: str


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """The state of the stream that every commit depends on.

    ``life`` is the number of the life, a higher one than that of every life before;
    ``stream_id`` is the same for all lives until a restore.
    ``head`` holds the offsets of the head. ``next_segment_number`` never falls. ``oldest_epoch`` is
    the oldest epoch that is kept: no segment of the head is of an earlier one. ``head_sizes`` holds
    the bytes of the head's segments before the head, where they are known; ``gone_bytes`` those of
    the segments without a record. ``configuration_version`` is the version that set the
    configuration, 0 also where only older versions of this package set it.
    """

    stream: str
    stream_id: str
    life: int
    state: StreamState
    configuration: StreamConfiguration
    active_epoch: int
    oldest_epoch: int
    next_segment_number: int
    head: Mapping[int, int]
    created_ms: int
    sealed_ms: int | None = None
    truncation: Truncation | None = None
    head_sizes: Mapping[int, int] = field(default_factory=dict)
    gone_bytes: int = 0
    configuration_version: int = 0

    @property
    def is_drawn(self) -> bool:
        """Whether the next life has its number, one above ``life``, and has not begun yet.

        Only a sealed stream can be deleted, so the record of a life that has ended says when.
        """
        return self.state is StreamState.DELETED and self.sealed_ms is None

    @property
    def has_lived(self) -> bool:
        """Whether any life of the stream has begun in this log."""
        return self.next_segment_number > 0

    def with_schema(self, schema: StreamSchema) -> StreamRecord:
        """Return the record of a typed stream, whose schema is the table's metadata."""
        return replace(self, configuration=replace(self.configuration, schema=schema))

    def encode(self) -> str:
        """Return the JSON text, without the schema, which the table's metadata has."""
        last = self.truncation
        configuration = self.configuration.without_schema()
        return to_json(
            {
                "format": FORMAT,
                "stream": self.stream,
                "id": self.stream_id,
                "life": self.life,
                "state": self.state.value,
                "configuration": configuration,
                "activeEpoch": self.active_epoch,
                "oldestEpoch": self.oldest_epoch,
                "nextSegmentNumber": self.next_segment_number,
                "head": {str(s): o for s, o in sorted(self.head.items())},
                "created": self.created_ms,
                "sealed": self.sealed_ms,
                "truncation": [last.version, last.time_ms, last.by] if last else None,
                "headBytes": {str(s): b for s, b in sorted(self.head_sizes.items())},
                "goneBytes": self.gone_bytes,
                "configurationVersion": self.configuration_version,
            }
        )


@cached_by_text(DECODED_TEXT_CHARACTERS)
@_sound
def decode_stream(text: str) -> StreamRecord:
    """Read what ``StreamRecord.encode`` wrote."""
    record = _load("pravega.stream", text)
    return StreamRecord(
        stream=record["stream"],
        stream_id=record["id"],
        life=record["life"],
        state=StreamState(record["state"]),
        configuration=StreamConfiguration.from_json(record["configuration"]),
        active_epoch=record["activeEpoch"],
        oldest_epoch=record["oldestEpoch"],
        next_segment_number=record["nextSegmentNumber"],
        head=MappingProxyType({int(s): o for s, o in record["head"].items()}),
        created_ms=record["created"],
        sealed_ms=record["sealed"],
        truncation=Truncation(*record["truncation"]) if record.get("truncation") else None,
        head_sizes=MappingProxyType({int(s): b for s, b in record.get("headBytes", {}).items()}),
        gone_bytes=record.get("goneBytes", 0),
        configuration_version=record.get("configurationVersion", 0),
    )


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """The length of a segment in events and bytes, and the epoch that sealed it (or None).

    A segment that a scale sealed names the epoch of its successors. A segment that was sealed with
    its stream names its own last epoch, and so has no successors.
    """

    segment_id: int
    next_offset: int = 0
    size_bytes: int = 0
    sealed_epoch: int | None = None

    @property
    def is_sealed(self) -> bool:
        """Whether the segment accepts no more events."""
        return self.sealed_epoch is not None

    def encode(self) -> str:
        """Return the JSON text."""
        return to_json([self.next_offset, self.size_bytes, self.sealed_epoch])


@lru_cache(maxsize=8192)
@_sound
def decode_segment(segment_id: int, text: str) -> SegmentRecord:
    """Read what ``SegmentRecord.encode`` wrote."""
    next_offset, size_bytes, sealed_epoch = json.loads(text)
    sizes = typed(next_offset, int), typed(size_bytes, int)
    return SegmentRecord(segment_id, *sizes, sealed_epoch)


def encode_epoch(epoch: Epoch) -> str:
    """Return the JSON text of an epoch."""
    cells = [[s.segment_id, s.key_range.low, s.key_range.high] for s in epoch.segments]
    record = {"reference": epoch.reference, "created": epoch.created_ms, "segments": cells}
    return to_json({**record, "splits": epoch.splits, "merges": epoch.merges})


@cached_by_text(DECODED_TEXT_CHARACTERS)
@_sound
def decode_epoch(number: int, text: str) -> Epoch:
    """Read what :func:`encode_epoch` wrote; its tiling is asserted."""
    record = json.loads(text)
    segments = tuple(Segment(s, KeyRange(low, high)) for s, low, high in record["segments"])
    return Epoch(
        number=number,
        reference=record["reference"],
        created_ms=record["created"],
        segments=segments,
        splits=record["splits"],
        merges=record["merges"],
    )


@dataclass(frozen=True, slots=True)
class WriterRecord:
    """A writer's progress in the log: session, last event number, and the user's last note.

    ``note_number`` is the writer's last event number when it wrote the note.
    """

    writer_id: str
    session: int
    last: int
    version: int
    note: str | None = None
    note_number: int = 0

    @property
    def is_restored(self) -> bool:
        """Whether a restore of the stream may have dropped later batches of this query."""
        return self.session == RESTORED_SESSION

    def encode(self) -> str:
        """Return the JSON text without the note, which has its own domain."""
        return to_json([self.session, self.last, self.version])

    def encode_note(self) -> str | None:
        """Return the JSON text of the note, or None."""
        return None if self.note is None else to_json([self.note, self.note_number])


@_sound
def decode_writer(writer_id: str, text: str, note: str | None = None) -> WriterRecord:
    """Read what ``WriterRecord.encode`` and ``encode_note`` wrote.

    Older versions of this package kept the note in the record; such a note is the newer one.
    """
    record = WriterRecord(writer_id, *json.loads(text))
    typed(record.session, int)
    typed(record.last, int)
    if record.note is not None or note is None:
        return record
    given, number = json.loads(note)
    return replace(record, note=given, note_number=number)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that was begun and has no outcome yet; ``epoch`` routes its events.

    ``lease_ms`` is how long it lives without a ping, ``limit_ms`` when it ends in any case.
    ``writer_id`` is None for one that belongs to no writer; ``session`` is the writer's.
    ``version`` is that of its beginning, 0 where an older version of this package began it. A
    part is one of a transaction over several streams, whose decision is not the stream's.
    """

    transaction_id: str
    epoch: int
    created_ms: int
    lease_ms: int
    limit_ms: int
    writer_id: str | None = None
    session: int = 0
    version: int = 0
    is_part: bool = False

    @property
    def token(self) -> str:
        """The id without the epoch: the same of all parts of one transaction."""
        return self.transaction_id[8:]

    def encode(self) -> str:
        """Return the JSON text."""
        times = [self.created_ms, self.lease_ms, self.limit_ms]
        part = [True] if self.is_part else []
        return to_json([self.epoch, *times, self.writer_id, self.session, self.version, *part])


@lru_cache(maxsize=4096)
@_sound
def decode_open(transaction_id: str, text: str) -> OpenTransaction:
    """Read what ``OpenTransaction.encode`` wrote."""
    return OpenTransaction(transaction_id, *json.loads(text))


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """The outcome of a transaction: its version, events and bytes; ``reason`` if it was aborted.

    ``decision`` is the token of the closing manifest.
    """

    transaction_id: str
    committed: bool
    created_ms: int
    ended_ms: int
    version: int
    decision: str
    events: int = 0
    size_bytes: int = 0
    writer_id: str | None = None
    reason: str | None = None

    def encode(self) -> str:
        """Return the JSON text."""
        when = [self.created_ms, self.ended_ms, self.version, self.decision]
        much = [self.events, self.size_bytes]
        return to_json([self.committed, *when, *much, self.writer_id, self.reason])


@_sound
def decode_outcome(transaction_id: str, text: str) -> TransactionOutcome:
    """Read what ``TransactionOutcome.encode`` wrote."""
    return TransactionOutcome(transaction_id, *json.loads(text))


@dataclass(frozen=True, slots=True)
class SizedCut:
    """A cut of one life of the stream, with the bytes before it by segment, where known."""

    positions: Mapping[int, int]
    sizes: Mapping[int, int]

    def cut(self, stream: str, life: int) -> StreamCut:
        """Return it as a cut of that stream."""
        return StreamCut(stream, life, self.positions)

    def cells(self) -> list[list[int | None]]:
        """Return the JSON value."""
        return [[s, o, self.sizes.get(s)] for s, o in sorted(self.positions.items())]

    @classmethod
    def of_cells(cls, cells: list[Any] | None) -> SizedCut | None:
        """Read what :meth:`cells` gave."""
        if cells is None:
            return None
        positions = MappingProxyType({s: o for s, o, _ in cells})
        return cls(positions, MappingProxyType({s: b for s, _, b in cells if b is not None}))


@dataclass(frozen=True, slots=True)
class SubscriberRecord:
    """A subscriber, whose consumption a policy by consumption waits for.

    ``published`` is the cut before which it needs nothing, and ``published_ms`` its time.
    ``hold`` protects the events after it until the first publish; without a hold, a subscriber
    that has not published protects nothing. ``removed`` is the reason for the removal: the record
    keeps the generation, so that late calls do nothing.
    """

    name: str
    generation: int
    since_ms: int
    since_version: int
    hold: SizedCut | None = None
    published: SizedCut | None = None
    published_ms: int | None = None
    removed: str = ""
    published_version: int | None = None
    """The version that published; None also if an older version of this package published."""

    @property
    def bound(self) -> SizedCut | None:
        """The cut that retention may not pass, or None."""
        return None if self.removed else self.published or self.hold

    def encode(self) -> str:
        """Return the JSON text."""
        cuts = [cut and cut.cells() for cut in (self.hold, self.published)]
        since = [self.since_ms, self.since_version]
        published = [self.published_ms, self.removed, self.published_version]
        return to_json([self.generation, *since, *cuts, *published])


@cached_by_text(DECODED_TEXT_CHARACTERS)
@_sound
def decode_subscriber(name: str, text: str) -> SubscriberRecord:
    """Read what ``SubscriberRecord.encode`` wrote."""
    generation, since_ms, since_version, hold, published, *rest = json.loads(text)
    cuts = SizedCut.of_cells(hold), SizedCut.of_cells(published)
    return SubscriberRecord(name, generation, since_ms, since_version, *cuts, *rest)


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """The tail at a version: one entry of the retention set.

    ``size_bytes`` counts all events before it since the creation of the stream's life.
    """

    version: int
    time_ms: int
    size_bytes: int
    tail: SizedCut

    def encode(self) -> str:
        """Return the JSON text."""
        return to_json([self.time_ms, self.size_bytes, self.tail.cells()])


@cached_by_text(DECODED_TEXT_CHARACTERS)
@_sound
def decode_sample(version: int, text: str) -> SampleRecord:
    """Read what ``SampleRecord.encode`` wrote."""
    time_ms, size_bytes, cells = json.loads(text)
    tail = SizedCut.of_cells(cells)
    assert tail is not None, f"sample {version} holds no cut"
    return SampleRecord(version=version, time_ms=time_ms, size_bytes=size_bytes, tail=tail)


@dataclass(frozen=True, slots=True)
class FenceRecord:
    """The newest fencing token, and the version that set it; an empty one if none is set."""

    token: str = ""
    version: int = 0

    def encode(self) -> str:
        """Return the JSON text."""
        return to_json([self.token, self.version])


@_sound
def decode_fence(text: str) -> FenceRecord:
    """Read what ``FenceRecord.encode`` wrote."""
    token, version = json.loads(text)
    return FenceRecord(typed(token, str), typed(version, int))


@dataclass(frozen=True, slots=True)
class PlaceMark:
    """A place in a stream: segment, offset, and the version that set it."""

    segment_id: int
    offset: int
    version: int

    def encode(self) -> str:
        """Return the JSON text."""
        return to_json([self.segment_id, self.offset, self.version])


@_sound
def decode_mark(text: str) -> PlaceMark:
    """Read what ``PlaceMark.encode`` wrote."""
    return PlaceMark(*(typed(value, int) for value in json.loads(text)))


@dataclass(frozen=True, slots=True)
class Restoration:
    """The life that a restore began from a copy, and the time of the restore in ms since 1970."""

    life: int
    time_ms: int

    def encode(self) -> str:
        """Return the JSON text."""
        return to_json([self.life, self.time_ms])


@_sound
def decode_restoration(text: str) -> Restoration:
    """Read what ``Restoration.encode`` wrote."""
    return Restoration(*(typed(value, int) for value in json.loads(text)))


def _load(domain: str, text: str) -> Any:
    record = json.loads(text)
    if record["format"] != FORMAT:
        raise CorruptLog(
            f"domain {domain} has format {record['format']}, which this version of pravega_spark "
            f"does not know (it knows {FORMAT}); upgrade the package."
        )
    return record
