"""Large events on a real S3 server: parts, memory, calls, damage, and sweeps."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from pravega_spark import StreamManager
from pravega_spark.errors import CorruptChunk, DataLoss
from pravega_spark.manager import root_of
from tests.harness.large_streams import objects
from tests.harness.s3_server import S3Server

pytestmark = pytest.mark.s3
STREAM = "s/t"
SIZE = (40 << 20) + 17
_roots = itertools.count()


def payload() -> bytes:
    """Return bytes of which no two blocks are equal."""
    return b"".join(n.to_bytes(8, "big") for n in range(-(-SIZE // 8)))[:SIZE]


@pytest.fixture
def manager(s3: S3Server) -> StreamManager:
    root = f"s3://{s3.bucket}/large-{next(_roots)}"
    manager = StreamManager(root, storage_options=s3.options)
    manager.create_scope("s")
    manager.create_stream(STREAM)
    return manager


def test_a_payload_is_sent_in_parts_and_read_in_windows(manager: StreamManager) -> None:
    data = payload()

    def pieces() -> Iterator[memoryview]:
        for at in range(0, SIZE, 700_000):
            yield memoryview(data)[at : at + 700_000]

    with manager.create_writer(STREAM, large_events=True) as writer:
        writer.write_event(b"before", "k")
        writer.write_event(pieces(), "k")
        writer.write_event(b"after", "k")
    first, large, last = manager.read(STREAM)
    assert (first.data, large.data == data, last.data) == (b"before", True, b"after")
    with large.open() as file:
        for at in (0, 9 << 20, SIZE - 5, 4 << 20):
            file.seek(at)
            assert file.read(10) == data[at : at + 10]
        file.seek(0)
        read = bytearray()
        while part := file.read(1_000_003):
            read += part
        assert read == data


def test_damage_and_loss_are_found(manager: StreamManager) -> None:
    data = payload()
    with manager.create_writer(STREAM, large_events=True) as writer:
        writer.write_event(data, "k")
    (key,) = objects(root_of(manager).store, STREAM)
    root_of(manager).store.put(key, data[: 30 << 20] + b"x" + data[(30 << 20) + 1 :])
    (event,) = manager.read(STREAM)
    with event.open() as file:
        assert file.read(8 << 20) == data[: 8 << 20]
        with pytest.raises(CorruptChunk, match="other bytes"):
            file.read()
    root_of(manager).store.put(key, data[:-1])
    (event,) = manager.read(STREAM)
    with pytest.raises(CorruptChunk, match=f"the log records {SIZE}"):
        event.data  # noqa: B018
    root_of(manager).store.delete([key])
    (event,) = manager.read(STREAM)
    with pytest.raises(DataLoss, match="does not exist"):
        event.data  # noqa: B018


def test_a_source_that_fails_leaves_no_upload(manager: StreamManager) -> None:
    def fails() -> Iterator[bytes]:
        yield bytes(36 << 20)
        raise KeyError("of the caller")

    with manager.create_writer(STREAM, large_events=True) as writer:
        with pytest.raises(KeyError):
            writer.write_event(fails(), "k")
        writer.write_event(b"still usable", "k").result()
    assert objects(root_of(manager).store, STREAM) == set()
    assert root_of(manager).store.discard_unfinished(f"{STREAM}/events", -1_000_000) == []


@pytest.mark.slow
def test_memory_stays_bounded(s3: S3Server, manager: StreamManager) -> None:
    """Writing and reading 256 MiB takes little more than 1 MiB does."""
    script = textwrap.dedent("""
        import json, sys
        from pravega_spark import StreamManager
        root, options, size = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
        manager = StreamManager(root, storage_options=options)
        piece = bytes(1 << 20)
        with manager.create_writer("s/t", large_events=True) as writer:
            pointer = writer.write_event((piece for _ in range(size >> 20)), "k").result()
        with manager.fetch_event(pointer).open() as file:
            read = 0
            while part := file.read(1 << 20):
                read += len(part)
        assert read == size
        with open("/proc/self/status") as status:  # getrusage would start at the parent's peak
            (peak,) = (int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        print(peak // 1024)
    """)

    def peak_mib(size: int) -> int:
        arguments = [root_of(manager).store.url, json.dumps(s3.options), str(size)]
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, env=os.environ, check=True, stdout=subprocess.PIPE)
        return int(done.stdout)

    base = peak_mib(1 << 20)
    more = peak_mib(256 << 20) - base
    assert more <= 128, "four parts of 8 MiB are under way, and threads' heaps keep as much again"
