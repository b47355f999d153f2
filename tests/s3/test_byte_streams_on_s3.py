"""Byte streams on a real S3 server: write, read, seek, truncate, resume, and their calls."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.errors import SegmentTruncated
from pravega_spark.manager import manager_over, root_of
from pravega_spark.values.limits import BLOCK_BYTES
from tests.harness.s3_server import S3Server
from tests.harness.spy_store import Spy

pytestmark = pytest.mark.s3
STREAM = "s/bytes"
DATA = np.arange((5 * BLOCK_BYTES + 16) // 8, dtype=">u8").tobytes()
_roots = itertools.count()


@pytest.fixture
def manager(s3: S3Server) -> StreamManager:
    root = f"s3://{s3.bucket}/bytes-{next(_roots)}"
    manager = StreamManager(root, storage_options=s3.options)
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(1)))
    return manager


def test_an_upload_continues_and_its_bytes_are_read_sought_and_truncated(
    s3: S3Server, manager: StreamManager
) -> None:
    half = len(DATA) // 2 + 3
    with manager.create_byte_writer(STREAM, "upload") as writer:
        writer.write(DATA[:half])
    other = StreamManager(root_of(manager).store.url, storage_options=s3.options)
    with other.create_byte_writer(STREAM, "upload") as writer:
        assert writer.acknowledged_bytes == half
        writer.write(DATA[half:])
        assert writer.tell() == len(DATA)
    with manager.create_byte_reader(STREAM, follow=False) as reader:
        assert reader.read() == DATA
        for at in (half - 5, 3, len(DATA) - 9, 4 * BLOCK_BYTES - 1):
            reader.seek(at)
            assert reader.read(10) == DATA[at : at + 10]
    head = 2 * BLOCK_BYTES + 7
    with other.create_byte_writer(STREAM) as writer:
        writer.truncate_before(head)
        assert writer.close_and_seal()
    with manager.create_byte_reader(STREAM) as reader:
        assert reader.tell() == head
        assert reader.read() == DATA[head:]
        assert reader.read() == b""
        reader.seek(head - 1)
        with pytest.raises(SegmentTruncated) as raised:
            reader.read(1)
        assert raised.value.head_offset == head


def test_a_flush_costs_two_calls_and_a_read_few(s3: S3Server, manager: StreamManager) -> None:
    spy = Spy(root_of(manager).store)
    manager = manager_over(spy)

    def made(since: int) -> list[tuple[str, str]]:
        return [call for call in spy.calls[since:] if STREAM in call[1]]

    with manager.create_byte_writer(STREAM) as writer:
        writer.write(DATA[:100])
        writer.flush()
        before = len(spy.calls)
        writer.write(DATA[100:200])
        writer.flush()
        calls = made(before)
    # The chunk and the commit; a writer of events makes the same.
    assert sorted(name for name, _ in calls) == ["put", "put_if_absent"], calls
    reads = manager_over(spy)
    with reads.create_byte_reader(STREAM, follow=False) as reader:
        before = len(spy.calls)
        assert reader.read() == DATA[:200]
        calls = made(before)
        chunks = [key for _, key in calls if "/data/" in key]
        assert len(chunks) == len(set(chunks)) == 2  # of each flush, and fetched together
        assert len(calls) - len(chunks) <= 5, calls  # the log, once
        before = len(spy.calls)
        reader.seek(150)
        assert reader.read(10) == DATA[150:160]
        assert made(before) == []  # the window in memory has it
