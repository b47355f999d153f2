"""Events of any schema are stored in a chunk and read as they were, also under a grown schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark import StreamSchema, set_kms
from pravega_spark.engine.chunks import reader, search
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA, FILE_SCHEMA, ChunkRef, StagedChunk
from pravega_spark.engine.chunks.columns import encrypted_columns, file_options
from pravega_spark.engine.chunks.format import (
    RAW,
    EventFormat,
    TypedEvent,
    as_events,
    file_schema,
    format_of,
    is_narrower,
)
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.key_management import ChunkKey
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import CorruptChunk, EventTooLarge, InvalidInput, KmsUnavailable
from tests.harness.typed_rows import SCHEMAS, as_read, rows

TABLE = "s/t/events"


def checked(schema: StreamSchema, given: list[dict[str, Any]]) -> list[TypedEvent]:
    return [TypedEvent(*schema.check_row(row)) for row in given]


def table_of(columns: EventFormat, given: list[dict[str, Any]]) -> pa.Table:
    assert columns.schema is not None
    keys: list[str | None] = [None] * len(given)
    return columns.encode(keys, [*range(len(given))], checked(columns.schema, given))


def ref_of(chunk: StagedChunk) -> ChunkRef:
    return ChunkRef(
        chunk.path, 0, 0, chunk.rows, chunk.size, chunk.event_bytes, 0,
        chunk.min_timestamp_us, chunk.max_timestamp_us, chunk.footer,
    )  # fmt: skip


def read(store: MemoryStore, ref: ChunkRef, columns: EventFormat) -> list[dict[str, Any]]:
    batches = reader.read(
        store, TABLE, ref, 0, ref.rows, columns=columns.payload, event_format=columns
    )
    return [row for batch in batches for row in batch.to_pylist()]


STORIES = SCHEMAS.flatmap(
    lambda schema: st.tuples(st.just(schema), st.lists(rows(schema), min_size=1, max_size=20))
)


@pytest.mark.medium
@given(STORIES)
def test_rows_of_any_schema_are_read_as_they_were_written(
    story: tuple[pa.Schema, list[dict[str, Any]]],
) -> None:
    arrow, given = story
    schema = StreamSchema.of(arrow)
    columns, store = format_of(schema), MemoryStore()
    (chunk,) = stage(store, TABLE, "v0", 0, table_of(columns, given), name="c")
    wanted = [{f.name: as_read(f.type, row[f.name]) for f in schema.arrow} for row in given]
    assert read(store, ref_of(chunk), columns) == wanted
    assert chunk.event_bytes == sum(schema.check_row(row)[1] for row in given)
    grown = StreamSchema.of(arrow.append(pa.field("added", pa.map_(pa.string(), pa.date32()))))
    found = read(store, ref_of(chunk), format_of(grown))
    assert found == [{**row, "added": None} for row in wanted]
    half = len(given) // 2
    before = sum(schema.check_row(row)[1] for row in given[:half])
    assert search.bytes_before(store, TABLE, ref_of(chunk), half) == before


@given(SCHEMAS)
def test_every_column_of_any_schema_is_encrypted(arrow: pa.Schema) -> None:
    columns = format_of(StreamSchema.of(arrow))
    names = encrypted_columns(columns.events)
    options = file_options(columns.events, is_encrypted=True, small=False)
    assert set(options["write_statistics"]) == {"offset_delta", "timestamp"}
    leaves = pq.ParquetFile(_empty(file_schema(columns.events))).metadata.schema
    paths = {leaves.column(n).path for n in range(len(leaves))}
    assert {*names} == paths - {"offset_delta", "timestamp"}


def _empty(schema: pa.Schema) -> pa.BufferReader:
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink, store_schema=False)
    return pa.BufferReader(sink.getvalue())


PAIR = format_of(StreamSchema.of(pa.schema([("n", pa.int64()), ("word", pa.string())])))


def test_the_raw_format_is_that_of_bytes() -> None:
    assert RAW.is_raw
    assert RAW.events is EVENT_SCHEMA or RAW.events.equals(EVENT_SCHEMA)
    assert file_schema(RAW.events).equals(FILE_SCHEMA)
    assert RAW.payload == ("event",)
    assert file_options(EVENT_SCHEMA, is_encrypted=False, small=True) == {
        "version": "2.6",
        "write_page_checksum": True,
        "store_schema": False,
        "column_encoding": dict.fromkeys(("offset_delta", "timestamp"), "DELTA_BINARY_PACKED"),
        "use_dictionary": ["routing_key"],
        "write_statistics": ["offset_delta", "timestamp", "routing_key"],
    }


def test_a_chunk_of_the_other_kind_is_refused() -> None:
    store = MemoryStore()
    (typed,) = stage(store, TABLE, "v0", 0, table_of(PAIR, [{"n": 1, "word": "a"}]), name="c")
    with pytest.raises(CorruptChunk, match=r"has the columns.*typed events; the stream is raw"):
        list(reader.read(store, TABLE, ref_of(typed), 0, 1))
    events = RAW.encode([None], [0], [b"a"])
    (raw,) = stage(store, TABLE, "v0", 0, events, name="r")
    with pytest.raises(CorruptChunk, match="raw events; the stream is typed"):
        read(store, ref_of(raw), PAIR)


def test_a_column_of_another_type_is_damage() -> None:
    other = format_of(StreamSchema.of(pa.schema([("n", pa.string())])))
    store = MemoryStore()
    (chunk,) = stage(store, TABLE, "v0", 0, table_of(PAIR, [{"n": 1, "word": "a"}]), name="c")
    with pytest.raises(CorruptChunk, match=r"column n of type int64; the schema.*string"):
        read(store, ref_of(chunk), other)


def test_only_fields_of_structs_may_be_more_or_fewer() -> None:
    small, large = pa.struct([("x", pa.int32())]), pa.struct([("x", pa.int32()), ("y", pa.int8())])
    for wrap in (lambda kind: kind, pa.list_, lambda kind: pa.map_(pa.string(), kind)):
        assert is_narrower(wrap(small), wrap(large))
        assert is_narrower(wrap(large), wrap(small))
    other = pa.struct([("x", pa.int64())])
    assert not is_narrower(small, other)
    assert not is_narrower(pa.list_(small), pa.list_(other))
    assert not is_narrower(small, pa.list_(small))
    assert not is_narrower(pa.int32(), pa.int64())


def test_what_is_no_table_of_typed_events_is_refused() -> None:
    table = table_of(PAIR, [{"n": 1, "word": "a"}])
    assert as_events(table) is table
    with pytest.raises(InvalidInput, match="column 0 must be routing_key"):
        as_events(table.select(["n", "word"]))
    null_times = table.set_column(1, table.field(1), pa.nulls(1, table.field(1).type))
    with pytest.raises(InvalidInput, match="1 of 1 events have a null timestamp"):
        as_events(null_times)


def test_an_event_that_is_too_large_is_refused_by_number() -> None:
    table = table_of(PAIR, [{"n": 1, "word": "a"}, {"n": 2, "word": "x" * (8 << 20)}])
    with pytest.raises(EventTooLarge, match="event 1 of 2") as found:
        stage(MemoryStore(), TABLE, "v0", 0, table, name="c")
    assert found.value.size_bytes == (8 << 20) + 8


def test_a_typed_chunk_needs_its_key_to_be_written() -> None:
    set_kms(None)
    with pytest.raises(KmsUnavailable, match="no KMS"):
        stage(
            MemoryStore(), TABLE, "v0", 0, table_of(PAIR, [{"n": 1, "word": "a"}]), name="c",
            key=ChunkKey("s/t", "first"),
        )  # fmt: skip
