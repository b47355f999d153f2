"""Changes of keys in a table's log, and the newest one of each key at a version.

A change of one key as the payload of an event of the table's change log. One byte for the
operation, then each part of the key with its length before it, then the value, which is the rest. A
length is an unsigned LEB128 number: 7 bits a byte, the low ones first.

The time of a change: that of the commit that holds it, as its chunk's ``add`` names it. Whoever
reads the log finds the same time, so all processes, and the fold, agree when an entry ends. The
clock of the writer has no part in it. A committer never writes a time before that of the commit
before it (``CommitBuilder``), and logs of tables with a ttl are never compacted, so it stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pravega_spark.engine.chunks.arrow_arrays import numbers
from pravega_spark.engine.layout.located_cut import LocatedCut, locate
from pravega_spark.engine.layout.read_plan import next_step
from pravega_spark.engine.log.actions import Add
from pravega_spark.engine.log.files import position_of, rows_of
from pravega_spark.engine.stream.read import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import CorruptChunk, InvalidInput, TruncatedData
from pravega_spark.key_value.keys import TableKey
from pravega_spark.values.names import table_of_log
from pravega_spark.values.segments import SegmentRange, StreamCut, segment_epoch

PUT: Final = 1
REMOVE: Final = 2
_PUT, _REMOVE = bytes((PUT,)), bytes((REMOVE,))
_SHORT = 0x80
"""Lengths below it take one byte."""
_LENGTHS = [bytes((length,)) for length in range(_SHORT)]
SHORT_PUTS: Final = tuple(bytes((PUT, length)) for length in range(_SHORT))
"""How the put of a short key begins, by the key's length; then come the key, NO_SECONDARY, the
value. For the hot path, which has no call to spare."""
NO_SECONDARY: Final = b"\x00"


class Change(NamedTuple):
    """A change at its place in the change log; the folded table keeps the newest one of each key.

    Of two changes of a key the larger one is newer: a segment's successors have higher ids.
    """

    segment_id: int
    offset: int
    timestamp_us: int
    """The time of its commit in a table with a ttl, otherwise the clock of its writer."""
    value: bytes | None
    """None: the key was removed."""


def encode_put(key: TableKey, value: bytes) -> bytes:
    """Return the payload of a change that sets the value of a key."""
    return b"".join((_PUT, *_parts(key), value))


def encode_remove(key: TableKey) -> bytes:
    """Return the payload of a change that removes a key."""
    return b"".join((_REMOVE, *_parts(key)))


def encode_change(key: TableKey, value: bytes | None) -> bytes:
    """Return the payload of a change; a value of None removes the key."""
    return encode_remove(key) if value is None else encode_put(key, value)


def _parts(key: TableKey) -> tuple[bytes, bytes, bytes, bytes]:
    primary, secondary = key
    return length_code(len(primary)), primary, length_code(len(secondary)), secondary


def length_code(length: int) -> bytes:
    """Return a length as it stands before a part of a key."""
    if length < _SHORT:
        return _LENGTHS[length]
    return bytes((length & 0x7F | _SHORT,)) + length_code(length >> 7)


def decode_change(payload: bytes) -> tuple[TableKey, bytes | None]:
    """Return the key of a change, and its value: None if the key is removed.

    Raises CorruptChunk for anything that the codec did not write.
    """
    try:
        operation, length = payload[0], payload[1]
        if length < _SHORT and payload[2 + length] == 0:  # a short key without a secondary part
            end = 3 + length
            key = TableKey(payload[2 : 2 + length])
        else:
            primary, at = _part(payload, 1)
            secondary, end = _part(payload, at)
            key = TableKey(primary, secondary)
    except IndexError:
        operation, end, key = 0, 0, TableKey(b"")
    if operation == PUT:
        return key, payload[end:]
    if operation != REMOVE or end != len(payload):
        raise CorruptChunk(
            f"an event of {len(payload)} bytes that begins with {payload[:8].hex()} is not a "
            "change of a key-value table. Restore the table's change log from a copy."
        )
    return key, None


def _part(payload: bytes, at: int) -> tuple[bytes, int]:
    length = shift = 0
    while True:
        byte = payload[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < _SHORT:
            break
    end = at + length
    if end > len(payload):
        raise IndexError
    return payload[at:end], end


class ChangeTimes:
    """When the changes of one range of a table's log were committed."""

    def __init__(self, stream: StreamLog, rng: SegmentRange) -> None:
        """Look up the chunks of the range; raise NoSuchStream or StaleIdentity."""
        view = stream.view(refresh=False, life=rng.life)
        adds = _adds(stream, rng)
        if not adds or position_of(adds[-1])[1] + rows_of(adds[-1]) < rng.end:
            view = stream.view(life=rng.life)
            adds = _adds(stream, rng)
        self._offsets = np.array([position_of(add)[1] for add in adds], np.int64)
        # Truncated meanwhile: the read fails, or a later time stands for those that are left.
        times_ms = [add.modified_ms for add in adds] or [view.timestamp_ms]
        self._times = np.array(times_ms, np.int64) * 1_000

    def of(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """Return the times of the events of a batch, in microseconds."""
        found = np.searchsorted(self._offsets, numbers(batch.column("offset")), side="right") - 1
        return self._times[np.maximum(found, 0)]


def _adds(stream: StreamLog, rng: SegmentRange) -> list[Add]:
    with stream.log.files() as files:
        return files.find(rng.segment_id, rng.start, rng.end)


Changes = dict[TableKey, Change]
"""The newest change of each key."""


def ranges_since(known: StreamView, view: StreamView) -> Iterator[SegmentRange]:
    """Yield what a newer version of the log holds beyond a known one.

    Raises TruncatedData if some of it was truncated.
    """
    if known.record.active_epoch != view.record.active_epoch:
        yield from ranges_from(known.tail, view)
        return
    for segment_id in view.active.segment_ids:
        start = known.segment(segment_id).next_offset
        end = view.segment(segment_id).next_offset
        if start < end:
            yield SegmentRange(
                view.stream, life=view.life, segment_id=segment_id, start=start, end=end
            )


def ranges_from(start: StreamCut, view: StreamView) -> Iterator[SegmentRange]:
    """Yield what a version of the log holds from a cut on; raise TruncatedData below the head."""
    here: LocatedCut = locate(view, start)
    while True:
        step = next_step(here, view.located_tail)
        yield from step.ranges
        if step.done:
            return
        here = step.end


def read_changes(
    stream: StreamLog, ranges: Iterator[SegmentRange], *, dated: bool = False
) -> Changes:
    """Return the newest change of each key in ranges of the log, older segments first.

    ``dated`` replaces the writers' times by those of the commits, as a table with a ttl needs.
    """
    found: Changes = {}
    for rng in ranges:
        times = ChangeTimes(stream, rng) if dated else None
        for batch in read_range(stream, rng):
            add_changes(found, rng.segment_id, batch, times)
    return found


def add_changes(
    found: Changes, segment_id: int, batch: pa.RecordBatch, times: ChangeTimes | None = None
) -> None:
    """Add the changes of a batch of a segment's events, which follow those before."""
    written = batch.column("timestamp").view(pa.int64()) if times is None else times.of(batch)
    for payload, offset, time_us in zip(
        batch.column("event").to_pylist(),
        batch.column("offset").to_pylist(),
        written.tolist(),
        strict=True,
    ):
        key, value = decode_change(payload)
        found[key] = Change(segment_id, offset, time_us, value)


def read_value(stream: StreamLog, life: int, change: Change) -> bytes | None:
    """Return the value of a change, read from its chunk; raise TruncatedData below the head."""
    segment_id, offset = change.segment_id, change.offset
    rng = SegmentRange(stream.name, life=life, segment_id=segment_id, start=offset, end=offset + 1)
    (batch,) = read_range(stream, rng, columns=["event"])
    return decode_change(batch.column("event")[0].as_py())[1]


def check_version(version: int, newest: StreamView, oldest: int = 0) -> None:
    """Raise InvalidInput for a version of the log that does not exist yet.

    Raises TruncatedData for one before ``oldest``, or before the oldest that the log has.
    """
    if version > newest.version:
        raise InvalidInput(
            f"version {version} of table {table_of_log(newest.stream)} does not exist yet: the "
            f"newest one is {newest.version}."
        )
    oldest = max(newest.snapshot.commit_deletion_mark, oldest)
    if version < oldest:
        raise unreadable(version, newest, f"versions {oldest} to {newest.version} can")


def unreadable(version: int, newest: StreamView, why: str) -> TruncatedData:
    """Return the error of a version that can no longer be read."""
    return TruncatedData(
        f"version {version} of table {table_of_log(newest.stream)} cannot be read: {why}. Read a "
        "newer version.",
        head=newest.head,
    )


IN_CHUNK: Final = bytes(bytearray(b"this value is in its chunk alone"))
"""Stands for a value that is not kept in memory; compared by identity."""


class FoldedRows(Protocol):
    """One version of the folded table: the newest change of each key before a cut of the log."""

    @property
    def cut(self) -> StreamCut:
        """The cut of the change log that the rows reflect."""

    @property
    def log_version(self) -> int:
        """The version of the change log whose tail the cut is."""

    @property
    def life(self) -> int:
        """The life of the change log."""

    def get(self, keys: Sequence[TableKey]) -> Mapping[TableKey, Change]:
        """Return the rows of those of the keys that have one."""

    def entries(
        self, low: TableKey | None, high: TableKey | None
    ) -> Iterator[tuple[TableKey, Change]]:
        """Yield the rows of the keys of [low, high), in order."""


class FoldedSource(Protocol):
    """The folded table of a key-value table."""

    def read(self) -> FoldedRows | None:
        """Return the newest version of it; None if there is none."""

    def fold_id(self, view: StreamView) -> str | None:
        """Return a text in the change log that changes when a newer version was folded."""


class FoldedPart:
    """Tells which changes the folded rows reflect already."""

    __slots__ = ("_epoch", "_offsets")

    def __init__(self, cut: StreamCut) -> None:
        """Take the cut, which is the tail of some version."""
        self._offsets = cut.positions
        self._epoch = max(map(segment_epoch, cut.positions), default=-1)
        """Segments of an epoch up to it that the cut does not name were sealed before the cut."""

    def holds(self, change: Change) -> bool:
        """Return whether a change lies before the cut."""
        offset = self._offsets.get(change.segment_id)
        if offset is not None:
            return change.offset < offset
        return segment_epoch(change.segment_id) <= self._epoch


class EntriesAtVersion:
    """What a table holds at one version. Not changed any more, so any thread may read it."""

    def __init__(
        self,
        stream: StreamLog,
        view: StreamView,
        changes: Mapping[TableKey, Change],
        folded: FoldedRows | None,
        now_ms: int | None = None,
        ttl_ms: int | None = None,
    ) -> None:
        """Take the newest change of each key since the fold, the rows of the fold, and the time."""
        self.stream = stream
        self.view = view
        self._changes = changes
        self._folded = folded
        self._expired_us = expiry_us(now_ms, ttl_ms)

    @property
    def version(self) -> int:
        """The version of the change log."""
        return self.view.version

    def find(self, keys: Iterable[TableKey]) -> dict[TableKey, Change]:
        """Return the entries of those of the keys that exist."""
        return look_up(self._changes, self._folded, keys, self._expired_us)

    def value(self, change: Change) -> bytes:
        """Return the value of an entry, read from its chunk if it is not in memory."""
        return value_of(self.stream, self.view.life, change)

    def scan(
        self, low: TableKey | None, high: TableKey | None
    ) -> Iterator[tuple[TableKey, Change]]:
        """Yield the entries of the keys of [low, high), in order."""
        changed = sorted(
            key
            for key in self._changes
            if (low is None or key >= low) and (high is None or key < high)
        )
        newest = ((key, 0, self._changes[key]) for key in changed)
        older: Iterator[tuple[TableKey, int, Change]] = iter(())
        if self._folded is not None:
            rows = self._folded.entries(low, high)
            older = ((key, 1, change) for key, change in rows)
        last: TableKey | None = None
        for key, _, change in merge(newest, older, key=itemgetter(0, 1)):
            if key == last:
                continue
            last = key
            if is_alive(change, self._expired_us):
                yield key, change


def expiry_us(now_ms: int | None, ttl_ms: int | None) -> int | None:
    """Return the time up to which entries have expired now; None if they never do."""
    return None if ttl_ms is None or now_ms is None else (now_ms - ttl_ms) * 1_000


def is_alive(change: Change | None, expired_us: int | None) -> bool:
    """Return whether a change is an entry: no removal, and not expired."""
    if change is None or change.value is None:
        return False
    return expired_us is None or change.timestamp_us > expired_us


def look_up(
    changes: Mapping[TableKey, Change],
    folded: FoldedRows | None,
    keys: Iterable[TableKey],
    expired_us: int | None,
) -> dict[TableKey, Change]:
    """Return the entries of those of the keys that exist."""
    found: dict[TableKey, Change] = {}
    cold = list[TableKey]()
    for key in keys:
        change = changes.get(key)
        if change is not None:
            found[key] = change
        elif folded is not None:
            cold.append(key)
    if cold and folded is not None:
        found.update(folded.get(cold))
    return {key: change for key, change in found.items() if is_alive(change, expired_us)}


def value_of(stream: StreamLog, life: int, change: Change) -> bytes:
    """Return the value of an entry, read from its chunk if it is not in memory."""
    value = change.value
    if value is IN_CHUNK:
        value = read_value(stream, life, change)
    assert value is not None
    return value
