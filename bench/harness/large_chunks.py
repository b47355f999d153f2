"""A stream of very many events in few large chunks, as a compaction leaves them."""

from __future__ import annotations

import os
from typing import Final

import pyarrow as pa

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.lookalike import json_events
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA
from pravega_spark.engine.chunks.writer import ChunkWriter
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append

_SEGMENTS, _FILES_OF_A_SEGMENT, _BLOCKS_OF_A_FILE = 4, 2, 5
LARGE_FILES: Final = _SEGMENTS * _FILES_OF_A_SEGMENT


def stream_of_40m(context: Context) -> tuple[str, int]:
    """Return a stream of large chunks and its events; the writer is that of compaction.

    A block of different events is written again and again. Each page is compressed by itself and
    is much smaller, so the repetition does not help Zstandard.
    """

    def make(context: Context) -> tuple[str, int]:
        block, blocks = context.size(1_000_000, 10_000), _BLOCKS_OF_A_FILE
        name = context.create("large-chunks-40m", _SEGMENTS)
        stream = StreamLog(UnsyncedStore(context.root), name)
        view = stream.view()
        for number, segment in enumerate(view.active.segments):
            rows = table(block, number)
            events = pa.array(json_events(block, number), pa.binary())
            rows = rows.set_column(2, EVENT_SCHEMA.field("event"), events)
            for file in range(_FILES_OF_A_SEGMENT):
                ids, folder = segment.segment_id, version_folder(0)
                with ChunkWriter(
                    stream.store, stream.path, folder, ids, name=f"large-{ids}-{file}"
                ) as writer:
                    for _ in range(blocks):
                        writer.write(rows)
                    append(stream, view.life, view.version, [writer.close()])
        os.sync()
        return name, LARGE_FILES * blocks * block

    return context.shared("chunk-files-40m", make)
