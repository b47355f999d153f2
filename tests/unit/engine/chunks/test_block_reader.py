"""Blocks of bytes are read without Arrow's reader: the same events, and no damaged byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunks import reader
from pravega_spark.engine.chunks.blocks import open_blocks, stage_blocks
from pravega_spark.engine.chunks.chunk import ChunkRef, encode_events
from pravega_spark.engine.chunks.encoder import UNCOMPRESSED
from pravega_spark.engine.chunks.footer import digest_of, digest_of_parts, length_of
from pravega_spark.engine.chunks.tiny import PAGE_ROWS, PAGES_KEY, TINY_ROWS, author_of
from pravega_spark.engine.chunks.writer import encode
from pravega_spark.engine.store.base import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CorruptChunk
from pravega_spark.values.segments import SegmentRange

NOW_US = 1_700_000_000_123_456
TABLE = "s/t/events"
BLOCKS = [bytes([n + 1]) * (400 + n) for n in range(2 * PAGE_ROWS + 1)]
some_blocks = st.lists(
    st.binary(max_size=60) | st.sampled_from([b"\x15\x00\x15\x06\x15\x06\x00\x00" * 3]),
    min_size=1,
    max_size=TINY_ROWS,
).filter(any)


def stored(blocks: list[bytes], store: Store | None = None) -> tuple[Store, ChunkRef, bytes]:
    store = store or MemoryStore()
    times = [NOW_US + n for n in range(len(blocks))]
    table = encode_events([None] * len(blocks), times, blocks)
    one = stage_blocks(store, TABLE, "v1", 0, table, name="x")
    ref = ChunkRef(
        one.path, 0, 5, one.rows, one.size, one.event_bytes, 0,
        one.min_timestamp_us, one.max_timestamp_us, one.footer,
    )  # fmt: skip
    return store, ref, store.get(f"{TABLE}/{one.path}")


def blocks_of(store: Store, ref: ChunkRef, data: bytes | None, first: int, last: int) -> Any:
    """Return the events that need no Arrow; None if the whole file is left to it."""
    with open_blocks(store, TABLE, ref, data) as file:
        return None if file is None else [b.to_pybytes() for b in file.events(first, last)]


@given(some_blocks, st.data(), st.booleans())
def test_any_rows_are_those_that_arrows_reader_returns(
    blocks: list[bytes], data: st.DataObject, is_fetched: bool
) -> None:
    store, ref, whole = stored(blocks)
    assert pq.read_table(pa.BufferReader(whole))["event"].to_pylist() == blocks
    first = data.draw(st.integers(0, len(blocks)))
    last = data.draw(st.integers(first, len(blocks)))
    found = blocks_of(store, ref, whole if is_fetched else None, first, last)
    assert found == blocks[first:last]


@given(some_blocks, st.data())
def test_no_page_with_a_changed_byte_is_returned(blocks: list[bytes], data: st.DataObject) -> None:
    store, ref, whole = stored(blocks)
    at, mask = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    damaged = whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :]
    found = blocks_of(store, ref, damaged, 0, len(blocks))
    assert found is None or (found == blocks[: len(found)] and len(found) < len(blocks))
    assert found is None or len(found) % PAGE_ROWS == 0
    for other in (whole[:at], whole + b"\0"):
        assert blocks_of(store, ref, other, 0, len(blocks)) is None


def test_the_footer_has_the_digest_of_each_page() -> None:
    _, _, whole = stored(BLOCKS)
    metadata = pq.ParquetFile(pa.BufferReader(whole)).metadata
    pages = metadata.metadata[PAGES_KEY].decode().split(",")
    assert len(pages) == 3
    at = metadata.row_group(0).column(3).data_page_offset
    for page in pages:
        end = at + length_of(page)
        assert digest_of_parts([whole[at:end]]) == page
        at = end
    assert metadata.row_group(0).column(3).total_compressed_size == sum(map(length_of, pages))


def test_a_file_of_an_earlier_release_has_no_digests_and_is_read_by_arrow() -> None:
    store, ref, whole = stored(BLOCKS)
    footer = whole[-length_of(ref.footer) : -8]
    at, end = (
        footer.index(b"\x19\x1c\x18\x0d" + PAGES_KEY),
        footer.index(b"\x00\x18%c" % len(author_of(whole))),
    )
    earlier = footer[:at] + b"\x28" + footer[end + 2 :]
    data = whole[: -len(footer) - 8] + earlier + len(earlier).to_bytes(4, "little") + b"PAR1"
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.metadata is None
    other = replace(ref, size=len(data), footer=digest_of(data))
    assert blocks_of(store, other, data, 0, len(BLOCKS)) is None
    store.put(f"{TABLE}/{ref.path}", data)
    (batch,) = reader.read(store, TABLE, other, 5, 5 + len(BLOCKS), columns=("event",))
    assert batch.column("event").to_pylist() == BLOCKS


def test_a_file_of_another_version_is_read_as_one_of_this_version() -> None:
    store, ref, whole = stored(BLOCKS)
    author = author_of(whole)
    other = whole.replace(author, author[:-1] + b"~")
    assert author_of(other) != author
    footer = digest_of(other[-length_of(ref.footer) :])
    assert blocks_of(store, replace(ref, footer=footer), other, 0, len(BLOCKS)) == BLOCKS


def test_another_complete_file_of_the_same_sizes_is_left_to_arrows_reader() -> None:
    store, ref, whole = stored(BLOCKS)
    _, _, other = stored([bytes(len(block)) for block in BLOCKS])
    assert len(other) == len(whole)
    assert blocks_of(store, ref, other, 0, len(BLOCKS)) is None


def test_damage_behind_the_first_page_is_reported_there() -> None:
    store, ref, whole = stored(BLOCKS)
    at = whole.index(BLOCKS[PAGE_ROWS])
    store.put(f"{TABLE}/{ref.path}", whole[:at] + b"\0" + whole[at + 1 :])
    rng = SegmentRange("s/t", 1, 0, 5, 5 + len(BLOCKS))
    batches = reader.read_range(store, TABLE, [ref], rng, columns=("event",), batch_rows=1)
    for block in BLOCKS[:PAGE_ROWS]:
        assert next(batches).column("event").to_pylist() == [block]
    with pytest.raises(CorruptChunk, match="is not a valid Parquet file"):
        next(batches)


@pytest.mark.parametrize(
    "changed",
    [
        {"rows": 3},
        {"rows": 5},
        {"size": 1},
        {"footer": ""},
        {"event_bytes": 1 << 30},
        {"attachment": f"9-{'0' * 32}"},
    ],
)
def test_a_file_other_than_the_log_records_is_left_to_arrows_reader(
    changed: dict[str, Any],
) -> None:
    store, ref, _ = stored(BLOCKS[:4])
    assert blocks_of(store, ref, None, 0, 4) == BLOCKS[:4]
    assert blocks_of(store, replace(ref, **changed), None, 0, 4) is None


def test_a_file_that_arrow_has_written_is_left_to_its_reader() -> None:
    store, ref, _ = stored(BLOCKS[:4])
    table = encode_events([None] * 4, [NOW_US] * 4, BLOCKS[:4])
    data = encode(table, UNCOMPRESSED).to_pybytes()
    other = replace(ref, size=len(data), footer=digest_of(data))
    assert length_of(other.footer) != length_of(ref.footer)
    assert blocks_of(store, other, data, 0, 4) is None


def test_blocks_are_views_of_their_page_and_pages_without_a_row_are_not_read() -> None:
    store, ref, whole = stored(BLOCKS)
    at = whole.index(BLOCKS[0])
    damaged = whole[:at] + b"\0" + whole[at + 1 :]  # the first page
    assert blocks_of(store, ref, damaged, PAGE_ROWS, len(BLOCKS)) == BLOCKS[PAGE_ROWS:]
    with open_blocks(store, TABLE, ref, None) as file:
        assert file is not None
        first, second, *_ = file.events(0, len(BLOCKS))
        assert second.address == first.address + first.size + 4
