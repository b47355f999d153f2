"""A writer of a simulated life: real commits of chunks that are copies of a few files."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import StagedChunk, encode_events
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.stream.records import anonymous_id
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.engine.writing.identity import SessionBatch, open_session
from pravega_spark.errors import StagedTooLate, WriterForgotten
from pravega_spark.values.limits import RESTAGE_VERSIONS

_EVENT_BYTES = 100
_RANDOM = random.Random(0)


@dataclass(frozen=True, slots=True)
class _Template:
    """A chunk's file, which is copied for each append."""

    chunk: StagedChunk
    data: bytes


class LifeWriter:
    """A writer whose commits are real ones, and whose chunks are copies of one file for each size.

    The events have no keys, so they may be in any segment. That saves the time to encode them.
    """

    def __init__(self, stream: StreamLog, writer_id: str | None) -> None:
        """Open a session; without an id, the writer is anonymous."""
        self._stream, view = stream, stream.view()
        self._life, self._staging_version = view.life, view.version
        self._session = self._last = self._turn = 0
        if writer_id is None:
            writer_id = anonymous_id(view.version, stream.runtime.token())
        else:
            record = open_session(stream, view.life, writer_id)
            self._session, self._last = record.session, record.last
        self._writer_id = writer_id
        self._templates: dict[int, _Template] = {}

    def append(self, events: int = 1) -> int:
        """Append events in one commit, by the steps of a writer's thread; return the file's bytes.

        All of them are in one segment, which the next append leaves to the next segment.
        """
        while True:
            try:
                return self._append(events)
            except StagedTooLate:
                self._staging_version = self._stream.view().version
            except WriterForgotten:
                version = self._stream.view().version
                self._writer_id = anonymous_id(version, self._stream.runtime.token())
                self._last = 0

    def _append(self, events: int) -> int:
        stream, template = self._stream, self._template(events)
        path = f"data/{version_folder(self._staging_version)}/{stream.runtime.token()}.parquet"
        stream.store.put(f"{stream.path}/{path}", template.data)
        self._turn += 1
        ids = stream.view(refresh=False).active.segment_ids
        chunk = replace(template.chunk, path=path, segment_id=ids[self._turn % len(ids)])
        identity = SessionBatch(self._writer_id, self._session, self._last, self._last + events)
        done = append(stream, self._life, self._staging_version, [chunk], identity)
        self._last += events
        if done.version - self._staging_version > RESTAGE_VERSIONS:
            self._staging_version = done.version
        return chunk.size

    def _template(self, events: int) -> _Template:
        """Return the file of so many events; a writer stages one of each size."""
        if events not in self._templates:
            stream = self._stream
            times = [stream.runtime.now_us()] * events
            payloads = [_RANDOM.randbytes(_EVENT_BYTES) for _ in range(events)]
            table = encode_events([None] * events, times, payloads)
            name = f"{stream.runtime.token()}"
            (chunk,) = stage(stream.store, stream.path, "v0", 0, table, name=name)
            data = stream.store.get(f"{stream.path}/{chunk.path}")
            self._templates[events] = _Template(chunk, data)
        return self._templates[events]
