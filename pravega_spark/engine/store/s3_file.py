"""An S3 object as a file for random reads."""

from __future__ import annotations

import pyarrow as pa

from pravega_spark.engine.store.positioned_file import PositionedFile
from pravega_spark.engine.store.s3_client import S3Client
from pravega_spark.engine.store.s3_errors import is_empty_range, is_missing, refusal
from pravega_spark.names import is_number

_WHOLE_BYTES = 8 << 20
"""Objects up to this size are read completely; of larger ones, this much of the end is kept."""


def open_object(client: S3Client, name: str, url: str) -> pa.NativeFile:
    """Open the object with one request for its end, which is all of a small object.

    A Parquet footer is at the end, so a large object needs further requests only for columns.
    Raises ClientError and ConnectionError.
    """
    try:
        reply = client.call("GetObject", name, headers={"Range": f"bytes=-{_WHOLE_BYTES}"})
    except Exception as error:
        if is_empty_range(error):
            return pa.BufferReader(b"")
        raise
    # "bytes 100-199/200"; a server that ignores ranges sends everything without this header.
    total = reply.headers.get("content-range", "").rpartition("/")[2]
    size = int(total) if is_number(total) else len(reply.data)
    if size == len(reply.data):
        return pa.BufferReader(reply.data)
    if len(reply.data) != min(size, _WHOLE_BYTES):
        raise ConnectionError(f"the response has {len(reply.data)} bytes of {size}")
    return pa.PythonFile(_RangeFile(client, name, url, size, reply.data), mode="r")


def read_part(client: S3Client, name: str, start: int, end: int) -> bytes:
    """Return bytes [start, end) of the object, fewer where it ends before; one request.

    Raises ClientError and ConnectionError.
    """
    if start >= end:
        end = start + 1  # a request shows whether the object exists
        return read_part(client, name, start, end)[:0]
    try:
        reply = client.call("GetObject", name, headers={"Range": f"bytes={start}-{end - 1}"})
    except Exception as error:
        if is_empty_range(error):
            return b""
        raise
    if "content-range" in reply.headers:
        return reply.data
    return reply.data[start:end]  # a server that ignores ranges sends everything


class _RangeFile(PositionedFile):
    """The bytes of a large object, fetched range by range; its end is in memory."""

    def __init__(self, client: S3Client, name: str, url: str, size: int, tail: bytes):
        super().__init__()
        self._client = client
        self._name = name
        self._url = url
        self._size = size
        self._tail = tail

    def _end(self) -> int:
        return self._size

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
        headers = {"Range": f"bytes={start}-{end - 1}"}
        try:
            data = self._client.call("GetObject", self._name, headers=headers).data
            if len(data) != end - start:
                raise ConnectionError(f"the response has {len(data)} bytes, not {end - start}")
            return data
        except Exception as error:
            if is_missing(error):
                raise FileNotFoundError(f"{self._url} does not exist.") from error
            raise refusal(error, self._url, "read") from error
