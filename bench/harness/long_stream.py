"""Streams of very many commits, built fast.

Every commit is a real one: ``append`` makes it with the production log code, including light
state files and checkpoints. The build saves two things: the fsyncs, and a Parquet file for each
chunk. All chunks are hard links to a few files of one event.
"""

from __future__ import annotations

import os
from dataclasses import replace

from bench.harness.context import Context
from bench.harness.dataset import table
from bench.harness.unsynced_store import UnsyncedStore
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.log import checkpoint
from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append

_LINKS = 50_000  # ext4 allows 65,000 links to one file


def long_stream(context: Context, commits: int) -> str:
    """Return a stream of ``commits`` commits, each of one chunk with one event.

    It is built once a run.
    """
    return context.shared(f"long-{commits}", lambda context: _build(context, commits))


def _build(context: Context, commits: int) -> str:
    name = context.create(f"long-{commits}")
    store = UnsyncedStore(context.root)
    stream = StreamLog(store, name)
    stream.log.maintain = _maintain
    view = stream.view()
    (segment,) = view.active.segments
    event = table(1)
    for first in range(0, commits, _LINKS):
        (chunk,) = stage(
            store,
            stream.path,
            version_folder(0),
            segment.segment_id,
            event,
            name=f"original-{first}",
        )
        table_folder, folder = f"{context.root}/{stream.path}", os.path.dirname(chunk.path)
        for number in range(first, min(first + _LINKS, commits)):
            path = f"{folder}/{number:08d}.parquet"
            os.link(f"{table_folder}/{chunk.path}", f"{table_folder}/{path}")
            append(stream, view.life, 0, [replace(chunk, path=path)])
    os.sync()  # so that no measurement pays for these writes
    return name


def _maintain(log: Log, version: int) -> None:
    checkpoint.maintain(log.reader, version)
