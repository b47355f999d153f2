"""A file object for Arrow that passes its bytes on to a store's writer."""

from __future__ import annotations

import io
from collections.abc import Callable
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
