"""A reader of bytes whose window the head passes goes on with what it may still read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.byte_streams import writer as byte_stream_writer
from pravega_spark.byte_streams.positions import ByteSegment
from pravega_spark.byte_streams.reader import ByteWindows
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store.open_objects import OpenObjects
from pravega_spark.engine.stream import stream_log
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.errors import SegmentTruncated
from pravega_spark.manager import StreamManager, root_of
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.reading_world import Process
from tests.harness.truncating import truncate

S = "s/b"


def test_all_users_of_a_stream_know_its_head_however_many_streams_a_process_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_log, "_open", OpenObjects(StreamLog, lambda stream: 1, 2))
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    for name in (S, "s/1", "s/2", "s/3"):
        manager.create_stream(name, StreamConfiguration(ScalingPolicy.fixed(1)))
    with manager.create_byte_writer(S) as writer:
        writer.write(bytes(range(100)))
    reader = manager.create_byte_reader(S)
    assert reader.read(1) == b"\0"
    for name in ("s/1", "s/2", "s/3"):
        manager.tail(name)
    with manager.create_byte_writer(S) as writer:
        writer.truncate_before(50)
    with pytest.raises(SegmentTruncated, match=r"byte 1 .* byte 50"):
        reader.read(1)


def of_blocks(monkeypatch: pytest.MonkeyPatch) -> tuple[StreamManager, StreamManager, bytes]:
    """Return two processes, and the 100 bytes of a stream: one chunk of ten blocks."""
    monkeypatch.setattr(byte_stream_writer, "BLOCK_BYTES", 10)
    clock = FakeRuntime()
    store = memory(clock)
    near, far = Process(clock, store), Process(clock, store)
    near.create_scope("s")
    near.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    data = bytes(range(100))
    with near.create_writer(S) as writer:
        writer.write_events([data[at : at + 10] for at in range(0, 100, 10)], routing_key="k")
    return near, far, data


def truncate_and_sweep(process: StreamManager, at: int) -> None:
    """Truncate, write the chunk of the head again without what is below it, and delete the old."""
    with process.create_byte_writer(S) as writer:
        writer.truncate_before(at)
    root_of(process).runtime.sleep(10)
    assert process.compact_stream(S, head_after="1 s", include_newest=True).heads == 1
    root_of(process).runtime.sleep(10)
    process.sweep_stream(S, grace="1 s", retain="1 s")


@pytest.mark.parametrize("at", [40, 44, 49, 50, 99])
def test_a_chunk_that_another_process_wrote_again_from_the_head_on_is_found_again(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    near, far, data = of_blocks(monkeypatch)
    reader = near.create_byte_reader(S, timeout=0)
    truncate_and_sweep(far, 44)
    reader.seek(at)
    if at < 44:
        with pytest.raises(SegmentTruncated, match=r"byte 40 .* byte 44") as info:
            reader.read(1)
        assert (info.value.head_offset, reader.tell()) == (44, at)
        reader.seek(44)
    assert reader.read(1) == data[reader.tell() - 1 : reader.tell()]
    assert reader.read(100) == (data[max(at, 44) + 1 :] or None)


@pytest.mark.parametrize("at", [40, 55])
def test_bytes_after_the_head_are_read_though_the_window_began_below_it(
    tmp_path: Path, at: int
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    data = bytes(range(100))
    for start in range(0, 100, 10):
        with manager.create_byte_writer(S) as writer:
            writer.write(data[start : start + 10])
    reader = StreamManager(tmp_path).create_byte_reader(S)
    assert reader.read(3) == data[:3]
    truncate(open_stream(root_of(manager).store, S), {0: 4})
    reader.seek(at)
    assert reader.read(100) == data[at:]
    reader.seek(20)
    with pytest.raises(SegmentTruncated, match=r"byte 20 .* byte 40"):
        reader.read(1)


@pytest.mark.parametrize("at", [20, 21, 35])
def test_a_search_by_size_that_looks_below_a_new_head_goes_on_above_it(
    tmp_path: Path, at: int
) -> None:
    """Short events before long ones: the first guess lies far before the byte."""
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream(S, StreamConfiguration(ScalingPolicy.fixed(1)))
    data = bytes(range(240))
    ends = [*range(1, 21), *range(30, 100, 10), 240]
    for start, end in zip([0, *ends], ends, strict=False):
        with manager.create_byte_writer(S) as writer:
            writer.write(data[start:end])
    stream = open_stream(root_of(manager).store, S)
    segment = ByteSegment(stream)
    before = segment.view()
    truncate(stream, {0: 20})
    segment.view()
    assert bytes(ByteWindows(segment).at(before, at)[:1]) == data[at : at + 1]
    with pytest.raises(SegmentTruncated, match=r"byte 10 .* byte 20"):
        ByteWindows(segment).at(before, 10)
