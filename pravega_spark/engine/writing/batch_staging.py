"""Stores the chunks of a batch, under plain names or as an offer to other processes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pravega_spark.engine.chunks.block_writer import are_blocks, stage_blocks
from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.chunk_encoder import UNCOMPRESSED, checked_ends, cuts
from pravega_spark.engine.chunks.chunk_writer import (
    EncodedChunk,
    encode_chunks,
    encode_lone,
    stage,
    store_together,
)
from pravega_spark.engine.chunks.routing import group
from pravega_spark.engine.chunks.tiny_chunk import LoneEvent
from pravega_spark.engine.staging_folder import offer_version, version_folder
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.engine.writing.append_draft import StagedBatch
from pravega_spark.engine.writing.batch_identity import SessionBatch
from pravega_spark.engine.writing.offer_name import OfferedPart, offer_name
from pravega_spark.errors import (
    CommitUnknown,
    PravegaSparkError,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
)
from pravega_spark.limits import COMPRESSION

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
        segment_id = routed.segment_ids[0]
        lone = encode_lone(folder, segment_id, events, name=f"{name}-{segment_id}", key=key)
        if before_commit and store.is_local:
            return store_together(store, stream.path, [lone], before_commit=True)
        store.put(f"{stream.path}/{lone.chunk.path}", lone.data)
        return [lone.chunk]
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
        return stage(*target, rows, name=name_of_part, compression=compression, key=key)

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
    return StagedBatch(life, version, tuple(chunks), identity, is_offered=True)


def _named(
    parts: list[EncodedChunk], version_seen: int, token: str, life: int, identity: SessionBatch
) -> Iterator[EncodedChunk]:
    """Yield the chunks with the names of an offer, as far as these fit."""
    for number, one in enumerate(parts):
        offer = OfferedPart(token, number, len(parts), life, identity, one.chunk)
        name = offer_name(version_seen, offer)
        if name is not None:
            folder = one.chunk.path.rpartition("/")[0]
            yield EncodedChunk(replace(one.chunk, path=f"{folder}/{name}"), one.data)


def _store(stream: StreamLog, named: list[EncodedChunk], *, together: bool) -> list[StagedChunk]:
    store = stream.store
    if store.is_local and len(named) > 1 and together:
        return store_together(store, stream.path, named)

    def stored(one: EncodedChunk) -> StagedChunk:
        store.put(f"{stream.path}/{one.chunk.path}", one.data)
        return one.chunk

    return stream.runtime.each(stored, named)


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
