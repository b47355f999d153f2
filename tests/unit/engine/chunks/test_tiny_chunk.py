"""The file of a few events is what Arrow's writer would have written, to every reader."""

from __future__ import annotations

import io
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, FILE_SCHEMA, encode_events
from pravega_spark.engine.chunks.encoder import ChunkEncoder
from pravega_spark.engine.chunks.footer import has_digest, length_of
from pravega_spark.engine.chunks.tiny import TINY_BYTES, TINY_ROWS, LoneEvent
from pravega_spark.engine.chunks.writer import EncodedChunk, encode_chunks, encode_lone
from pravega_spark.values.package import __version__

NOW_US = 1_700_000_000_123_456
AUTHOR = f"pravega_spark version {__version__}"

a_row = st.tuples(
    st.none() | st.text(max_size=40),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.binary(max_size=60),
)


def encoded(rows: list[tuple[str | None, int, bytes]], compression: str = "zstd") -> EncodedChunk:
    keys, times, events = map(list, zip(*rows, strict=True))
    table = encode_events(keys, times, events)
    (found,) = encode_chunks("v1", 0, table, name="x", compression=compression)
    return found


def open_file(found: EncodedChunk) -> pq.ParquetFile:
    source = pa.BufferReader(found.data)
    return pq.ParquetFile(source, page_checksum_verification=True)


def by_arrow(rows: list[tuple[str | None, int, bytes]]) -> pq.FileMetaData:
    """Return the footer that Arrow's writer makes for the same events."""
    sink = io.BytesIO()
    encoder = ChunkEncoder(pa.PythonFile(sink, mode="w"), "none")
    keys, times, events = map(list, zip(*rows, strict=True))
    encoder.write(encode_events(keys, times, events), sum(map(len, events)))
    encoder.finish()
    return pq.read_metadata(io.BytesIO(sink.getvalue()))


def statistics_of(metadata: pq.FileMetaData) -> list[Any]:
    columns = [metadata.row_group(0).column(i) for i in range(metadata.num_columns)]
    found = [(c.path_in_schema, c.physical_type, c.num_values, c.statistics) for c in columns]
    return [
        (*column, stats and (stats.has_min_max, stats.null_count, stats.min_raw, stats.max_raw))
        if stats is None or stats.has_min_max
        else (*column, stats.null_count)
        for *column, stats in found
    ]


@given(st.lists(a_row, min_size=1, max_size=TINY_ROWS))
def test_any_few_events_come_back_with_the_statistics_of_arrows_writer(
    rows: list[tuple[str | None, int, bytes]],
) -> None:
    found = encoded(rows)
    file = open_file(found)
    assert file.metadata.created_by == AUTHOR
    assert file.schema_arrow.equals(FILE_SCHEMA)
    table = file.read()
    keys, times, events = map(list, zip(*rows, strict=True))
    assert table.select(EVENT_SCHEMA.names).equals(encode_events(keys, times, events))
    assert table["offset_delta"].to_pylist() == list(range(len(rows)))
    other = by_arrow(rows)
    assert file.schema.equals(other.schema)
    assert statistics_of(file.metadata) == statistics_of(other)


@given(st.lists(a_row, min_size=1, max_size=TINY_ROWS))
def test_the_commit_describes_the_file(rows: list[tuple[str | None, int, bytes]]) -> None:
    chunk, data = encoded(rows)
    times = [time for _, time, _ in rows]
    assert chunk.rows == len(rows)
    assert chunk.size == len(data)
    assert chunk.event_bytes == sum(len(event) for _, _, event in rows)
    assert (chunk.min_timestamp_us, chunk.max_timestamp_us) == (min(times), max(times))
    assert chunk.null_keys == sum(key is None for key, _, _ in rows)
    assert has_digest(memoryview(data)[-length_of(chunk.footer) :], chunk.footer)


def test_a_slice_of_a_table_in_pieces_is_encoded() -> None:
    whole = encode_events([None, "a", None, "b"], [1, 2, 3, 4], [b"0", b"11", b"222", b"3333"])
    table = pa.concat_tables([whole.slice(1, 2), whole.slice(3), whole.slice(2, 2)]).slice(1)
    (found,) = encode_chunks("v1", 0, table, name="x")
    assert open_file(found).read().select(EVENT_SCHEMA.names).equals(table.combine_chunks())


def test_duckdb_prunes_by_the_statistics(tmp_path: Any) -> None:
    path = tmp_path / "x.parquet"
    rows = [("b", NOW_US, b"1"), (None, NOW_US + 9, b"2"), ("é", NOW_US, b"3")]
    path.write_bytes(encoded(rows).data)
    read = f"FROM '{path}' WHERE routing_key"
    assert duckdb.sql(f"SELECT event {read} = 'é'").fetchall() == [(b"3",)]
    assert duckdb.sql(f"SELECT event {read} IS NULL").fetchall() == [(b"2",)]
    assert duckdb.sql(f"SELECT event {read} < 'a'").fetchall() == []
    columns = duckdb.sql(
        "SELECT path_in_schema, stats_min_value, stats_max_value, stats_null_count "
        f"FROM parquet_metadata('{path}')"
    ).fetchall()
    assert columns[0] == ("offset_delta", "0", "2", 0)
    assert columns[1] == ("routing_key", "b", "é", 1)
    assert columns[2][3] == 0
    assert "2023-11-14" in columns[2][1]


def test_each_changed_byte_of_a_page_is_found() -> None:
    rows = [("key", NOW_US, b"event"), (None, NOW_US + 1, b"")]
    chunk, data = encoded(rows)
    pages = range(4, chunk.size - length_of(chunk.footer))
    whole = bytes(data)
    for at in pages:
        damaged = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        try:
            found = open_file(EncodedChunk(chunk, damaged)).read()
        except (pa.ArrowException, OSError):
            continue
        # a changed header may have no meaning, as that of a definition that is not used
        assert found.equals(open_file(EncodedChunk(chunk, whole)).read()), f"byte {at}"


@pytest.mark.parametrize(
    ("rows", "size", "compression", "is_tiny"),
    [
        (TINY_ROWS, 10, "zstd", True),
        (TINY_ROWS + 1, 10, "zstd", False),
        (1, TINY_BYTES - 3, "zstd", True),
        (1, TINY_BYTES - 2, "zstd", False),
        (1, TINY_BYTES + 1, "zstd", False),
        (1, 10, "none", False),  # whoever names a codec gets it
    ],
)
def test_longer_ones_are_written_by_arrow(
    rows: int, size: int, compression: str, is_tiny: bool
) -> None:
    found = encoded([("key", NOW_US, b"x" * size)] * rows, compression)
    file = open_file(found)
    assert (file.metadata.created_by == AUTHOR) is is_tiny
    assert file.read()["event"].to_pylist() == [b"x" * size] * rows


@given(st.none() | st.text(max_size=1_500), st.integers(0, 1 << 60), st.binary(max_size=2_100))
def test_a_lone_event_has_the_chunk_of_a_table_of_one_row(
    key: str | None, time_us: int, event: bytes
) -> None:
    lone = LoneEvent.of(key, time_us, event)
    size = len(event) + len((key or "").encode())
    assert (lone is None) == (size > TINY_BYTES)
    if lone is not None:
        assert lone.nbytes == size
        assert encode_lone("v1", 0, lone, name="x") == encoded([(key, time_us, event)])
