"""A file whose reads are repeated while the storage does not answer."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pravega_spark.engine.store.positioned_file import PositionedFile
from pravega_spark.engine.store.retries import Retries


def repeated(file: pa.NativeFile, retries: Retries) -> pa.NativeFile:
    """Return a file of the same bytes whose reads are repeated; one in memory as it is."""
    if isinstance(file, pa.BufferReader):
        return file
    return pa.PythonFile(_RepeatedFile(file, retries), mode="r")


class _RepeatedFile(PositionedFile):
    """Each read names its place, so that it can be repeated."""

    def __init__(self, file: pa.NativeFile, retries: Retries) -> None:
        super().__init__()
        self._file = file
        self._retries = retries
        self._size: int | None = None

    def _end(self) -> int:
        if self._size is None:
            self._size = self._file.size()
        return self._size

    def read(self, size: int = -1) -> Any:
        position = self._position

        def attempt() -> Any:
            self._file.seek(position)
            return self._file.read(None if size is None or size < 0 else size)

        data = self._retries.call(attempt)
        self._position = position + len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
