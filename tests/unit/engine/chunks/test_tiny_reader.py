"""The file of a few events is read without Arrow's reader: the same rows, and no damaged byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks import reader
from pravega_spark.engine.chunks.chunk import FILE_SCHEMA, ChunkRef, encode_events
from pravega_spark.engine.chunks.footer import digest_of
from pravega_spark.engine.chunks.tiny import TINY_ROWS, encode_tiny, tiny_columns
from pravega_spark.engine.chunks.writer import encode_chunks, stage
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CorruptChunk
from pravega_spark.values.segments import SegmentRange

NOW_US = 1_700_000_000_123_456
Row = tuple[str | None, int, bytes]

a_row = st.tuples(
    st.none() | st.text(max_size=40),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.binary(max_size=60) | st.sampled_from([b"\x15\x00\x15\x06\x15\x06\x00\x00" * 3]),
)


def encoded(rows: list[Row]) -> tuple[ChunkRef, bytes]:
    keys, times, events = map(list, zip(*rows, strict=True))
    table = encode_events(keys, times, events)
    ((one, data),) = encode_chunks("v1", 0, table, name="x")
    ref = ChunkRef(
        one.path, 0, 5, one.rows, one.size, one.event_bytes, 0,
        one.min_timestamp_us, one.max_timestamp_us, one.footer,
    )  # fmt: skip
    return ref, bytes(data)


@given(st.lists(a_row, min_size=1, max_size=TINY_ROWS))
def test_the_columns_are_those_that_arrows_reader_returns(rows: list[Row]) -> None:
    ref, data = encoded(rows)
    held = tiny_columns(ref, data)
    assert held is not None
    found = pa.Table.from_arrays([held[name] for name in FILE_SCHEMA.names], schema=FILE_SCHEMA)
    found.validate(full=True)
    assert found.equals(pq.read_table(pa.BufferReader(data)))


@given(st.lists(a_row, min_size=1, max_size=TINY_ROWS), st.data())
def test_a_file_with_any_changed_byte_is_left_to_arrows_reader(
    rows: list[Row], data: st.DataObject
) -> None:
    ref, whole = encoded(rows)
    at, mask = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    assert tiny_columns(ref, whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :]) is None
    assert tiny_columns(ref, whole[:at]) is None
    assert tiny_columns(ref, whole + b"\0") is None


@pytest.mark.parametrize("version", [b"0.1.0", b"12.10.3rc1"])
def test_a_file_of_another_version_is_read_as_one_of_this_version(version: bytes) -> None:
    ref, data = encoded([("key", NOW_US, b"event")])
    other = encode_tiny([b"key"], [NOW_US], [b"event"], b"pravega_spark version " + version)
    assert pq.read_metadata(pa.BufferReader(other)).created_by.endswith(version.decode())
    held = tiny_columns(replace(ref, size=len(other), footer=digest_of(other)), other)
    assert held == tiny_columns(ref, data) is not None


@pytest.mark.parametrize(
    "changed", [{"rows": 1}, {"rows": 3}, {"event_bytes": 1}, {"size": 1}, {"footer": ""}]
)
def test_a_file_other_than_the_log_records_is_left_to_arrows_reader(
    changed: dict[str, Any],
) -> None:
    ref, data = encoded([("key", NOW_US, b"event"), (None, NOW_US + 1, b"")])
    assert tiny_columns(ref, data) is not None
    assert tiny_columns(replace(ref, **changed), data) is None


def test_a_whole_file_with_another_footer_is_refused() -> None:
    store, rng = MemoryStore(), SegmentRange("s/t", 1, 0, 0, 1)
    (one,) = stage(store, "s/t/events", "v1", 0, encode_events(["k"], [NOW_US], [b"1"]), name="x")
    ref = ChunkRef(one.path, 0, 0, 1, one.size, 1, 0, NOW_US, NOW_US, one.footer)
    _, other = encoded([("l", NOW_US, b"1")])
    store.put(f"s/t/events/{ref.path}", other)
    assert len(other) == ref.size
    with pytest.raises(CorruptChunk, match="has a footer other than"):
        list(reader.read_range(store, "s/t/events", [ref], rng))


def test_a_file_that_arrow_has_written_is_left_to_its_reader() -> None:
    ref, data = encoded([("key", NOW_US, b"event")])
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(pa.BufferReader(data)), sink, store_schema=False)
    other = sink.getvalue().to_pybytes()
    assert tiny_columns(replace(ref, size=len(other), footer=digest_of(other)), other) is None


@pytest.mark.parametrize(("start", "end"), [(0, 9), (3, 7), (8, 9), (4, 4)])
def test_a_part_of_a_small_file_is_read_in_batches(start: int, end: int) -> None:
    store, rows = (
        MemoryStore(),
        [(f"k{i}" if i % 2 else None, NOW_US + i, b"%d" % i) for i in range(9)],
    )
    keys, times, events = map(list, zip(*rows, strict=True))
    (one,) = stage(store, "s/t/events", "v1", 0, encode_events(keys, times, events), name="x")
    ref = ChunkRef(one.path, 0, 0, 9, one.size, one.event_bytes, 0, NOW_US, NOW_US + 8, one.footer)
    found = list(
        reader.read_range(
            store, "s/t/events", [ref], SegmentRange("s/t", 1, 0, start, end),
            columns=["event", "offset"], batch_rows=3,
        )
    )  # fmt: skip
    got = [(row["event"], row["offset"]) for batch in found for row in batch.to_pylist()]
    assert got == [(b"%d" % i, i) for i in range(start, end)]
    assert all(batch.num_rows <= 3 for batch in found)
