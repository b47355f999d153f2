"""The floor of a durable append: the same bytes written, linked and fsynced, and nothing else."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from pravega_spark import StreamManager
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.values.segments import SegmentRange


def last_append(manager: StreamManager, stream: str) -> tuple[bytes, bytes]:
    """Return the bytes of the chunk and of the commit of a stream's last append.

    All events must be in one segment, as those of one routing key are.
    """
    opened = open_stream(manager.root, stream)
    view = opened.view()
    segment_id, end = max(view.tail, key=lambda place: place[1])
    (ref,) = opened.chunks(SegmentRange(stream, view.life, segment_id, end - 1, end))
    chunk = opened.store.get(f"{opened.path}/{ref.path}")
    return chunk, opened.store.get(opened.log.reader.key(view.version))


class AppendFloor:
    """Puts two files, as an append puts its chunk and its commit."""

    def __init__(self, folder: Path, chunk: bytes, commit: bytes) -> None:
        self._files = [(str(folder / "data"), chunk), (str(folder / "log"), commit)]
        for path, _ in self._files:
            os.makedirs(path)
        self._numbers = count()

    def __call__(self) -> None:
        number = next(self._numbers)
        for folder, data in self._files:
            put_durably(folder, f"{number:020d}", data)


def put_durably(folder: str, name: str, data: bytes) -> None:
    """Write a file, fsync it, link it under its name, and fsync the folder."""
    descriptor = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666)
    os.write(descriptor, data)
    os.fsync(descriptor)
    source = f"/proc/self/fd/{descriptor}"
    os.link(source, f"{folder}/{name}", src_dir_fd=descriptor, follow_symlinks=True)
    os.close(descriptor)
    sync_folder(folder)


def sync_folder(folder: str) -> None:
    """Fsync a folder, which makes its new entries durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    os.fsync(descriptor)
    os.close(descriptor)
