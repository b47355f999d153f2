"""File objects over a store: one that Arrow writes to, and the position of one that it reads."""

from __future__ import annotations

import io
from collections.abc import Callable
from operator import index
from typing import Any

import pyarrow as pa


class ObjectSink(io.RawIOBase):
    """A file object that can only be written; closing it does nothing.

    Whether the bytes become an object is the decision of the context that owns the sink.
    """

    def __init__(
        self, write: Callable[[Any], object], error_of: Callable[[Exception], Exception]
    ) -> None:
        """Take a function that writes all bytes, and one that converts its errors."""
        super().__init__()
        self._write = write
        self._error_of = error_of

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write all bytes; raise the store's errors."""
        size = memoryview(data).nbytes
        try:
            self._write(data)
        except Exception as error:
            raise self._error_of(error) from error
        return size

    def as_arrow(self) -> pa.NativeFile:
        """Return the sink as Arrow's file."""
        return pa.PythonFile(self, mode="w")


class PositionedFile(io.RawIOBase):
    """A file for random reads: a subclass has ``read``, which moves the position, and the size."""

    def __init__(self) -> None:
        super().__init__()
        self._position = 0

    def _end(self) -> int:
        raise NotImplementedError

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Raise io.UnsupportedOperation; ValueError once closed, as files do."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        raise io.UnsupportedOperation("not writable: the file is open for reading only.")

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, as ``io.BytesIO`` does; return it. Raises ValueError."""
        offset = index(offset)
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise ValueError(f"seek: whence must be 0, 1 or 2, got {whence!r}.")
        if whence == io.SEEK_SET and offset < 0:
            raise ValueError(f"seek: a position must not be negative, got {offset}.")
        base = 0
        if whence == io.SEEK_CUR:
            base = self._position
        elif whence == io.SEEK_END:
            base = self._end()
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer; return the number of bytes."""
        data: Any = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
