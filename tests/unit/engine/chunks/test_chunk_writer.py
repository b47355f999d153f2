"""A chunk that is written batch by batch is the chunk that would be staged at once."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks import encoder
from pravega_spark.engine.chunks import writer as chunk_writer
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, StagedChunk, encode_events
from pravega_spark.engine.chunks.writer import ChunkWriter
from pravega_spark.engine.store.file_objects import ObjectSink
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import EventTooLarge, InvalidInput, StoreFull
from pravega_spark.values.limits import MAX_EVENT_BYTES
from pravega_spark.values.segments import make_segment_id
from tests.harness.spy_store import Spy

TABLE, FOLDER = "scope/stream/events", "v7"
SEGMENT = make_segment_id(3, 1)
NOW_US = 1_700_000_000_123_456


def row_groups_of(events: int, size: int = 1 << 30) -> Any:
    """Patch the limits of a row group."""
    patches = ExitStack()
    for module in (encoder, chunk_writer):
        limits: dict[str, Any] = {"ROW_GROUP_EVENTS": events, "ROW_GROUP_BYTES": size}
        patches.enter_context(patch.multiple(module, **limits))
    return patches


def table_of(sizes: list[int], start_us: int = NOW_US) -> pa.Table:
    keys = [f"key-{i % 3}" if i % 4 else None for i in range(len(sizes))]
    times = [start_us + 7 * i for i in range(len(sizes))]
    return encode_events(keys, times, [bytes([i % 256]) * size for i, size in enumerate(sizes)])


def writer_of(store: Any, name: str = "x-0") -> ChunkWriter:
    return ChunkWriter(store, TABLE, FOLDER, SEGMENT, name=name, compression="none")


def written(store: Any, batches: list[Any]) -> StagedChunk:
    with writer_of(store) as writer:
        for batch in batches:
            writer.write(batch)
        return writer.close()


@pytest.mark.medium
@given(st.lists(st.integers(0, 30), min_size=1, max_size=60), st.data())
def test_any_batches_make_the_file_that_is_staged_at_once(
    sizes: list[int], data: st.DataObject
) -> None:
    table = table_of(sizes)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sizes)), max_size=5)))
    bounds = [0, *cuts, len(sizes)]
    parts = [table.slice(a, b - a) for a, b in pairwise(bounds)]
    in_parts, at_once = MemoryStore(), MemoryStore()
    with row_groups_of(data.draw(st.integers(1, 20)), data.draw(st.integers(1, 200))):
        one = written(in_parts, parts)
        (other,) = chunk_writer.stage(
            at_once, TABLE, FOLDER, SEGMENT, table, name="x", compression="none"
        )
    assert one == other
    assert in_parts.get(f"{TABLE}/{one.path}") == at_once.get(f"{TABLE}/{other.path}")


def test_empty_event_joins_a_row_group_whose_bytes_are_just_full() -> None:
    table, store = table_of([1, 2, 0]), MemoryStore()
    with row_groups_of(20, 2):
        staged = written(store, [table.slice(0, 2), table.slice(2)])
    file = pq.ParquetFile(store.open(f"{TABLE}/{staged.path}"))
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [1, 2]


def test_deltas_run_on_over_row_groups_and_record_batches_are_taken() -> None:
    store = MemoryStore()
    table = table_of([3] * 25)
    with row_groups_of(10):
        staged = written(store, table.to_batches(max_chunksize=4))
    file = pq.ParquetFile(store.open(f"{TABLE}/{staged.path}"))
    groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert groups == [10, 10, 5]
    assert file.read()["offset_delta"].to_pylist() == list(range(25))
    assert file.read().select(EVENT_SCHEMA.names).equals(table)


def test_full_row_groups_are_written_before_the_end() -> None:
    store = Spy()
    with row_groups_of(10), writer_of(store) as writer:
        sizes = []
        for _ in range(5):
            writer.write(table_of([100] * 10))
            writer._finish_row_group()
            sizes.append(writer._file.size)
        assert np.all(np.diff(sizes) > 1_000)
        writer.close()
    assert store.calls == [("writer", f"{TABLE}/data/v7/x-0.parquet")]


class Waiting(MemoryStore):
    """A store whose files take bytes only when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.may_write.set()

    @contextmanager
    def writer(self, key: str) -> Iterator[pa.NativeFile]:
        def write(data: Any) -> None:
            assert self.may_write.wait(30)
            file.write(data)

        with super().writer(key) as file:
            yield ObjectSink(write, lambda error: error).as_arrow()


def test_a_row_group_is_written_while_the_next_one_is_collected() -> None:
    store = Waiting()
    with row_groups_of(10), writer_of(store) as writer:
        store.may_write.clear()
        writer.write(table_of([100] * 10))
        writer.write(table_of([100] * 9))
        assert writer._encoded is not None
        assert not writer._encoded.done()
        store.may_write.set()
        staged = writer.close()
    assert staged.rows == 19
    read = pq.read_table(store.open(f"{TABLE}/{staged.path}"))
    assert read["offset_delta"].to_pylist() == list(range(19))


def test_an_error_in_the_background_is_raised_and_leaves_nothing() -> None:
    store = MemoryStore()
    with patch.object(encoder, "MAX_ROWS", 15), row_groups_of(10):
        batches = [table_of([1] * 10)] * 2
        with pytest.raises(InvalidInput, match="a chunk of 20 events cannot be written"):
            written(store, batches)
    assert store.list("") == []


def test_without_a_close_nothing_is_left(tmp_path: Any) -> None:
    for store in (MemoryStore(), LocalStore(str(tmp_path / "root"))):
        with row_groups_of(5), writer_of(store) as writer:
            writer.write(table_of([10] * 12))
        with row_groups_of(5), pytest.raises(InvalidInput, match="It needs the columns"):
            written(store, [table_of([10] * 12), pa.table({"event": [b"x"]})])
        with pytest.raises(InvalidInput, match=r"x-0\.parquet has no event"):
            written(store, [table_of([])])
        assert store.list("") == []
        assert store.discard_unfinished("", -60_000) == []


def test_refused_events_leave_nothing() -> None:
    store = MemoryStore()
    with pytest.raises(EventTooLarge, match="event 1 of 2 has 8388609 bytes"):
        written(store, [table_of([5]), table_of([1, MAX_EVENT_BYTES + 1])])
    with pytest.raises(InvalidInput, match="It needs the columns"):
        written(store, [table_of([5]), pa.table({"event": [b"x"]})])
    with (
        patch.object(encoder, "MAX_ROWS", 7),
        row_groups_of(2),
        pytest.raises(InvalidInput, match="a chunk of 8 events cannot be written: at most 7"),
    ):
        written(store, [table_of([1] * 9)])
    assert store.list("") == []


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_full_disk_is_the_stores_error_and_leaves_nothing(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = LocalStore(str(tmp_path / "root"))
    monkeypatch.setattr(os, call, fail)
    with row_groups_of(5), pytest.raises(StoreFull, match=r"x-0\.parquet: No space left"):
        written(store, [table_of([10] * 12)])
    assert [name for _, _, names in os.walk(tmp_path) for name in names] == []


def test_memory_is_bounded_by_a_row_group_and_not_by_the_file(tmp_path: Any) -> None:
    store = LocalStore(str(tmp_path))
    batch = table_of([1_000] * 500)
    with row_groups_of(1_000), writer_of(store) as writer:
        writer.write(batch)
        before, most = pa.total_allocated_bytes(), 0
        for _ in range(100):
            writer.write(batch)
            most = max(most, pa.total_allocated_bytes() - before)
        staged = writer.close()
    assert staged.size > 50_000_000
    assert most < 4_000_000
