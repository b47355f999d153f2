"""A server process of a root in memory, whose limits of connections are a test's.

To import what a server needs takes a second, so one process does it, and forks each server.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

from pravega_spark import StreamManager
from pravega_spark.serve.serve_options import ConnectionLimits, ServeOptions
from pravega_spark.serve.web_app import create_app
from pravega_spark.serve.web_server import serve


@dataclass(frozen=True)
class LimitedServer:
    """A server process."""

    pid: int
    port: int
    log: IO[str]
    output: IO[str]
    """It ends with the process."""

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
        folder = Path(f"/proc/{self.pid}/fd")
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
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def said(self) -> str:
        """Return its log so far; its place in it, which the process shares, stays."""
        return os.pread(self.log.fileno(), 1 << 20, 0).decode()

    def begin_to_end(self) -> None:
        """Send it SIGTERM, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def end(self) -> str:
        """End it by SIGTERM; return its log."""
        self.begin_to_end()
        ended, _, _ = select.select([self.output], [], [], 60)
        assert ended, "the server does not end"
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
    with tempfile.TemporaryDirectory() as folder:
        log, output = Path(folder, "log"), Path(folder, "output")
        log.touch()
        os.mkfifo(output)
        factory = _factory()
        assert factory.stdin is not None
        print(
            json.dumps([str(output), str(log), files, free_files, payload, limits]),
            file=factory.stdin,
            flush=True,
        )
        with output.open() as told, log.open() as said:
            pid, port = map(int, told.readline().split())
            try:
                yield LimitedServer(pid, port, said, told)
            finally:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@cache
def _factory() -> subprocess.Popen[str]:
    """Start the process that forks a server for each line that it reads."""
    command = [sys.executable, "-m", "tests.harness.limited_server"]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    atexit.register(started.communicate)
    return started


def fork_servers() -> list[Any] | None:
    """Return in each forked process what it is given; return None at the end of the input."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for their status
    gc.freeze()
    for line in sys.stdin:
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            given: list[Any] = json.loads(line)
            for number, path in enumerate((os.devnull, *given[:2])):
                os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY), number)
            os.closerange(3, 32)
            return given[2:]
    return None


def main() -> None:
    """Serve; print the process and its port once it listens."""
    create_app(StreamManager("memory://warm"), ServeOptions())
    given = fork_servers()
    if given is None:
        return
    files, free_files, payload, limits = given
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
        print(os.getpid(), url.rstrip("/").rpartition(":")[2], flush=True)

    serve(manager, options, version="1", on_start=on_start)


if __name__ == "__main__":
    main()
