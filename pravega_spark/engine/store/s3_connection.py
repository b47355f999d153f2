"""Connections on which an answer that was cut short is no answer.

http.client takes the end of a connection for the end of the headers, and without a Content-Length
also for the end of the body. So an answer that was cut within its headers looks whole, and empty.
"""

from __future__ import annotations

import functools
import http.client
from typing import Any, Protocol

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HeaderParsingError
from urllib3.util.response import assert_header_parsing

from pravega_spark.engine.store.silence import Silence

_ENDS = (b"\r\n", b"\n")
"""The line after the last header."""


class _Lines(Protocol):
    def readline(self, limit: int = -1, /) -> bytes: ...
    def close(self) -> None: ...


class _LastLine:
    """Passes lines on, and keeps the last one."""

    def __init__(self, file: _Lines) -> None:
        self._file = file
        self.line = b""

    def readline(self, limit: int = -1) -> bytes:
        self.line = self._file.readline(limit)
        return self.line

    def close(self) -> None:
        self._file.close()


class _WholeResponse(http.client.HTTPResponse):
    """A response whose headers are all there; ConnectionError otherwise."""

    def begin(self) -> None:
        if self.headers is not None:
            return
        file: Any = self.fp
        lines = _LastLine(file)
        self.fp = lines
        try:
            super().begin()
        finally:
            if self.fp is lines:  # None if the first line was wrong
                self.fp = file
        if lines.line not in _ENDS:
            raise ConnectionResetError("the connection ended within the headers")
        try:
            assert_header_parsing(self.headers)
        except HeaderParsingError as error:
            raise ConnectionResetError(f"the headers are malformed: {error}") from error


class _Connection(HTTPConnection):
    response_class = _WholeResponse

    def __init__(self, *arguments: Any, silence: Silence, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._silence = silence

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        self._silence.await_answer(self.sock, self.timeout)
        return super().getresponse()


class _SecureConnection(_Connection, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def checked(pool: urllib3.PoolManager, silence: Silence) -> urllib3.PoolManager:
    """Return the pool, whose connections fail for an answer with incomplete headers.

    They report a server that does not answer.
    """
    pool.pool_classes_by_scheme = {
        "http": functools.partial(_Pool, silence=silence),  # type: ignore[dict-item]
        "https": functools.partial(_SecurePool, silence=silence),  # type: ignore[dict-item]
    }
    return pool


def has_length(response: urllib3.BaseHTTPResponse) -> bool:
    """Return whether the end of the body was known before the end of the connection."""
    headers = response.headers
    return (
        headers.get("content-length", "").strip().isdigit()
        or headers.get("transfer-encoding", "").lower() == "chunked"
        or response.status in (204, 304)
    )
