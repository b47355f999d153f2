"""A server process of a root in memory, whose limits of connections are a test's."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pravega_spark import StreamManager
from pravega_spark.serve.serve_options import ConnectionLimits, ServeOptions
from pravega_spark.serve.web_server import serve


@dataclass(frozen=True)
class LimitedServer:
    """A server process."""

    process: subprocess.Popen[str]
    port: int
    log: IO[str]

    def connect(self) -> socket.socket:
        """Return a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(self, text: str) -> bytes:
        """Send a request, such as ``GET /ping``, on a connection of its own; return its answer."""
        with self.connect() as client:
            client.sendall(request(text, "Connection: close"))
            return rest(client)

    def sockets(self) -> int:
        """Return how many sockets the process has open."""
        folder = Path(f"/proc/{self.process.pid}/fd")
        found = 0
        for file in folder.iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found += os.readlink(file).startswith("socket:")
        return found

    def unread_bytes(self, client: socket.socket) -> int:
        """Return what the kernel keeps of answers that a client has not taken."""
        ends = f":{self.port:04X}", f":{client.getsockname()[1]:04X}"
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            local, remote, _, queues = line.split()[1:5]
            if (local[-5:], remote[-5:]) == ends:
                return int(queues.partition(":")[0], 16)
        return 0

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the process meanwhile: it sees all that is sent to it at the same moment."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def said(self) -> str:
        """Return its log so far; its place in it, which the process shares, stays."""
        return os.pread(self.log.fileno(), 1 << 20, 0).decode()

    def end(self) -> str:
        """End it by SIGTERM; return its log."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.seek(0)
        return self.log.read()


def request(text: str, *headers: str, http: str = "1.1") -> bytes:
    """Return the header of a request, such as ``GET /ping``."""
    return "\r\n".join([f"{text} HTTP/{http}", "Host: localhost", *headers, "", ""]).encode()


def rest(client: socket.socket) -> bytes:
    """Return all bytes until the server ends a connection."""
    found = b""
    try:
        while part := client.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


@contextmanager
def limited_server(
    *, files: int | None = None, free_files: int | None = None, payload: int = 0, **limits: Any
) -> Iterator[LimitedServer]:
    """Yield a running server, which is killed afterwards.

    It may open ``files`` files, and leaves ``free_files`` of them for connections. Its stream has
    an event of ``payload`` bytes.
    """
    given = json.dumps([files, free_files, payload, limits])
    command = [sys.executable, "-m", "tests.harness.limited_server", given]
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield LimitedServer(process, int(process.stdout.readline()), log)
        finally:
            process.kill()


def main() -> None:
    """Serve; print the port once it listens."""
    files, free_files, payload, limits = json.loads(sys.argv[1])
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    manager = StreamManager("memory://limited")
    manager.create_scope("nyc")
    manager.create_stream("nyc/f")
    if payload:
        with manager.create_writer("nyc/f", large_events=True) as writer:
            writer.write_event(bytes(payload), "k").result()
    options = ServeOptions(port=0, limits=ConnectionLimits(**limits))
    held: list[int] = []

    def on_start(url: str) -> None:
        while free_files is not None and (not held or held[-1] < files - free_files - 1):
            held.append(os.open(os.devnull, os.O_RDONLY))
        print(url.rstrip("/").rpartition(":")[2], flush=True)

    serve(manager, options, version="1", on_start=on_start)


if __name__ == "__main__":
    main()
