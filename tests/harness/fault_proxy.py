"""An HTTP proxy in front of an S3 server: loses requests or answers, or sends replies itself."""

from __future__ import annotations

import contextlib
import http.client
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from pravega_spark.errors import StoreError, StoreFull, StoreReadOnly, StoreRefused

LOSE_ANSWER = "lose answer"
LOSE_REQUEST = "lose request"


@dataclass(frozen=True)
class Reply:
    """An answer that the proxy sends instead of the server's."""

    status: int
    code: str
    details: str = ""


Decide = Callable[[str, str], "str | Reply | None"]


@dataclass
class FaultProxy:
    """The proxy's address, the methods it has seen, and the faults of the next requests."""

    endpoint_url: str
    seen: list[str] = field(default_factory=list)
    decide: Decide = lambda method, path: None

    def spoil(self, method: str, *faults: str | Reply) -> None:
        """Apply ``faults`` to the next requests of ``method``, one fault to each."""
        waiting = list(faults)
        lock = threading.Lock()

        def decide(seen_method: str, path: str) -> str | Reply | None:
            with lock:
                return waiting.pop(0) if seen_method == method and waiting else None

        self.decide = decide


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultProxy
    upstream: str

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.proxy.seen.append(self.command)
        fault = self.proxy.decide(self.command, self.path)
        if fault == LOSE_REQUEST:
            self.close_connection = True
            return
        if isinstance(fault, Reply):
            xml = f"<Error><Code>{fault.code}</Code><Message>m</Message>{fault.details}</Error>"
            self._answer(fault.status, [("Content-Type", "application/xml")], xml.encode())
            return
        try:
            status, headers, content = self._forward(body)
            if fault != LOSE_ANSWER:
                self._answer(status, headers, content)
                return
        except (OSError, http.client.HTTPException):  # the server is down, or the client is gone
            pass
        self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                if name.lower() not in ("expect", "connection"):
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(status)
        of_head = self.command == "HEAD"
        for name, value in headers:
            skipped = {"transfer-encoding", "connection"} | (
                set() if of_head else {"content-length"}
            )
            if name.lower() not in skipped:
                self.send_header(name, value)
        if not of_head and status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if not of_head:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell of what went wrong, but not of a client that is gone."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def start_proxy(endpoint_url: str) -> Iterator[FaultProxy]:
    """Serve on a free loopback port until the block ends."""
    handler = type("_ThisHandler", (_Handler,), {"upstream": urlsplit(endpoint_url).netloc})
    with _Server(("127.0.0.1", 0), handler) as server:
        proxy = FaultProxy(f"http://127.0.0.1:{server.server_port}")
        handler.proxy = proxy  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


REFUSALS = (
    (Reply(403, "AccessDenied"), StoreReadOnly, "403 AccessDenied"),
    (Reply(404, "NoSuchBucket"), StoreError, "bucket does not exist"),
    (Reply(501, "NotImplemented"), StoreRefused, "conditional writes"),
    (Reply(507, "XMinioStorageFull"), StoreFull, "507"),
    (Reply(400, "InvalidArgument"), StoreError, "InvalidArgument"),
)
"""Answers to a write that had no effect: the error that every client of S3 makes of each, and a
part of its text."""
