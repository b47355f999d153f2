"""A TCP proxy whose connections are refused, reset, cut in the middle, or stall."""

from __future__ import annotations

import contextlib
import enum
import queue
import select
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

_PIECE = 1 << 14
_LOOK_SECONDS = 0.05


class Network(enum.Enum):
    """What the network does with connections and bytes."""

    GOOD = "good"
    REFUSE = "refuse"
    """Connections are reset as soon as they are open; open ones are reset."""
    CUT = "cut"
    """Each connection is reset after the first 200 bytes of an answer."""
    STALL = "stall"
    """Connections stay open, and no byte arrives any more."""
    SLOW = "slow"
    """Each piece of an answer arrives 50 ms late."""


class TcpProxy:
    """Forwards connections to a server; ``network`` may be set at any time."""

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = parts.hostname or "", parts.port or 0
        self.network = Network.GOOD
        self.connections = self.answered_bytes = 0
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_LOOK_SECONDS)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """End all connections and threads."""
        self._ended.set()
        for thread in list(self._threads):
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError, ConnectionError):  # reset before it was accepted
                client, _ = self._listener.accept()
                self.connections += 1
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads = [one for one in self._threads if one.is_alive()]
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        """Forward both directions until one side ends; an answer may be cut."""
        if self.network is Network.REFUSE:
            _reset(client)
            return
        try:
            server = socket.create_connection(self._upstream, 5)
        except OSError:
            _reset(client)
            return
        answers = threading.Thread(target=self._forward, args=(server, client, True), daemon=True)
        answers.start()
        self._forward(client, server, False)
        answers.join()
        for end in (client, server):
            end.close()

    def _forward(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        try:
            while not self._ended.is_set():
                network = self.network
                if network is Network.REFUSE:
                    break
                if network is Network.STALL:
                    self._ended.wait(_LOOK_SECONDS)
                    continue
                if not select.select([source], [], [], _LOOK_SECONDS)[0]:
                    continue
                data = source.recv(_PIECE)
                if not data:
                    return
                self.answered_bytes += len(data) * is_answer
                if is_answer and network is Network.SLOW:
                    self._ended.wait(0.05)
                is_cut = is_answer and network is Network.CUT
                target.sendall(data[:200] if is_cut else data)
                if is_cut:
                    break
            _reset(source)
            _reset(target)
        except (OSError, ValueError):  # ValueError: the other direction has closed the socket
            _reset(target)
        finally:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)


def _reset(connection: socket.socket) -> None:
    """Close a connection by a reset, not by an orderly end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


@contextlib.contextmanager
def tcp_proxy(upstream: str) -> Iterator[TcpProxy]:
    """Start a proxy on loopback before a server's URL."""
    proxy = TcpProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


@contextlib.contextmanager
def cut_after_headers(upstream: str) -> Iterator[tuple[str, queue.Queue[bytes]]]:
    """Yield the URL of a relay of one request, and the server's answers.

    The server gets the request's headers and then the end of the connection, as it does when the
    client is killed in between. The client gets no answer.
    """
    parts = urlsplit(upstream)
    answers: queue.Queue[bytes] = queue.Queue()

    def relay() -> None:
        client, _ = listener.accept()
        request = b""
        while b"\r\n\r\n" not in request:
            request += client.recv(_PIECE)
        with socket.create_connection((parts.hostname or "", parts.port or 0), 5) as server:
            server.sendall(request[: request.index(b"\r\n\r\n") + 4])
            server.shutdown(socket.SHUT_WR)
            server.settimeout(10)
            answers.put(server.recv(_PIECE))
        _reset(client)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", answers
        thread.join(10)
