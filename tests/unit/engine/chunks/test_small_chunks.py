"""Small chunks that are read together are read as each of them alone, and no damage is missed."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks import reader, writer
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, FILE_SCHEMA, ChunkRef, encode_events
from pravega_spark.engine.chunks.footer import digest_of
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CorruptChunk, DataLoss
from pravega_spark.values.limits import MAX_EVENT_BYTES, READ_AHEAD_PARTS
from pravega_spark.values.segments import SegmentRange, make_segment_id

TABLE, FOLDER = "scope/stream/events", "v7"
SEGMENT = make_segment_id(3, 1)
NOW_US = 1_700_000_000_123_456


def range_of(start: int, end: int) -> SegmentRange:
    return SegmentRange("scope/stream", 1, SEGMENT, start, end)


def staged(store: MemoryStore, sizes: Sequence[int], base: int = 40) -> list[ChunkRef]:
    """Store a chunk of so many events for each size, one after the other."""
    refs: list[ChunkRef] = []
    for n, rows in enumerate(sizes):
        numbers = range(base, base + rows)
        table = encode_events(
            [f"k{i % 3}" if i % 4 else None for i in numbers],
            [NOW_US + 7 * i for i in numbers],
            [b"%d" % i * (i % 3) for i in numbers],
        )
        (one,) = writer.stage(store, TABLE, FOLDER, SEGMENT, table, name=f"n{n}")
        refs.append(
            ChunkRef(
                one.path, SEGMENT, base, rows, one.size, one.event_bytes, 0,
                one.min_timestamp_us, one.max_timestamp_us, one.footer,
            )
        )  # fmt: skip
        base += rows
    return refs


def rows_of(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def alone(store: MemoryStore, refs: Sequence[ChunkRef], **options: Any) -> list[dict[str, Any]]:
    """Return the events as each chunk's own read returns them."""
    return [
        row
        for ref in refs
        for row in rows_of(reader.read(store, TABLE, ref, ref.base_offset, ref.end, **options))
    ]


def together(store: MemoryStore, refs: Sequence[ChunkRef], **options: Any) -> list[dict[str, Any]]:
    rng = range_of(refs[0].base_offset, refs[-1].end)
    return rows_of(reader.read_range(store, TABLE, refs, rng, **options))


def opened_alone(action: Callable[[], object]) -> int:
    """Return how many row groups of single chunks were read."""
    calls: list[int] = []
    original = pq.ParquetFile.iter_batches

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(self, *args, **kwargs)

    with patch.object(pq.ParquetFile, "iter_batches", spy):
        action()
    return len(calls)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.data())
def test_any_columns_of_any_range_are_those_of_the_single_chunks(
    sizes: list[int], data: st.DataObject
) -> None:
    store = MemoryStore()
    refs = staged(store, sizes)
    start = data.draw(st.integers(40, refs[-1].end))
    end = data.draw(st.integers(start, refs[-1].end))
    columns = data.draw(st.permutations(reader.BATCH_COLUMNS))[: data.draw(st.integers(1, 4))]
    rows = alone(store, refs, columns=columns)[start - 40 : end - 40]
    options: dict[str, Any] = {"columns": columns, "batch_rows": data.draw(st.integers(1, 100))}
    found = list(reader.read_range(store, TABLE, refs, range_of(start, end), **options))
    assert rows_of(found) == rows
    assert all(batch.schema.names == list(columns) for batch in found)
    ahead = reader.read_ahead(SYSTEM, store, TABLE, refs, range_of(start, end), columns=columns)
    assert rows_of(ahead) == rows


def test_only_chunks_that_reach_out_of_the_range_are_opened_alone() -> None:
    store = MemoryStore()
    refs = staged(store, [25] * 10)
    assert opened_alone(lambda: together(store, refs)) == 0
    rng = range_of(42, 288)
    assert opened_alone(lambda: rows_of(reader.read_range(store, TABLE, refs, rng))) == 10
    assert opened_alone(lambda: together(store, [*refs[:4], replace(refs[4], footer="")])) == 1


@pytest.mark.parametrize(("mask", "rows_each"), [(0x01, 4), (0xFF, 4), (0x01, 20), (0xFF, 20)])
def test_no_damaged_byte_of_any_chunk_is_returned_as_data(mask: int, rows_each: int) -> None:
    store = MemoryStore()
    refs = staged(store, [rows_each] * 3)
    rows, key = alone(store, refs), f"{TABLE}/{refs[1].path}"
    good, refused = store.get(key), 0
    for at in range(0, len(good), 5):
        store.put(key, good[:at] + bytes([good[at] ^ mask]) + good[at + 1 :])
        try:
            assert together(store, refs) == rows, f"byte {at}"
        except CorruptChunk as error:
            refused += refs[1].path in str(error)
    assert refused > len(good) / 8


def rewritten(store: MemoryStore, ref: ChunkRef, table: pa.Table, **changed: Any) -> ChunkRef:
    """Replace a chunk's file by another, and the log's record of its size and footer."""
    sink = io.BytesIO()
    pq.write_table(table, sink, store_schema=False)
    data = sink.getvalue()
    store.put(f"{TABLE}/{ref.path}", data)
    return replace(ref, size=len(data), footer=digest_of(pa.py_buffer(data)), **changed)


def file_table(deltas: Sequence[int], events: Sequence[bytes | None]) -> pa.Table:
    keys, times = ["k"] * len(events), [NOW_US] * len(events)
    columns = [deltas, keys, times, events]
    arrays = [pa.array(v, f.type) for v, f in zip(columns, FILE_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=FILE_SCHEMA)


@pytest.mark.parametrize(
    ("deltas", "events", "text"),
    [
        ([0, 2, 1], [b"a", b"b", b"c"], "numbers its events"),
        ([1, 2, 3], [b"a", b"b", b"c"], "numbers its events"),
        ([0, 1], [b"a", b"b"], "holds 2 events; the log records 3"),
        ([0, 1, 2], [b"a", None, b"c"], "has an event that is null"),
        ([0, 1, 2], [b"a", bytes(MAX_EVENT_BYTES + 1), b"c"], "at most 8388608"),
    ],
)
def test_a_file_with_other_rows_than_the_log_records_is_corrupt(
    deltas: list[int], events: list[bytes | None], text: str
) -> None:
    store = MemoryStore()
    refs = staged(store, [3, 3, 3])
    size = sum(len(event or b"") for event in events)
    refs[1] = rewritten(store, refs[1], file_table(deltas, events), event_bytes=size)
    with pytest.raises(CorruptChunk, match=text):
        together(store, refs)


@pytest.mark.parametrize("dropped", ["offset_delta", "event"])
def test_a_file_of_other_columns_is_corrupt(dropped: str) -> None:
    store = MemoryStore()
    refs = staged(store, [3, 3, 3])
    table = file_table([0, 1, 2], [b"a", b"b", b"c"]).drop_columns([dropped])
    refs[1] = rewritten(store, refs[1], table.append_column("more", pa.array([1, 2, 3])))
    with pytest.raises(CorruptChunk, match="has the columns"):
        together(store, refs)


@pytest.mark.parametrize("changed", [{"rows": 4}, {"size": 7}, {"footer": "9-0123456789abcdef"}])
def test_a_file_that_the_log_describes_differently_is_corrupt(changed: dict[str, Any]) -> None:
    store = MemoryStore()
    refs = staged(store, [3, 3, 3])
    refs[2] = replace(refs[2], **changed)
    with pytest.raises(CorruptChunk, match=refs[2].path):
        together(store, refs)


class Meeting(MemoryStore):
    """A remote store whose first reads end when so many others have begun."""

    is_local = False

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.together = threading.Barrier(parties)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        if self.together.n_waiting or not self.met:
            self.together.wait(30)
            self.met = True
        return super().get_many(keys)

    met = False


def test_reads_ahead_overlap_and_keep_the_order() -> None:
    store = Meeting(READ_AHEAD_PARTS)
    refs = staged(store, [4] * (3 * READ_AHEAD_PARTS))
    with patch.object(reader, "READ_AHEAD_BYTES", 1):
        batches = list(
            reader.read_ahead(
                SYSTEM, store, TABLE, refs, range_of(41, refs[-1].end - 1),
                columns=EVENT_SCHEMA.names,
            )
        )  # fmt: skip
    assert store.met
    store.is_local = True
    expected = alone(store, refs, columns=EVENT_SCHEMA.names)[1:-1]
    assert rows_of(batches) == expected


def test_a_gap_is_found_before_any_read_ahead() -> None:
    store = MemoryStore()
    refs = staged(store, [3, 3, 3])
    with pytest.raises(DataLoss, match="no chunk holds the event at offset 43"):
        reader.read_ahead(SYSTEM, store, TABLE, [refs[0], refs[2]], range_of(40, 49))
