"""A merge overlaps reading and writing, and its memory does not grow with the range."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from pravega_spark.compaction.merge import MERGED_BY_OTHERS, commit_merged, merge_range
from pravega_spark.compaction.plan import CompactionOptions, plan_compaction
from pravega_spark.compaction.run import run_compaction
from pravega_spark.engine.chunks import encoder, reader, writer
from pravega_spark.engine.chunks.encoder import ChunkEncoder
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.values.limits import READ_AHEAD_PARTS
from tests.harness.fake_runtime import SkippingRuntime
from tests.harness.small_streams import make_stream, write

OPTIONS = CompactionOptions(root={})


def peak_of_merge(chunks: int) -> int:
    """Return the most bytes of Arrow's memory while so many chunks of 100 KB are merged."""
    runtime = SkippingRuntime()
    stream = make_stream(MemoryStore(), runtime)
    for n in range(chunks):
        write(stream, [("k", b"%08d" % n * 125)] * 100)
    runtime.skip(100)
    (rng,) = plan_compaction(stream, OPTIONS)
    before, most = pa.total_allocated_bytes(), 0
    encode = ChunkEncoder.write

    def measured(self: Any, *args: Any) -> None:
        nonlocal most
        encode(self, *args)
        most = max(most, pa.total_allocated_bytes() - before)

    with patch.object(ChunkEncoder, "write", measured):
        merged = merge_range(stream, rng)
    assert merged.chunk is not None
    assert merged.chunk.rows == 100 * chunks
    return most


@pytest.mark.slow
def test_memory_is_bounded_by_row_groups_and_not_by_the_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (encoder, writer, reader):
        monkeypatch.setattr(module, "ROW_GROUP_BYTES", 1_000_000)
    monkeypatch.setattr(reader, "READ_AHEAD_BYTES", 250_000)
    peaks = [peak_of_merge(chunks) for chunks in (60, 240)]
    assert peaks[0] > 500_000
    assert peaks[1] < 6_000_000


class Counted(MemoryStore):
    """A store that counts the reads of chunks that were begun."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.changed = threading.Condition()

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        with self.changed:
            self.reads += 1
            self.changed.notify_all()
        return super().get_many(keys)


def test_inputs_are_read_ahead_while_a_row_group_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime, store = SkippingRuntime(), Counted()
    stream = make_stream(store, runtime)
    for n in range(40):
        write(stream, [("k", b"%d" % n)])
    runtime.skip(100)
    (rng,) = plan_compaction(stream, OPTIONS)
    for module in (encoder, writer):
        monkeypatch.setattr(module, "ROW_GROUP_EVENTS", 2)
    monkeypatch.setattr(reader, "READ_AHEAD_BYTES", 1)  # a read for each chunk
    encode = ChunkEncoder.write
    # Those of the first row group, of the next one, which is complete, and of the one after it.
    expected = 2 + 2 + READ_AHEAD_PARTS - 1

    def waiting(self: Any, *args: Any) -> None:
        with store.changed:
            assert store.changed.wait_for(lambda: store.reads >= expected, 30)
        encode(self, *args)

    store.reads = 0
    monkeypatch.setattr(ChunkEncoder, "write", waiting)
    merged = merge_range(stream, rng)
    assert merged.chunk is not None
    assert merged.chunk.rows == 40


def test_a_range_that_another_process_has_merged_is_not_written_again() -> None:
    runtime = SkippingRuntime()
    stream = make_stream(MemoryStore(), runtime)
    for n in range(20):
        write(stream, [("k", b"%d" % n)])
    runtime.skip(100)
    (rng,) = plan_compaction(stream, OPTIONS)
    run_compaction(stream, OPTIONS)
    assert merge_range(stream, rng).chunk is None


def test_a_range_in_whose_first_chunk_another_process_merged_events_before_it_is_left() -> None:
    runtime = SkippingRuntime()
    stream = make_stream(MemoryStore(), runtime)
    for n in range(20):
        write(stream, [("k", b"%d" % n)])
    runtime.skip(100)
    (whole,) = plan_compaction(stream, OPTIONS)
    commit_merged(stream, [merge_range(stream, replace(whole, end=15))])
    found = merge_range(stream, replace(whole, start=10))
    assert (found.chunk, found.reason) == (None, MERGED_BY_OTHERS)
