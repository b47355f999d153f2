"""A bucket of a real S3 server whose responses take 30 ms longer, as those of object stores do."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.latency_proxy import SlowEndpoint, start_latency_proxy

CALL_SECONDS = 0.030
"""What the proxy adds to each call."""
_BUCKET = "streams"
_KEYS = ("testing", "testing-secret")
_START_SECONDS = 30.0


@dataclass(frozen=True)
class DistantBucket:
    """The root URL, storage options for the slow and the near endpoint, and the server's name."""

    root: str
    options: dict[str, Any]
    near: dict[str, Any]
    server: str
    endpoint: SlowEndpoint


@contextlib.contextmanager
def start_distant_bucket(delay_seconds: float = CALL_SECONDS) -> Iterator[DistantBucket]:
    """Start versitygw if it is installed, else SeaweedFS, with the proxy in front of it.

    Raises FileNotFoundError if neither is installed.
    """
    with (
        _start_server() as (server, endpoint_url, keys),
        start_latency_proxy(endpoint_url, delay_seconds) as endpoint,
    ):
        options = dict(zip(("key", "secret"), keys, strict=True))
        near = options | {"endpoint_url": endpoint_url}
        options["endpoint_url"] = endpoint.endpoint_url
        yield DistantBucket(f"s3://{_BUCKET}/bench", options, near, server, endpoint)


@contextlib.contextmanager
def _start_server() -> Iterator[tuple[str, str, tuple[str, str]]]:
    program = shutil.which("versitygw") or shutil.which("versitygw", path=Path.home() / "go/bin")
    if program is None:
        from tests.harness.s3_server import start_s3

        with start_s3(_BUCKET) as server:
            yield "SeaweedFS", server.endpoint_url, (server.key, server.secret)
        return
    folder = Path(tempfile.mkdtemp(prefix="versitygw-"))
    (folder / _BUCKET).mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    access, secret = _KEYS
    command = [program, "--port", f"127.0.0.1:{port}", "--access", access, "--secret", secret]
    command += ["--keep-alive", "--quiet", "posix", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for(process, port)
        yield "versitygw", f"http://127.0.0.1:{port}", _KEYS
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise RuntimeError("versitygw did not start")
