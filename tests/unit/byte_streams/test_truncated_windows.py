"""A reader of bytes whose window the head passes goes on with what it may still read."""

from __future__ import annotations

from pathlib import Path

import pytest

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
