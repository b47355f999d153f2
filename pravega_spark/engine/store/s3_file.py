"""An S3 object as a file for random reads."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import s3fs
from fsspec.asyn import sync

from pravega_spark.engine.store.s3_errors import (
    answer_of,
    is_empty_range,
    is_missing,
    refusal,
)
from pravega_spark.names import is_number

_WHOLE_BYTES = 8 << 20
"""Objects up to this size are read completely; of larger ones, this much of the end is kept."""
_TAIL_ATTEMPTS = 3


def open_object(fs: s3fs.S3FileSystem, bucket: str, name: str) -> pa.NativeFile:
    """Open the object with one request for its end, which is all of a small object.

    A Parquet footer is at the end, so a large object needs further requests only for columns.
    Raises what s3fs and botocore raise.
    """
    for attempt in range(1, _TAIL_ATTEMPTS + 1):
        try:
            tail, size = sync(fs.loop, _get_tail, fs, bucket, name)
            break
        except Exception as error:
            if is_empty_range(error):
                return pa.BufferReader(b"")
            if answer_of(error) is not None or attempt == _TAIL_ATTEMPTS:
                raise
    if size == len(tail):
        return pa.BufferReader(tail)
    return pa.PythonFile(_RangeFile(fs, f"{bucket}/{name}", size, tail), mode="r")


async def _get_tail(fs: s3fs.S3FileSystem, bucket: str, name: str) -> tuple[bytes, int]:
    await fs.set_session()
    client = await fs.get_s3(bucket)
    answer = await client.get_object(Bucket=bucket, Key=name, Range=f"bytes=-{_WHOLE_BYTES}")
    async with answer["Body"] as body:
        tail: bytes = await body.read()
    # "bytes 100-199/200"; a server that ignores ranges sends everything without this header.
    total = answer.get("ContentRange", "").rpartition("/")[2]
    return tail, int(total) if is_number(total) else len(tail)


class _RangeFile(io.RawIOBase):
    """The bytes of a large object, fetched range by range; its end is in memory."""

    def __init__(self, fs: s3fs.S3FileSystem, path: str, size: int, tail: bytes):
        super().__init__()
        self._fs = fs
        self._path = path
        self._size = size
        self._tail = tail
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        start = self._position
        end = self._size if size is None or size < 0 else min(self._size, start + size)
        if start >= end:
            return b""
        tail_start = self._size - len(self._tail)
        if start >= tail_start:
            data = self._tail[start - tail_start : end - tail_start]
        else:
            data = self._range(start, end)
        self._position = start + len(data)
        return data

    def _range(self, start: int, end: int) -> bytes:
        try:
            data: bytes = self._fs.cat_file(self._path, start=start, end=end)
            return data
        except Exception as error:
            if is_missing(error):
                raise FileNotFoundError(f"s3://{self._path}") from error
            raise refusal(error, f"s3://{self._path}", "read") from error
