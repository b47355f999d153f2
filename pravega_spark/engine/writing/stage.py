"""Stages what a commit will add: the chunks of a batch, large events, and offers.

``stage_routed`` writes a batch's events, which already have their segments, as a chunk for each
segment, on the storage and under its name, but in no commit yet.

A large event is staged for its writer while the caller waits: the caller's thread reads its own
file or iterable, so a writer never holds more of a payload than a piece. The stored event is then
an entry of the write queue, behind the events that were written before it and ahead of those that
follow.

An offer is a staged chunk that any process can commit without reading it. Its name says all that a
commit needs, so it costs no separate object: ``o<version seen>-<record>.parquet``. The record is
binary, in base64url: a list of varints and texts with a CRC-32 at its end, which also covers the
version.
"""

from __future__ import annotations

import base64
import copy
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pravega_spark.engine.chunk_paths import offer_version, staged_version, version_folder
from pravega_spark.engine.chunks.blocks import are_blocks, stage_blocks
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.encoder import UNCOMPRESSED, checked_ends, cuts
from pravega_spark.engine.chunks.footer import checked_digest
from pravega_spark.engine.chunks.large_event_writer import store_payload, store_reference
from pravega_spark.engine.chunks.routing import group
from pravega_spark.engine.chunks.tiny import LoneEvent
from pravega_spark.engine.chunks.writer import (
    EncodedChunk,
    encode_chunks,
    encode_lone,
    stage,
    store_together,
)
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.stream.watermarks import TimeNote
from pravega_spark.engine.writing.append import AppendCondition, StagedBatch, sealed_error
from pravega_spark.engine.writing.identity import SessionBatch
from pravega_spark.errors import (
    CommitUnknown,
    EventTooLarge,
    PravegaSparkError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
)
from pravega_spark.values.limits import COMPRESSION, MAX_EVENT_BYTES

MAX_NAME_BYTES = 255
"""The longest file name of the usual file systems."""
MAX_PARTS = 64
"""Batches of more chunks are not offered: their own process commits them."""
_FORMAT = 1
_NAME = re.compile(r"o([0-9]{20})-([A-Za-z0-9_-]+)\.parquet")
_HEX = re.compile(r"(?:[0-9a-f]{2})+")
_ANONYMOUS = re.compile(r"_(0|[1-9][0-9]*)\.([0-9a-f]{24})")
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class OfferedPart:
    """A chunk of an offered batch: part ``part`` of ``parts`` of the offer ``token``."""

    token: str
    part: int
    parts: int
    life: int
    identity: SessionBatch
    chunk: StagedChunk

    @property
    def staging_version(self) -> int:
        """The version of the folder that holds the chunk."""
        found = staged_version(self.chunk.path)
        assert found is not None, self.chunk.path
        return found


def offer_prefix(version_seen: int) -> str:
    """Return the beginning of the names of all offers that were made at a version of the log."""
    return f"o{version_seen:020d}"


def offered_at(path: str) -> int:
    """Return the version of the log at which a chunk with the name of an offer was offered."""
    return int(path[path.rindex("/") + 2 :][:20])


def offer_name(version_seen: int, offer: OfferedPart) -> str | None:
    """Return the file name of an offered chunk; None if it does not fit into a name."""
    identity, chunk = offer.identity, offer.chunk
    if identity.note is not None or offer.parts > MAX_PARTS:
        return None
    length, _, digest = chunk.footer.partition("-")
    numbers = [
        _FORMAT,
        offer.part,
        offer.parts,
        offer.life,
        chunk.segment_id,
        chunk.rows,
        chunk.size,
        chunk.event_bytes,
        _zigzag(chunk.min_timestamp_us),
        _zigzag(chunk.max_timestamp_us - chunk.min_timestamp_us),
        chunk.null_keys,
        int(length or 0),
        identity.session,
        identity.previous,
        identity.last - identity.previous,
    ]
    record = b"".join(map(_varint, numbers))
    record += b"".join(map(_text, (digest, offer.token, *_writer_texts(identity.writer_id))))
    prefix = offer_prefix(version_seen)
    record += _crc(prefix, record)
    name = f"{prefix}-{base64.urlsafe_b64encode(record).rstrip(b'=').decode()}.parquet"
    return name if len(name) <= MAX_NAME_BYTES else None


def parse_offer(path: str) -> OfferedPart | None:
    """Return the offer that a staged file is, by its path in the table; None for other files."""
    folder, _, name = path.rpartition("/")
    found = _NAME.fullmatch(name)
    if found is None or staged_version(path) is None or folder.count("/") != 1:
        return None
    try:
        return _parse(path, found[1], found[2])
    except (ValueError, StopIteration, IndexError):
        return None


def _parse(path: str, version: str, text: str) -> OfferedPart | None:
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    record, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
    if crc != _crc(f"o{version}", record):
        return None
    reader = _Reader(record)
    format_, part, parts, life, segment_id, rows, size, event_bytes = reader.numbers(8)
    low, span, null_keys, length, session, previous, count = reader.numbers(7)
    digest, token, kind, writer = (reader.text() for _ in range(4))
    if format_ != _FORMAT or not reader.is_at_end or not part < parts <= MAX_PARTS:
        return None
    if not (rows and size and count and token and writer):
        return None
    first = _unzigzag(low)
    chunk = StagedChunk(
        path=path,
        segment_id=segment_id,
        rows=rows,
        size=size,
        event_bytes=event_bytes,
        min_timestamp_us=first,
        max_timestamp_us=first + _unzigzag(span),
        null_keys=null_keys,
        footer=checked_digest(f"{length}-{digest}" if length else ""),
    )
    writer_id = f"_{kind}.{writer}" if kind else writer
    identity = SessionBatch(writer_id, session=session, previous=previous, last=previous + count)
    return OfferedPart(
        token=token, part=part, parts=parts, life=life, identity=identity, chunk=chunk
    )


def _writer_texts(writer_id: str) -> tuple[str, str]:
    """Return the version of an anonymous id and its token, or an empty text and the id."""
    found = _ANONYMOUS.fullmatch(writer_id)
    return ("", writer_id) if found is None else (found[1], found[2])


def _crc(prefix: str, record: bytes) -> bytes:
    return zlib.crc32(prefix.encode() + record).to_bytes(_CRC_BYTES, "big")


def _zigzag(number: int) -> int:
    """Return a signed number as an unsigned one: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    return number * 2 if number >= 0 else -number * 2 - 1


def _unzigzag(number: int) -> int:
    return -(number + 1) // 2 if number % 2 else number // 2


def _varint(number: int) -> bytes:
    """Return a number in groups of 7 bits, the lowest first."""
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)


def _text(text: str) -> bytes:
    """Return a text with its length; hexadecimal digits as bytes, which the lowest bit tells."""
    if _HEX.fullmatch(text):
        data = bytes.fromhex(text)
        return _varint(len(data) * 2 + 1) + data
    data = text.encode()
    return _varint(len(data) * 2) + data


class _Reader:
    """Reads the numbers and texts of a record; raises StopIteration or ValueError at its end."""

    def __init__(self, record: bytes) -> None:
        self._record = record
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._record)

    def numbers(self, count: int) -> Iterator[int]:
        for _ in range(count):
            yield self._number()

    def _number(self) -> int:
        number = shift = 0
        while True:
            byte = self._record[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte <= 0x7F:
                return number
            shift += 7

    def text(self) -> str:
        size, is_hex = divmod(self._number(), 2)
        data = self._record[self._at : self._at + size]
        if len(data) != size:
            raise ValueError("a text ends after the record")
        self._at += size
        return data.hex() if is_hex else data.decode()


_SMALL_BATCH_BYTES = 256 << 10
"""Up to this size, encoding the chunks of a batch takes less time than handing them to threads."""
_PARALLEL_BYTES = 16 << 20
MAX_OFFER_BYTES = 16 << 20
"""Larger batches are not offered: all of their chunks are encoded before the first is stored."""


class RoutedEvents(NamedTuple):
    """The segment of each event of a batch, as an index into ``segment_ids``."""

    segment_ids: tuple[int, ...]
    indexes: np.ndarray[Any, Any]


def stage_routed(
    stream: StreamLog,
    folder: str,
    events: pa.Table | LoneEvent | None,
    routed: RoutedEvents,
    *,
    before_commit: bool = False,
    compression: str = COMPRESSION,
) -> list[StagedChunk]:
    """Stage events in a folder as chunks of their segments; without events there are none.

    ``before_commit``: this process commits them next, so small ones need not be durable before.
    """
    if events is None:
        return []
    name, store, key = stream.runtime.token(), stream.store, stream.chunk_key
    if isinstance(events, LoneEvent):
        # Arrow's writer is set up anew for each file, in 0.23 ms: most of what an append of one
        # event computes. Our own encoder takes 0.03 (ADR 34).
        segment_id = routed.segment_ids[0]
        lone = encode_lone(folder, segment_id, events, name=f"{name}-{segment_id}", key=key)
        if before_commit and store.is_local:
            return store_together(store, stream.path, [lone], before_commit=True)
        return [_put(stream, lone)]
    parts = group(events, routed.indexes, routed.segment_ids)
    small = store.is_local and events.nbytes <= _SMALL_BATCH_BYTES
    if small and (before_commit or len(parts) > 1):
        encoded = [
            chunk
            for segment_id, rows in parts
            for chunk in encode_chunks(
                folder,
                segment_id,
                rows,
                name=f"{name}-{segment_id}",
                compression=compression,
                key=key,
            )
        ]
        return store_together(store, stream.path, encoded, before_commit=before_commit)

    names = [f"{name}-{segment_id}" for segment_id, _ in parts]
    if compression == UNCOMPRESSED:
        parts = [(segment_id, part) for segment_id, rows in parts for part in _parts(rows)]
        names = [f"{name}-{segment_id}-{n}" for n, (segment_id, _) in enumerate(parts)]

    def staged(part: tuple[tuple[int, pa.Table], str]) -> list[StagedChunk]:
        (segment_id, rows), name_of_part = part
        target = store, stream.path, folder, segment_id
        is_plain = compression == UNCOMPRESSED and key is None
        if is_plain and store.is_local and are_blocks(rows):
            return [stage_blocks(*target, rows, name=name_of_part)]
        recent = stream.recent_of_writes
        return stage(
            *target, rows, name=name_of_part, compression=compression, key=key, recent=recent
        )

    items = list(zip(parts, names, strict=True))
    return [chunk for chunks in stream.runtime.each(staged, items) for chunk in chunks]


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield blocks of bytes in parts that are stored at the same time.

    While the disk stores one of them, another one is encoded.
    """
    for first, last, _ in cuts(checked_ends(rows), len(rows), _PARALLEL_BYTES):
        yield rows.slice(first, last - first)


def stage_offer(
    stream: StreamLog,
    view: StreamView,
    events: pa.Table | LoneEvent,
    routed: RoutedEvents,
    identity: SessionBatch,
    life: int,
    *,
    compression: str = COMPRESSION,
) -> StagedBatch | None:
    """Store events as an offer that any process can commit; None if it cannot be one.

    Once all chunks are stored, the batch may be in the log at any time.
    """
    if events.nbytes > MAX_OFFER_BYTES:
        return None
    version = offer_version(view.version, view.snapshot.horizon)
    folder, key = version_folder(version), stream.chunk_key
    if isinstance(events, LoneEvent):
        parts = [encode_lone(folder, routed.segment_ids[0], events, name="", key=key)]
    else:
        parts = [
            chunk
            for segment_id, rows in group(events, routed.indexes, routed.segment_ids)
            for chunk in encode_chunks(
                folder, segment_id, rows, name="", compression=compression, key=key
            )
        ]
    named = list(_named(parts, view.version, stream.runtime.token(), life, identity))
    if len(named) < len(parts):
        return None
    try:
        chunks = _store(stream, named, together=events.nbytes <= _SMALL_BATCH_BYTES)
    except (StoreFull, StoreReadOnly, StoreRefused):
        raise  # one chunk is certainly missing
    except StoreError as error:
        raise offered_unknown(stream.name, identity, error) from error
    return StagedBatch(
        life=life, staging_version=version, chunks=tuple(chunks), identity=identity, is_offered=True
    )


def _named(
    parts: list[EncodedChunk], version_seen: int, token: str, life: int, identity: SessionBatch
) -> Iterator[EncodedChunk]:
    """Yield the chunks with the names of an offer, as far as these fit."""
    for number, one in enumerate(parts):
        offer = OfferedPart(
            token=token,
            part=number,
            parts=len(parts),
            life=life,
            identity=identity,
            chunk=one.chunk,
        )
        name = offer_name(version_seen, offer)
        if name is not None:
            folder = one.chunk.path.rpartition("/")[0]
            yield EncodedChunk(replace(one.chunk, path=f"{folder}/{name}"), one.data)


def _store(stream: StreamLog, named: list[EncodedChunk], *, together: bool) -> list[StagedChunk]:
    store = stream.store
    if store.is_local and len(named) > 1 and together:
        return store_together(store, stream.path, named)
    return stream.runtime.each(partial(_put, stream), named)


def _put(stream: StreamLog, one: EncodedChunk) -> StagedChunk:
    """Store a chunk durably; readers of this process will find it in memory."""
    stream.store.put(f"{stream.path}/{one.chunk.path}", one.data)
    recent = stream.recent_of_writes
    if recent is not None:
        recent.keep(stream.path, *one)
    return one.chunk


def offered_unknown(stream: str, identity: SessionBatch, error: BaseException) -> CommitUnknown:
    """Return the error of a batch that was offered before its writer failed."""
    failure = CommitUnknown(
        f"writer {identity.writer_id!r} of stream {stream}: events {identity.previous + 1} to "
        f"{identity.last} were offered to other writers, which may still commit them, and then "
        f"this failed: {error} Open the writer again, which decides the outcome, and continue from "
        "what it reports."
    )
    failure.__cause__ = error
    return failure


def failure_of(batch: StagedBatch, error: BaseException, stream: str) -> BaseException:
    """Return the error of one batch for an error that says nothing about it."""
    if batch.is_offered and not isinstance(error, CommitUnknown):
        return offered_unknown(stream, batch.identity, error)
    return copy.copy(error) if isinstance(error, PravegaSparkError) else error


UNROUTED = -1
"""The segment of a chunk before its batch is routed."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """A large event whose payload and chunk are stored, and that no commit names yet."""

    chunk: StagedChunk
    key: str | None
    staging_version: int
    """The version whose folder holds both."""

    def batch(
        self,
        life: int,
        segment_id: int,
        identity: SessionBatch,
        condition: AppendCondition | None,
        time_note: TimeNote | None,
    ) -> StagedBatch:
        """Return its batch, for any segment that takes the event; it is never an offer."""
        return StagedBatch(
            life=life,
            staging_version=self.staging_version,
            chunks=(replace(self.chunk, segment_id=segment_id),),
            identity=identity,
            can_be_offered=False,
            condition=condition,
            time_note=time_note,
        )


def store_large_event(
    stream: StreamLog, life: int, pieces: Iterator[memoryview], key: str | None
) -> StoredEvent:
    """Store a payload and the chunk that names it, in the folder of the newest version.

    Raises NoSuchStream, StaleIdentity or StreamSealed before anything is read, EventTooLarge, what
    the pieces raise, and StoreError.
    """
    view = stream.view(life=life)
    if view.record.state is not StreamState.ACTIVE:
        raise sealed_error(view)
    folder = version_folder(view.version)
    chunk = stage_large_event(stream, folder, pieces, segment_id=UNROUTED, key=key)
    return StoredEvent(chunk, key, view.version)


def stage_large_event(
    stream: StreamLog,
    folder: str,
    pieces: Iterator[memoryview],
    *,
    segment_id: int,
    key: str | None,
) -> StagedChunk:
    """Store a payload and the chunk that names it in a folder of the stream.

    Raises EventTooLarge, also for any event of an encrypted stream, what the pieces raise, and
    StoreError.
    """
    if stream.chunk_key is not None:
        raise EventTooLarge(
            f"stream {stream.name} is encrypted, and its events have at most {MAX_EVENT_BYTES} "
            "bytes, because the objects of large events are not encrypted. Split the event, or "
            "encrypt it and write it to a stream that is not encrypted.",
            limit_bytes=MAX_EVENT_BYTES,
        )
    store, path, runtime = stream.store, stream.path, stream.runtime
    reference = store_payload(store, path, folder, pieces, name=runtime.token())
    time_us = runtime.now_us()
    return store_reference(
        store, path, folder, reference, segment_id=segment_id, key=key, time_us=time_us
    )
