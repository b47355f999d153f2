"""Streams of very many commits, built fast by the engine itself.

Every commit is a real one, made by ``append`` on the same log code, with light state files and
checkpoints as in production. Two things are spared: the fsyncs, and the writing of a Parquet file
for each chunk: all chunks are hard links to a few files of one event.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pyarrow as pa

from bench.harness.context import Context
from bench.harness.dataset import table
from pravega_spark.engine.chunks.chunk import stage
from pravega_spark.engine.log import checkpointing
from pravega_spark.engine.log.commit_log import Log
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append

_LINKS = 50_000  # ext4 allows 65,000 names of one file


class UnsyncedStore(LocalStore):
    """A local store whose answers are not durable: only to build inputs with.

    With a clock its files are dated by that, as on a machine whose clock it is.
    """

    def __init__(self, path: str, clock: Runtime | None = None) -> None:
        super().__init__(path)
        self._clock = clock

    def _publish(self, path: str, data: bytes | pa.Buffer, **how: Any) -> bool:
        created = super()._publish(path, data, **{**how, "durable": False})
        if self._clock is not None:
            os.utime(path, ns=(0, self._clock.now_ms() * 1_000_000))
        return created


def long_stream(context: Context, commits: int) -> str:
    """Return a stream of so many commits with one chunk of one event each; built once a run."""
    return str(context.shared(f"long-{commits}", lambda context: _build(context, commits)))


def _build(context: Context, commits: int) -> str:
    name = context.create(f"long-{commits}")
    store = UnsyncedStore(context.root)
    stream = StreamLog(store, name)
    stream.log.maintain = _maintain
    view = stream.view()
    (segment,) = view.active.segments
    event = table(1)
    for first in range(0, commits, _LINKS):
        chunks = stage(store, stream.path, 0, segment.segment_id, event, name=f"original-{first}")
        original = f"{context.root}/{stream.path}/{chunks[0].path}"
        folder = os.path.dirname(original)
        for number in range(first, min(first + _LINKS, commits)):
            os.link(original, f"{folder}/{number:08d}.parquet")
            append(stream, view.life, 0, [replace(chunks[0], path=f"data/v0/{number:08d}.parquet")])
    os.sync()  # so that no measurement pays for this
    return name


def _maintain(log: Log, version: int) -> None:
    checkpointing.maintain(log.reader, version)
