"""A write of bytes that does not end normally: nothing that was accepted before it is missing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pravega_spark.byte_streams.writer import ByteStreamWriter
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.manager import StreamManager
from pravega_spark.values.limits import BLOCK_BYTES
from tests.harness.failpoints import held_at

S = "s/bytes"
HALF = BLOCK_BYTES // 2


@pytest.fixture
def manager(tmp_path: Path) -> StreamManager:
    made = StreamManager(tmp_path / "root")
    made.create_scope("s")
    made.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    return made


@contextmanager
def half_a_block_held(
    manager: StreamManager,
) -> Iterator[tuple[ByteStreamWriter, threading.Event]]:
    """Yield a writer with little room, one commit under way until the event, and half a block."""
    writer = manager.create_byte_writer(S, "upload")
    queue = writer._queue
    queue._buffer_bytes = queue.limit_bytes = BLOCK_BYTES
    with held_at("commit.before") as released:
        writer.write(b"first")
        writer.write(b"b" * HALF)
        yield writer, released


def content(manager: StreamManager) -> bytes:
    with manager.create_byte_reader(S, follow=False) as reader:
        return bytes(reader.read())


def interrupted(_: int) -> bool:
    raise KeyboardInterrupt


def test_interrupt_of_a_write_that_waits_for_room_loses_nothing_that_was_accepted(
    manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    with half_a_block_held(manager) as (writer, released):
        with monkeypatch.context() as patch:
            patch.setattr(writer._queue, "is_full", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.write(b"c" * BLOCK_BYTES)  # as Ctrl-C does
        released.set()
        writer.write(b"last")
        writer.flush()
        expected = b"first" + b"b" * HALF + b"c" * HALF + b"last"
        assert content(manager) == expected
        assert writer.tell() == writer.acknowledged_bytes == len(expected)
        writer.close()
