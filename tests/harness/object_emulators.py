"""Emulators of Google Cloud Storage and Azure Blob Storage on loopback, where they are installed.

They need the drivers, ``pip install 'pravega-spark[gcs,azure]'``, and the programs,
``go install github.com/fsouza/fake-gcs-server@latest`` and ``npm install --global azurite``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKET = "streams"
_START_SECONDS = 60.0
_AZURE_ACCOUNT = "devstoreaccount1"
_AZURE_KEY = (  # the one that Microsoft publishes for its emulators
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_roots = itertools.count(1)


@dataclass(frozen=True)
class Emulator:
    """An emulator's scheme, and the storage options with which its driver finds it."""

    scheme: str
    options: dict[str, Any]

    def new_root(self) -> str:
        """Return a URL that no other test uses."""
        return f"{self.scheme}://{BUCKET}/root-{next(_roots)}"


def has_gcs() -> bool:
    """Return whether the emulator of Google's storage and its driver are installed."""
    return _program("fake-gcs-server") is not None and _has_module("gcsfs")


def has_azure() -> bool:
    """Return whether the emulator of Azure's storage and its driver are installed."""
    return _program("azurite-blob") is not None and _has_module("adlfs")


@contextlib.contextmanager
def start_gcs() -> Iterator[Emulator]:
    """Start fake-gcs-server with one empty bucket, in memory."""
    # Its newer protocol, gRPC, is not emulated: a driver that is loaded without this tries for a
    # minute.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import gcsfs

    port = _free_port()
    address = f"127.0.0.1:{port}"
    command = [_program("fake-gcs-server") or "", "-backend", "memory", "-scheme", "http"]
    command += ["-host", "127.0.0.1", "-port", str(port), "-public-host", address]
    command += ["-external-url", f"http://{address}", "-log-level", "error"]
    with _running(command, port):
        options = {"endpoint_url": f"http://{address}", "token": "anon", "project": "test"}
        gcsfs.GCSFileSystem(**options, skip_instance_cache=True).mkdir(BUCKET)
        yield Emulator("gs", options)


@contextlib.contextmanager
def start_azure() -> Iterator[Emulator]:
    """Start Azurite with one empty container, in memory."""
    import adlfs

    port = _free_port()
    command = [_program("azurite-blob") or "", "--inMemoryPersistence", "--silent"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--skipApiVersionCheck", "--disableTelemetry"]
    with _running(command, port):
        endpoint = f"http://127.0.0.1:{port}/{_AZURE_ACCOUNT}"
        parts = {"DefaultEndpointsProtocol": "http", "AccountName": _AZURE_ACCOUNT}
        parts |= {"AccountKey": _AZURE_KEY, "BlobEndpoint": endpoint}
        options = {"connection_string": ";".join(f"{k}={v}" for k, v in parts.items())}
        adlfs.AzureBlobFileSystem(**options, skip_instance_cache=True).mkdir(BUCKET)
        yield Emulator("abfs", options)


@contextlib.contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    folder = Path(tempfile.mkdtemp(prefix="emulator-"))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if process.poll() is not None or time.monotonic() > deadline:
                said = (folder / "log").read_text(errors="replace")
                raise RuntimeError(f"{command[0]} did not start:\n{said[-4_000:]}")
            time.sleep(0.05)
        yield
    finally:
        process.kill()  # its data is in memory
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=Path.home() / "go" / "bin")


def _has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
