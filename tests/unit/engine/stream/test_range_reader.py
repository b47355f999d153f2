from __future__ import annotations

import pytest

from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.stream import range_reader
from pravega_spark.engine.stream.range_reader import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.model import SegmentRange
from tests.harness.engine import again, make_stream, write


def counted(stream: StreamLog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    real = stream.chunks

    def chunks(rng: SegmentRange) -> list[ChunkRef]:
        refs = real(rng)
        found.append(len(refs))
        return refs

    monkeypatch.setattr(stream, "chunks", chunks)
    return found


@pytest.mark.parametrize("count", [40, 400])
def test_first_event_of_a_segment_needs_as_few_chunks_however_many_there_are(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_reader, "_FIRST_PAGE", 10)
    monkeypatch.setattr(range_reader, "_PAGE_CHUNKS", 20)
    stream = make_stream()
    for n in range(count):
        write(stream, [("k", b"%d" % n)])
    stream = again(stream)
    rng = SegmentRange(stream.name, 1, 0, 3, count)
    found = counted(stream, monkeypatch)
    batches = read_range(stream, rng)
    first = next(batches)
    assert found == [10]
    rest = [event for batch in batches for event in batch.column("event").to_pylist()]
    events = first.column("event").to_pylist() + rest
    assert events == [b"%d" % n for n in range(3, count)]
    assert max(found) <= 40
    assert sum(found) == count - 3
