"""The floor of a durable append: its writes, links and fsyncs of the same bytes, nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from pravega_spark import StreamManager
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.model import SegmentRange


def last_append(manager: StreamManager, stream: str) -> tuple[bytes, bytes]:
    """Return the bytes of the chunk and of the commit of the last event of a stream.

    The events are all in one segment, as those of one routing key are.
    """
    opened = open_stream(manager.root, stream)
    view = opened.view()
    segment_id, end = max(view.tail, key=lambda place: place[1])
    (ref,) = opened.chunks(SegmentRange(stream, view.life, segment_id, end - 1, end))
    chunk = opened.store.get(f"{opened.path}/{ref.path}")
    return chunk, opened.store.get(opened.log.reader.key(view.version))


class Floor:
    """Puts two files as an append puts its chunk and its commit."""

    def __init__(self, folder: Path, chunk: bytes, commit: bytes) -> None:
        self._parts = [(str(folder / "data"), chunk), (str(folder / "log"), commit)]
        for path, _ in self._parts:
            os.makedirs(path)
        self._numbers: Iterator[int] = count()

    def __call__(self) -> None:
        number = next(self._numbers)
        for folder, data in self._parts:
            _put(folder, f"{folder}/{number:020d}", data)


def _put(folder: str, path: str, data: bytes) -> None:
    descriptor = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
    os.write(descriptor, data)
    os.fsync(descriptor)
    source = f"/proc/self/fd/{descriptor}"
    os.link(source, path, src_dir_fd=descriptor, follow_symlinks=True)
    os.close(descriptor)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.fsync(descriptor)
    os.close(descriptor)
