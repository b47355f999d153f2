"""The position of a read-only file whose bytes are fetched where it stands."""

from __future__ import annotations

import io
from operator import index
from typing import Any


class PositionedFile(io.RawIOBase):
    """A file for random reads: a subclass has ``read``, which moves the position, and the size."""

    def __init__(self) -> None:
        """Begin at the first byte."""
        super().__init__()
        self._position = 0

    def _end(self) -> int:
        """Return the size of the file in bytes."""
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
