"""A reader of bytes whose window the head passes goes on with what it may still read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark.byte_streams.byte_positions import ByteSegment
from pravega_spark.byte_streams.byte_windows import ByteWindows
from pravega_spark.engine.stream.open_streams import open_stream
from pravega_spark.errors import SegmentTruncated
from pravega_spark.manager import StreamManager
from pravega_spark.policies import ScalingPolicy, StreamConfiguration
from tests.harness.truncating import truncate

S = "s/b"


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
    truncate(open_stream(manager._store, S), {0: 4})
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
    stream = open_stream(manager._store, S)
    segment = ByteSegment(stream)
    before = segment.view()
    truncate(stream, {0: 20})
    segment.view()
    assert bytes(ByteWindows(segment).at(before, at)[:1]) == data[at : at + 1]
    with pytest.raises(SegmentTruncated, match=r"byte 10 .* byte 20"):
        ByteWindows(segment).at(before, 10)
