"""A TCP proxy in a process of its own that holds back every response, and counts the requests.

Object stores answer in 15 to 60 ms, a server on loopback in one. Requests pass at once, so any
number of them are under way at the same time. A part of a response waits as long as its first
byte, so that the rate of a transfer stays what it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_CONTINUE = b"HTTP/1.1 100"
_LAST_PART = b"0\r\n\r\n"


class RequestCounter:
    """Finds the requests in the bytes that one connection sends."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._head = b""
        self._body_left = 0
        self._is_chunked = False
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Count the requests whose heads end in ``data``."""
        while data:
            if self._is_chunked:
                self._tail = (self._tail + data)[-len(_LAST_PART) :]
                self._is_chunked = self._tail != _LAST_PART
                return
            if self._body_left:
                skipped = min(self._body_left, len(data))
                self._body_left -= skipped
                data = data[skipped:]
                continue
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._head = b""
            self._count(head.decode("latin-1"))

    def _count(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        query = urlsplit(target).query
        self._counts["LIST" if method == "GET" and "list-type" in query else method] += 1
        for line in lines:
            name, _, value = line.partition(":")
            if name.lower() == "content-length":
                self._body_left = int(value)
            elif name.lower() == "transfer-encoding":
                self._is_chunked = "chunked" in value.lower()


class _Upstream(asyncio.Protocol):
    """The connection to the server: holds back what it sends."""

    def __init__(self, client: asyncio.Transport, delay_seconds: float) -> None:
        self._client = client
        self._delay_seconds = delay_seconds
        self._waiting: deque[bytes | None] = deque()

    def data_received(self, data: bytes) -> None:
        if data.startswith(_CONTINUE) and not self._waiting:
            self._client.write(data)
        else:
            self._later(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._later(None)

    def _later(self, data: bytes | None) -> None:
        self._waiting.append(data)
        asyncio.get_running_loop().call_later(self._delay_seconds, self._pass_on)

    def _pass_on(self) -> None:
        data = self._waiting.popleft()
        if data is None:
            self._client.close()
        elif not self._client.is_closing():
            self._client.write(data)


class _Client(asyncio.Protocol):
    """A client's connection: passes on at once what it sends."""

    def __init__(self, host: str, port: int, delay_seconds: float, counts: Counter[str]) -> None:
        self._server = host, port
        self._delay_seconds = delay_seconds
        self._counter = RequestCounter(counts)
        self._upstream: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._connecting = asyncio.ensure_future(self._connect(transport))

    async def _connect(self, transport: asyncio.Transport) -> None:
        try:
            self._upstream, _ = await asyncio.get_running_loop().create_connection(
                lambda: _Upstream(transport, self._delay_seconds), *self._server
            )
        except OSError:
            transport.close()
            return
        for data in self._early:
            self._upstream.write(data)

    def data_received(self, data: bytes) -> None:
        self._counter.feed(data)
        if self._upstream is None:
            self._early.append(data)
        else:
            self._upstream.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._upstream is not None:
            self._upstream.close()


@dataclass(frozen=True)
class SlowEndpoint:
    """The proxy's address; ``calls`` asks its process."""

    endpoint_url: str
    process: subprocess.Popen[str]

    def calls(self) -> Counter[str]:
        """Return the requests by method since the last call; a listing is ``LIST``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("calls\n")
        self.process.stdin.flush()
        return Counter(json.loads(self.process.stdout.readline()))


@contextlib.contextmanager
def start_latency_proxy(endpoint_url: str, delay_seconds: float) -> Iterator[SlowEndpoint]:
    """Serve on a free loopback port in front of ``endpoint_url`` until the block ends."""
    command = [sys.executable, "-m", __name__, urlsplit(endpoint_url).netloc, str(delay_seconds)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        try:
            yield SlowEndpoint(f"http://127.0.0.1:{port}", process)
        finally:
            process.stdin.close()  # it ends with its input


async def _serve(server: str, delay_seconds: float) -> None:
    host, _, port = server.partition(":")
    counts: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: _Client(host, int(port), delay_seconds, counts), "127.0.0.1", 0
    )
    print(listening.sockets[0].getsockname()[1], flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(counts), flush=True)
        counts.clear()
    listening.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2])))
