"""Stages large events for a writer: the payload is stored while the caller waits.

The caller's thread reads its own file or iterable, so a writer never holds more of a payload than a
piece. What is stored is then an entry of the write queue, behind the events that were written
before it and ahead of those that follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pravega_spark.engine.chunks.chunk import StagedChunk
from pravega_spark.engine.chunks.large_event_writer import store_payload, store_reference
from pravega_spark.engine.staging_folder import version_folder
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.time_marks import TimeNote
from pravega_spark.engine.writing.append_condition import AppendCondition
from pravega_spark.engine.writing.append_draft import StagedBatch, sealed_error
from pravega_spark.engine.writing.batch_identity import SessionBatch
from pravega_spark.errors import EventTooLarge
from pravega_spark.limits import MAX_EVENT_BYTES

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
        """Return its batch, whatever segment takes the event; it is never an offer."""
        return StagedBatch(
            life,
            self.staging_version,
            (replace(self.chunk, segment_id=segment_id),),
            identity,
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
