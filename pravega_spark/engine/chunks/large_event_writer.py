"""Stores a large event: its payload as an object, piece by piece, then the chunk that names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from pravega_spark.engine.attached_objects import chunk_path, object_path
from pravega_spark.engine.chunks.chunk import StagedChunk, encode_events
from pravega_spark.engine.chunks.large_event import LargeEventReference, PayloadDigests
from pravega_spark.engine.chunks.writer import encode_chunks
from pravega_spark.engine.runtime.failpoints import failpoint
from pravega_spark.engine.store.base import Store
from pravega_spark.errors import EventTooLarge, InvalidInput
from pravega_spark.values.checks import shown
from pravega_spark.values.limits import (
    LARGE_EVENT_BLOCK_BYTES,
    LARGE_EVENT_PIECE_BYTES,
    MAX_LARGE_EVENT_BYTES,
)

_BYTES = (bytes, bytearray, memoryview)


def is_payload_source(event: object) -> bool:
    """Return whether an event is given as a file, or as an iterable of bytes."""
    if isinstance(event, (str, *_BYTES, Mapping)):
        return False
    return hasattr(event, "read") or isinstance(event, Iterable)


def pieces_of(event: Any) -> Iterator[memoryview]:
    """Yield the bytes of an event: bytes, a file that reads them, or an iterable of them.

    Raises InvalidInput for pieces that are not bytes, and what the file or the iterable raises.
    """
    if isinstance(event, _BYTES):
        parts: Iterable[Any] = (event,)
    elif hasattr(event, "read"):
        parts = iter(lambda: event.read(LARGE_EVENT_PIECE_BYTES), b"")
    else:
        parts = event
    for part in parts:
        if not isinstance(part, _BYTES):
            raise InvalidInput(
                f"a large event is given as bytes, a file opened in binary mode, or an iterable of "
                f"bytes; it yielded {type(part).__name__}: {shown(part)}."
            )
        given = memoryview(part)
        whole = given.cast("B") if given.contiguous else memoryview(given.tobytes())
        for at in range(0, len(whole), LARGE_EVENT_PIECE_BYTES):
            yield whole[at : at + LARGE_EVENT_PIECE_BYTES]


def split_off(pieces: Iterator[memoryview], most: int) -> tuple[bytes, Iterator[memoryview] | None]:
    """Return the payload and None if it has at most ``most`` bytes; else its first pieces and all.

    Of a payload of unknown length no more than ``most`` bytes and a piece are held.
    """
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(bytes(piece))
        size += len(piece)
        if size > most:
            return b"", chain(map(memoryview, _drained(held)), pieces)
    return b"".join(held), None


def _drained(held: list[bytes]) -> Iterator[bytes]:
    """Yield pieces, and forget each."""
    held.reverse()
    while held:
        yield held.pop()


def store_payload(
    store: Store, table_path: str, folder: str, pieces: Iterable[memoryview], *, name: str
) -> LargeEventReference:
    """Store a payload as the object ``<table_path>/data/<folder>/<name>.event``, durably.

    Memory holds one piece and what the store buffers. Raises EventTooLarge beyond
    ``MAX_LARGE_EVENT_BYTES``, what the pieces raise, and what a store's ``writer`` raises; then
    there is no object.
    """
    path = object_path(folder, name)
    digests = PayloadDigests(LARGE_EVENT_BLOCK_BYTES)
    with store.writer(f"{table_path}/{path}") as file:
        for piece in pieces:
            digests.update(piece)
            if digests.size_bytes > MAX_LARGE_EVENT_BYTES:
                raise too_large_for_all(digests.size_bytes)
            file.write(piece)
            failpoint("large.piece")
    failpoint("large.object")
    return digests.reference(path)


def too_large_for_all(size: int) -> EventTooLarge:
    """Return the error for an event that no writer takes."""
    return EventTooLarge(
        f"an event of {size} bytes or more is larger than {MAX_LARGE_EVENT_BYTES} bytes, the most "
        "that one event can have; split it.",
        size_bytes=size,
        limit_bytes=MAX_LARGE_EVENT_BYTES,
    )


def store_reference(
    store: Store,
    table_path: str,
    folder: str,
    reference: LargeEventReference,
    *,
    segment_id: int,
    key: str | None,
    time_us: int,
) -> StagedChunk:
    """Store the chunk that names a stored payload, beside it; return it for a commit.

    Its event bytes are those of the payload.
    """
    row = encode_events([key], [time_us], [reference.encode()])
    (encoded,) = encode_chunks(folder, segment_id, row, name="")
    path = chunk_path(reference.path, reference.size_bytes)
    store.put(f"{table_path}/{path}", encoded.data)
    failpoint("large.chunk")
    return replace(
        encoded.chunk,
        path=path,
        event_bytes=reference.size_bytes,
        attachment=reference.attachment,
    )
