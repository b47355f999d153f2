from __future__ import annotations

import errno
import io
import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import patch

import deltalake
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks import (
    chunk,
    encoder,
    footer,
    reader,
    writer,
)
from pravega_spark.engine.chunks import (
    search as chunk_search,
)
from pravega_spark.engine.chunks.chunk import ChunkRef, StagedChunk
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import (
    CorruptChunk,
    DataLoss,
    EventTooLarge,
    InvalidInput,
    StoreError,
    StoreFull,
)
from pravega_spark.values.limits import MAX_EVENT_BYTES
from pravega_spark.values.segments import SegmentRange, make_segment_id

TABLE = "scope/stream/events"
FOLDER = version_folder(7)
SEGMENT = make_segment_id(3, 1)
NOW_US = 1_700_000_000_123_456

EVENTS = st.lists(
    st.tuples(
        st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        st.integers(-(2**62), 2**62),
        st.binary(max_size=40),
    ),
    max_size=60,
)


class Failing(MemoryStore):
    """A store whose reads all fail."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error or AssertionError("nothing should be read")

    def open(self, key: str) -> pa.NativeFile:
        raise self.error

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        raise self.error


class Counting(MemoryStore):
    """A store that records its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.fetched: list[int] = []

    def open(self, key: str) -> pa.NativeFile:
        self.opened.append(key)
        return super().open(key)

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.fetched.append(len(keys))
        return super().get_many(keys)


def limits(**values: int) -> Any:
    """Patch the limits of writing and reading, so that small data reaches them."""
    patches = ExitStack()
    for module in (encoder, writer, reader, reader):
        known: dict[str, Any] = {
            name: value for name, value in values.items() if hasattr(module, name)
        }
        if known:
            patches.enter_context(patch.multiple(module, **known))
    return patches


def table_of(count: int, size: int = 8, start_us: int = NOW_US) -> pa.Table:
    return chunk.encode_events(
        [f"key-{i % 5}" for i in range(count)],
        [start_us + i for i in range(count)],
        [b"%0*d" % (size, i) for i in range(count)],
    )


def refs_of(staged: Sequence[StagedChunk], base_offset: int = 0) -> list[ChunkRef]:
    """Return the chunks as a commit would name them; 7 bytes for each event before the first."""
    refs, base_bytes = [], 7 * base_offset
    for s in staged:
        times = (s.min_timestamp_us, s.max_timestamp_us)
        refs.append(
            ChunkRef(
                s.path,
                s.segment_id,
                base_offset,
                s.rows,
                s.size,
                s.event_bytes,
                base_bytes,
                *times,
                s.footer,
            )
        )
        base_offset, base_bytes = base_offset + s.rows, base_bytes + s.event_bytes
    return refs


def stage_at(
    store: MemoryStore | LocalStore, table: pa.Table, base: int = 0, name: str = "x"
) -> list[ChunkRef]:
    return refs_of(writer.stage(store, TABLE, FOLDER, SEGMENT, table, name=name), base)


def range_of(start: int, end: int) -> SegmentRange:
    return SegmentRange("scope/stream", 1, SEGMENT, start, end)


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def expected_rows(table: pa.Table, base: int = 0) -> list[dict[str, Any]]:
    return [{"offset": base + i, **row} for i, row in enumerate(table.to_pylist())]


def whole(store: MemoryStore, ref: ChunkRef, **options: Any) -> list[dict[str, Any]]:
    return rows_of(reader.read(store, TABLE, ref, ref.base_offset, ref.end, **options))


# ------------------------------------------------------------------------------------- writing


def test_staged_chunk_holds_all_that_a_commit_needs() -> None:
    store = MemoryStore()
    table = chunk.encode_events(["a", None, "b"], [30, 10, 20], [b"12", b"", b"345"])
    (staged,) = writer.stage(store, TABLE, FOLDER, SEGMENT, table, name="w1-42")
    data = store.get(f"{TABLE}/data/{FOLDER}/w1-42-0.parquet")
    assert staged == StagedChunk(
        path=f"data/{FOLDER}/w1-42-0.parquet",
        segment_id=SEGMENT,
        rows=3,
        size=len(data),
        event_bytes=5,
        min_timestamp_us=10,
        max_timestamp_us=30,
        null_keys=1,
        footer=footer.digest_of(pa.py_buffer(data)),
    )


def test_chunk_is_staged_in_the_given_folder() -> None:
    store = MemoryStore()
    (staged,) = writer.stage(store, TABLE, "t-abc", SEGMENT, table_of(1), name="x")
    assert staged.path == "data/t-abc/x-0.parquet"
    assert store.exists(f"{TABLE}/{staged.path}")


def test_without_events_no_chunk_is_stored() -> None:
    store = MemoryStore()
    assert (
        writer.stage(
            store,
            TABLE,
            FOLDER,
            SEGMENT,
            chunk.EVENT_SCHEMA.empty_table(),
            name="x",
        )
        == []
    )
    assert store.list("") == []


def test_file_has_the_columns_of_a_chunk_and_nothing_else() -> None:
    file = pq.ParquetFile(pa.BufferReader(writer.encode(table_of(3))))
    assert file.schema_arrow.equals(chunk.FILE_SCHEMA)
    assert file.metadata.metadata is None  # no serialized Arrow schema
    assert file.metadata.format_version == "2.6"
    group = file.metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(4)}
    logical = json.loads(file.schema.column(2).logical_type.to_json())
    assert (logical["isAdjustedToUTC"], logical["timeUnit"]) == (True, "microseconds")
    assert columns["timestamp"].physical_type == "INT64"
    assert columns["offset_delta"].statistics.min == 0
    assert columns["offset_delta"].statistics.max == 2
    assert columns["routing_key"].statistics.null_count == 0
    assert not columns["event"].is_stats_set
    assert [name for name, c in columns.items() if c.has_dictionary_page] == ["routing_key"]


def test_one_event_takes_less_than_a_kilobyte() -> None:
    assert writer.encode(table_of(1, size=100)).size < 1000


@pytest.mark.parametrize(("events", "codec"), [(1, "SNAPPY"), (1000, "ZSTD")])
def test_small_chunks_use_snappy_instead_of_zstd(events: int, codec: str) -> None:
    file = pq.ParquetFile(pa.BufferReader(writer.encode(table_of(events, size=100))))
    assert file.metadata.row_group(0).column(3).compression == codec


def test_compression_can_be_chosen() -> None:
    file = pq.ParquetFile(pa.BufferReader(writer.encode(table_of(9), "none")))
    assert file.metadata.row_group(0).column(3).compression == "UNCOMPRESSED"


def test_row_groups_end_at_both_limits() -> None:
    with limits(ROW_GROUP_EVENTS=4, ROW_GROUP_BYTES=30):
        by_rows = pq.ParquetFile(pa.BufferReader(writer.encode(table_of(10, size=1))))
        by_bytes = pq.ParquetFile(pa.BufferReader(writer.encode(table_of(5, size=10))))
        lone = pq.ParquetFile(pa.BufferReader(writer.encode(table_of(2, size=31))))
    rows = [
        [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        for file in (by_rows, by_bytes, lone)
    ]
    assert rows == [[4, 4, 2], [3, 2], [1, 1]]


def test_chunks_end_at_both_limits() -> None:
    store = MemoryStore()
    with limits(CHUNK_EVENTS=4, CHUNK_BYTES=30):
        by_rows = writer.stage(store, TABLE, FOLDER, SEGMENT, table_of(10, size=1), name="r")
        by_bytes = writer.stage(store, TABLE, FOLDER, SEGMENT, table_of(5, size=10), name="b")
        lone = writer.stage(store, TABLE, FOLDER, SEGMENT, table_of(2, size=31), name="l")
    assert [s.path for s in by_rows] == [f"data/{FOLDER}/r-{k}.parquet" for k in range(3)]
    assert [s.rows for s in by_rows] == [4, 4, 2]
    assert [s.event_bytes for s in by_bytes] == [30, 20]
    assert [(s.rows, s.event_bytes) for s in lone] == [(1, 31), (1, 31)]
    assert [s.min_timestamp_us - NOW_US for s in by_rows] == [0, 4, 8]


def test_event_of_the_largest_size_is_stored() -> None:
    store = MemoryStore()
    data = np.random.default_rng(1).bytes(MAX_EVENT_BYTES)
    (ref,) = stage_at(store, chunk.encode_events([None, "a"], [1, 2], [data, b""]))
    assert [row["event"] for row in whole(store, ref)] == [data, b""]


def test_event_above_the_largest_size_is_refused() -> None:
    store = MemoryStore()
    table = chunk.encode_events(["a", "a"], [1, 2], [b"", bytes(MAX_EVENT_BYTES + 1)])
    with pytest.raises(EventTooLarge, match="event 1 of 2 has 8388609 bytes"):
        writer.stage(store, TABLE, FOLDER, SEGMENT, table, name="x")
    assert store.list("") == []


@pytest.mark.parametrize("column", ["timestamp", "event"])
def test_null_timestamp_or_event_is_refused(column: str) -> None:
    field = chunk.EVENT_SCHEMA.field(column)
    table = table_of(2).set_column(
        chunk.EVENT_SCHEMA.get_field_index(column), field, pa.nulls(2, field.type)
    )
    with pytest.raises(InvalidInput, match=f"2 of 2 events have a null {column}"):
        writer.stage(MemoryStore(), TABLE, FOLDER, SEGMENT, table, name="x")


def test_all_keys_may_be_null() -> None:
    store = MemoryStore()
    table = chunk.encode_events([None] * 3, [1, 2, 3], [b"a", b"b", b"c"])
    (staged,) = writer.stage(store, TABLE, FOLDER, SEGMENT, table, name="x")
    assert staged.null_keys == 3
    assert whole(store, refs_of([staged])[0]) == expected_rows(table)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"routing_key": ["a"], "event": [b"a"]}),
        pa.table({"routing_key": [1.5], "timestamp": [["x"]], "event": [b"a"]}),
        pa.table(
            {
                "routing_key": pa.array([b"\xff"]),
                "timestamp": pa.array([1], pa.timestamp("us", "UTC")),
                "event": pa.array([b"a"]),
            }
        ),
    ],
    ids=["column missing", "types", "key is not UTF-8"],
)
def test_table_of_other_columns_is_refused(table: pa.Table) -> None:
    with pytest.raises(InvalidInput, match="It needs"):
        chunk.as_raw_events(table)


def test_events_are_encoded_from_numpy_times_too() -> None:
    times = np.array([1, 2], np.int64)
    table = chunk.encode_events(["a", None], times, [b"x", b"y"])
    assert table.equals(chunk.encode_events(["a", None], [1, 2], [b"x", b"y"]))
    assert table.schema.equals(chunk.EVENT_SCHEMA)
    assert chunk.encode_events([], [], []).num_rows == 0


@pytest.mark.parametrize(
    ("keys", "times", "events"),
    [
        (["a"], [1, 2], [b"x", b"y"]),
        ([1], [1], [b"x"]),
        (["\ud800"], [1], [b"x"]),
        (["a"], [None], [b"x"]),
        (["a"], [1 << 64], [b"x"]),
        (["a"], [1], [3]),
    ],
    ids=["lengths", "key type", "key not Unicode", "no time", "time too large", "event type"],
)
def test_values_of_other_types_are_refused(keys: Any, times: Any, events: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        chunk.encode_events(keys, times, events)


# ------------------------------------------------------------------------------------- statistics


def stats_of(low_us: int, high_us: int) -> dict[str, Any]:
    staged = StagedChunk("p", SEGMENT, 5, 100, 50, low_us, high_us, 2)
    found: dict[str, Any] = json.loads(staged.stats())
    return found


def test_stats_round_times_outwards_to_milliseconds() -> None:
    assert stats_of(NOW_US, NOW_US + 1) == {
        "numRecords": 5,
        "minValues": {"timestamp": "2023-11-14T22:13:20.123Z"},
        "maxValues": {"timestamp": "2023-11-14T22:13:20.124Z"},
        "nullCount": {"routing_key": 2, "timestamp": 0},
    }
    before_1970 = stats_of(-1, -1)
    assert before_1970["minValues"] == {"timestamp": "1969-12-31T23:59:59.999Z"}
    assert before_1970["maxValues"] == {"timestamp": "1970-01-01T00:00:00.000Z"}


@pytest.mark.parametrize("beyond", [-(2**62), 2**62])
def test_stats_leave_out_times_that_others_cannot_parse(beyond: int) -> None:
    found = stats_of(min(0, beyond), max(0, beyond))
    assert found == {"numRecords": 5, "nullCount": {"routing_key": 2, "timestamp": 0}}


# ------------------------------------------------------------------------------------- reading


@given(EVENTS, st.integers(0, 2**40), st.data())
def test_any_range_and_columns_read_back_what_was_staged(
    events: list[tuple[str | None, int, bytes]], base: int, data: st.DataObject
) -> None:
    store = MemoryStore()
    keys, times, payloads = map(list, zip(*events, strict=True)) if events else ([], [], [])
    table = chunk.encode_events(keys, times, payloads)
    small = {name: data.draw(st.integers(1, 50)) for name in ("ROW_GROUP_EVENTS", "CHUNK_EVENTS")}
    small |= {name: data.draw(st.integers(1, 999)) for name in ("ROW_GROUP_BYTES", "CHUNK_BYTES")}
    with limits(**small):
        refs = stage_at(store, table, base)
        assert sum(ref.rows for ref in refs) == len(events)
        start = data.draw(st.integers(base, base + len(events)))
        end = data.draw(st.integers(start, base + len(events)))
        names = data.draw(st.permutations(reader.BATCH_COLUMNS))[: data.draw(st.integers(1, 4))]
        batch_rows = data.draw(st.integers(1, 70))
        batches = list(
            reader.read_range(
                store, TABLE, refs, range_of(start, end), columns=names, batch_rows=batch_rows
            )
        )
    assert all(batch.schema.names == list(names) for batch in batches)
    assert all(0 < batch.num_rows <= batch_rows for batch in batches)
    offsets = pa.array(range(base, base + len(events)), pa.int64())
    wanted = table.append_column("offset", offsets).slice(start - base, end - start).select(names)
    assert pa.Table.from_batches(batches, wanted.schema).equals(wanted)


def test_batches_have_exactly_the_types_promised() -> None:
    store = MemoryStore()
    (ref,) = stage_at(store, table_of(3))
    (batch,) = reader.read(store, TABLE, ref, 0, 3)
    assert batch.schema.equals(reader.BATCH_SCHEMA, check_metadata=True)


def test_only_the_row_groups_of_the_range_are_read() -> None:
    store = MemoryStore()
    with limits(ROW_GROUP_EVENTS=10):
        (ref,) = stage_at(store, table_of(50))
    asked: list[tuple[Any, ...]] = []
    original = pq.ParquetFile.iter_batches

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(args[1:])
        return original(self, *args, **kwargs)

    with patch.object(pq.ParquetFile, "iter_batches", spy):
        rows = rows_of(reader.read(store, TABLE, ref, 19, 30, columns=("timestamp",)))
    assert len(rows) == 11
    assert asked == [([group], ["offset_delta", "timestamp"]) for group in (1, 2)]


def test_missing_file_raises_file_not_found() -> None:
    store = MemoryStore()
    (ref,) = stage_at(store, table_of(3))
    store.delete([f"{TABLE}/{ref.path}"])
    with pytest.raises(FileNotFoundError):
        whole(store, ref)
    with pytest.raises(FileNotFoundError, match=ref.path):
        list(reader.read_range(store, TABLE, [ref], range_of(0, 3)))


def test_local_store_reads_and_misses_as_memory_does(tmp_path: Any) -> None:
    store = LocalStore(str(tmp_path))
    (ref,) = stage_at(store, table_of(3))
    assert rows_of(reader.read(store, TABLE, ref, 0, 3)) == expected_rows(table_of(3))
    store.delete([f"{TABLE}/{ref.path}"])
    with pytest.raises(FileNotFoundError):
        list(reader.read(store, TABLE, ref, 0, 3))


def changed(ref: ChunkRef, **values: Any) -> ChunkRef:
    return replace(ref, **values)


def without_digest(ref: ChunkRef, **values: Any) -> ChunkRef:
    """Return the chunk as the log of an earlier version names it."""
    return replace(ref, footer="", **values)


def test_log_and_file_that_disagree_are_corrupt() -> None:
    store = MemoryStore()
    (ref,) = stage_at(store, table_of(3))
    with pytest.raises(
        CorruptChunk, match=r"x-0.parquet of segment 3#1 .* holds 3 events.*records 4"
    ):
        whole(store, changed(ref, rows=4))
    with pytest.raises(CorruptChunk, match=f"has {ref.size} bytes; the log records 5"):
        whole(store, changed(ref, size=5))


def test_file_of_other_columns_is_corrupt() -> None:
    store = MemoryStore()
    (ref,) = stage_at(store, table_of(3))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"offset_delta": [0, 1, 2]}), sink)
    store.put(f"{TABLE}/{ref.path}", sink.getvalue())
    with pytest.raises(CorruptChunk, match="has the columns"):
        whole(store, without_digest(ref, size=sink.getvalue().size))


@pytest.mark.parametrize("deltas", [[1, 2, 3], [0, 2, 1], [0, 1, 3], [0, 0, 1]])
def test_file_that_numbers_its_events_wrongly_is_corrupt(deltas: list[int]) -> None:
    store = MemoryStore()
    (ref,) = stage_at(store, table_of(3))
    numbers = pa.array(deltas, pa.int32())
    rows = pa.Table.from_arrays([numbers, *table_of(3).columns], schema=chunk.FILE_SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, store_schema=False)
    store.put(f"{TABLE}/{ref.path}", sink.getvalue())
    with pytest.raises(CorruptChunk, match=r"numbers its events .* instead of 0\.\.2"):
        whole(store, without_digest(ref, size=sink.getvalue().size), columns=("event",))


def packed(store: MemoryStore, events: list[bytes], recorded: int, dictionary: bool) -> ChunkRef:
    """A chunk that stage() would not write, with the event bytes that the log records for it."""
    table = pa.table(
        [range(len(events)), ["k"] * len(events), [NOW_US] * len(events), events],
        schema=chunk.FILE_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=dictionary, store_schema=False,
                   dictionary_pagesize_limit=64 << 20, write_page_checksum=True)  # fmt: skip
    data = sink.getvalue()
    store.put(f"{TABLE}/data/{FOLDER}/packed.parquet", data)
    return ChunkRef(
        f"data/{FOLDER}/packed.parquet",
        SEGMENT,
        0,
        len(events),
        data.size,
        recorded,
        0,
        0,
        0,
    )


@pytest.mark.medium
@pytest.mark.parametrize(
    ("events", "recorded", "dictionary"),
    [
        ([bytes(40 << 20)], 40 << 20, False),
        ([bytes(40 << 20)], 40 << 20, True),
        ([b"small", bytes((8 << 20) + 1)], (8 << 20) + 6, False),
        ([bytes(1 << 20)] * 64, 64, True),
    ],
)
def test_small_file_that_unpacks_to_more_than_events_may_have_is_corrupt(
    events: list[bytes], recorded: int, dictionary: bool
) -> None:
    store = MemoryStore()
    ref = packed(store, events, recorded, dictionary)
    assert ref.size < 64 << 10
    with pytest.raises(CorruptChunk, match=r"packed\.parquet .*at most 8388608"):
        whole(store, ref)


@pytest.mark.parametrize("dictionary", [False, True])
def test_largest_events_are_read_however_they_are_packed(dictionary: bool) -> None:
    store = MemoryStore()
    ref = packed(store, [bytes(8 << 20)] * 2, 16 << 20, dictionary)
    assert [len(row["event"]) for row in whole(store, ref)] == [8 << 20] * 2


def test_torn_file_is_corrupt_at_every_length() -> None:
    store = MemoryStore()
    (ref,) = stage_at(store, table_of(3))
    data = store.get(f"{TABLE}/{ref.path}")
    for length in range(len(data)):
        store.put(f"{TABLE}/{ref.path}", data[:length])
        with pytest.raises(CorruptChunk, match=ref.path):
            whole(store, changed(ref, size=length))
        with pytest.raises(CorruptChunk, match=ref.path):
            whole(store, without_digest(ref, size=length))


@pytest.mark.parametrize("digest", [True, False])
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_no_damaged_byte_is_returned_as_data(mask: int, digest: bool) -> None:
    store = MemoryStore()
    table = chunk.encode_events(["a", None, "b"], [30, 10, 20], [b"12", b"", b"345"])
    (ref,) = stage_at(store, table)
    ref = ref if digest else without_digest(ref)
    data = store.get(f"{TABLE}/{ref.path}")
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= mask
        store.put(f"{TABLE}/{ref.path}", bytes(damaged))
        try:
            found = whole(store, ref)
        except CorruptChunk:
            continue
        assert found == expected_rows(table), f"byte {place}"


def test_damage_in_a_large_event_is_found() -> None:
    store = MemoryStore()
    table = chunk.encode_events(["a"], [1], [np.random.default_rng(1).bytes(100_000)])
    (ref,) = stage_at(store, table)
    damaged = bytearray(store.get(f"{TABLE}/{ref.path}"))
    damaged[50_000] ^= 1
    store.put(f"{TABLE}/{ref.path}", bytes(damaged))
    with pytest.raises(CorruptChunk, match="is not a valid Parquet file"):
        whole(store, ref)


@pytest.mark.parametrize("error", [StoreFull("no space"), FileNotFoundError("gone")])
def test_errors_of_the_store_pass_unchanged(error: Exception) -> None:
    (ref,) = stage_at(MemoryStore(), table_of(3))
    with pytest.raises(type(error), match=str(error)):
        whole(Failing(error), ref)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad disk"), TimeoutError("slow")])
def test_error_of_the_disk_is_not_taken_for_a_corrupt_file(error: OSError) -> None:
    (ref,) = stage_at(MemoryStore(), table_of(3))
    with pytest.raises(StoreError, match=r"x-0\.parquet"):
        whole(Failing(error), ref)


@pytest.mark.parametrize(("start", "end"), [(9, 10), (12, 14), (12, 11)])
def test_range_outside_the_chunk_is_refused(start: int, end: int) -> None:
    (ref,) = stage_at(MemoryStore(), table_of(3), base=10)
    with pytest.raises(InvalidInput, match="are not a part of chunk"):
        reader.read(Failing(), TABLE, ref, start, end)


@pytest.mark.parametrize("columns", [(), ("event", "event"), ("offset_delta",)])
def test_unknown_columns_are_refused_at_the_call(columns: tuple[str, ...]) -> None:
    (ref,) = stage_at(MemoryStore(), table_of(3))
    with pytest.raises(InvalidInput, match="must be some of"):
        reader.read(Failing(), TABLE, ref, 0, 3, columns=columns)
    with pytest.raises(InvalidInput, match="must be some of"):
        reader.read_range(Failing(), TABLE, [ref], range_of(0, 3), columns=columns)


# ------------------------------------------------------------------------------------- ranges


def three_chunks(store: MemoryStore) -> tuple[list[ChunkRef], list[dict[str, Any]]]:
    """Return chunks of offsets [10, 14), [14, 18), [18, 20) and all their rows."""
    with limits(CHUNK_EVENTS=4):
        refs = stage_at(store, table_of(10), base=10)
    return refs, expected_rows(table_of(10), 10)


def test_range_reads_across_chunks_and_ignores_others() -> None:
    store = MemoryStore()
    refs, rows = three_chunks(store)
    for start in range(10, 21):
        for end in range(start, 21):
            batches = reader.read_range(store, TABLE, refs, range_of(start, end))
            assert rows_of(batches) == rows[start - 10 : end - 10]


def test_empty_range_needs_no_chunk() -> None:
    assert list(reader.read_range(Failing(), TABLE, [], range_of(5, 5))) == []


@pytest.mark.parametrize(
    ("chosen", "lost_at"), [([1, 2], 10), ([0, 2], 14), ([0, 1], 18), ([], 10)]
)
def test_gap_in_a_range_is_data_loss_after_the_events_before_it(
    chosen: list[int], lost_at: int
) -> None:
    store = MemoryStore()
    refs, rows = three_chunks(store)
    seen: list[dict[str, Any]] = []

    def drain() -> None:
        for batch in reader.read_range(
            store, TABLE, [refs[i] for i in chosen], range_of(10, 20), batch_rows=1
        ):
            seen.extend(batch.to_pylist())

    with pytest.raises(
        DataLoss,
        match=rf"3#1 \[10, 20\) cannot be read: no chunk holds the event at offset {lost_at}",
    ):
        drain()
    assert seen == rows[: lost_at - 10]


def test_chunk_of_another_segment_is_data_loss() -> None:
    store = MemoryStore()
    (ref,) = stage_at(store, table_of(3))
    with pytest.raises(DataLoss):
        list(reader.read_range(store, TABLE, [changed(ref, segment_id=4)], range_of(0, 3)))


def test_small_chunks_are_fetched_together_and_joined() -> None:
    store = Counting()
    with limits(CHUNK_EVENTS=1):
        refs = stage_at(store, table_of(150))
    (batch,) = reader.read_range(store, TABLE, refs, range_of(0, 150))
    assert batch.to_pylist() == expected_rows(table_of(150))
    assert (store.fetched, store.opened) == ([64, 64, 22], [])


def test_fetching_together_has_a_limit_in_bytes() -> None:
    store = Counting()
    with limits(CHUNK_EVENTS=1):
        refs = stage_at(store, table_of(10))
    with limits(PREFETCH_BYTES=3 * max(ref.size for ref in refs) + 1):
        batches = list(reader.read_range(store, TABLE, refs, range_of(0, 10)))
    assert rows_of(iter(batches)) == expected_rows(table_of(10))
    assert store.fetched == [3, 3, 3, 1]


def test_large_chunks_are_opened_one_after_the_other() -> None:
    store = Counting()
    parts = [table_of(3), table_of(900, size=100), table_of(2)]
    refs: list[ChunkRef] = []
    for i, part in enumerate(parts):
        refs += stage_at(store, part, base=refs[-1].end if refs else 0, name=f"n{i}")
    with limits(PREFETCH_CHUNK_BYTES=refs[1].size - 1):
        rows = rows_of(reader.read_range(store, TABLE, refs, range_of(0, 905)))
    assert [row["event"] for row in rows] == pa.concat_tables(parts)["event"].to_pylist()
    assert store.fetched == [1, 1]
    assert store.opened == [f"{TABLE}/{refs[1].path}"]


def test_batches_are_joined_up_to_a_row_groups_bytes() -> None:
    store = MemoryStore()
    with limits(CHUNK_EVENTS=1):
        refs = stage_at(store, table_of(10, size=1000))
    with limits(ROW_GROUP_BYTES=4500):
        batches = list(reader.read_range(store, TABLE, refs, range_of(0, 10)))
    assert [batch.num_rows for batch in batches] == [4, 4, 2]


# ------------------------------------------------------------------------------------- look-ups


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=40),
    st.integers(-1, 51),
    st.integers(0, 139),
)
def test_first_at_or_after_agrees_with_a_scan(times: list[int], wanted: int, start: int) -> None:
    store = MemoryStore()
    with limits(ROW_GROUP_EVENTS=7):
        (ref,) = stage_at(
            store, chunk.encode_events([None] * len(times), times, [b"x"] * len(times)), base=100
        )
    start = min(start, 99 + len(times))
    late = (100 + i for i, time in enumerate(times) if time >= wanted and 100 + i >= start)
    assert chunk_search.first_at_or_after(store, TABLE, ref, wanted, start) == next(late, None)


def test_first_at_or_after_outside_the_bounds_reads_nothing() -> None:
    (ref,) = stage_at(MemoryStore(), table_of(3), base=10)
    assert chunk_search.first_at_or_after(Failing(), TABLE, ref, NOW_US, 0) == 10
    assert chunk_search.first_at_or_after(Failing(), TABLE, ref, NOW_US + 3, 0) is None


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=40), st.data())
def test_bytes_before_is_exact(events: list[bytes], data: st.DataObject) -> None:
    store = MemoryStore()
    with limits(ROW_GROUP_EVENTS=7):
        table = chunk.encode_events([None] * len(events), range(len(events)), events)
        (ref,) = stage_at(store, table, base=100)
    count = data.draw(st.integers(0, len(events)))
    expected = 700 + sum(map(len, events[:count]))
    assert chunk_search.bytes_before(store, TABLE, ref, 100 + count) == expected


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=40), st.booleans(), st.data())
def test_offset_after_agrees_with_a_scan(
    events: list[bytes], digest: bool, data: st.DataObject
) -> None:
    store = MemoryStore()
    with limits(ROW_GROUP_EVENTS=7):
        table = chunk.encode_events([None] * len(events), range(len(events)), events)
        (ref,) = stage_at(store, table, base=100)
    total = sum(map(len, events))
    wanted = data.draw(st.integers(0, total + 2))
    sizes = list(accumulate(map(len, events)))
    expected = next(((101 + i, n) for i, n in enumerate(sizes) if n >= wanted), None)
    found = chunk_search.offset_after(store, TABLE, ref if digest else without_digest(ref), wanted)
    assert found == (expected or (100 + len(events), total))


def row_groups_read(store: MemoryStore, search: Callable[[], object]) -> list[int]:
    """Return the row groups of which a search reads rows."""
    read: list[int] = []
    original = pq.ParquetFile.iter_batches

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        read.extend(args[1])
        return original(self, *args, **kwargs)

    with patch.object(pq.ParquetFile, "iter_batches", spy):
        search()
    return read


def test_searches_read_one_row_group_of_a_large_chunk() -> None:
    store = Counting()
    with limits(ROW_GROUP_EVENTS=10):
        (ref,) = stage_at(store, table_of(1_000), base=50)
    for row, groups in ((500, []), (503, [50]), (507, [50]), (999, [99]), (1, [0])):
        searches: list[Callable[[], object]] = [
            lambda: chunk_search.bytes_before(store, TABLE, ref, 50 + row),  # noqa: B023
        ]
        if groups:
            searches += [
                lambda: chunk_search.offset_after(store, TABLE, ref, 8 * row),  # noqa: B023
                lambda: chunk_search.first_at_or_after(store, TABLE, ref, NOW_US + row, 0),  # noqa: B023
            ]
        for search in searches:
            store.opened.clear()
            assert row_groups_read(store, search) == groups
            assert len(store.opened) == 1


def test_searches_of_an_earlier_versions_chunk_believe_no_statistics_and_no_sums() -> None:
    store = MemoryStore()
    with limits(ROW_GROUP_EVENTS=10):
        (ref,) = stage_at(store, table_of(40), base=50)
    old = without_digest(ref)
    searches: dict[str, Callable[[], object]] = {
        "bytes": lambda: chunk_search.bytes_before(store, TABLE, old, 75),
        "offset": lambda: chunk_search.offset_after(store, TABLE, old, 8 * 25),
        "time": lambda: chunk_search.first_at_or_after(store, TABLE, old, NOW_US + 25, 0),
    }
    read = {name: row_groups_read(store, search) for name, search in searches.items()}
    assert read == {"bytes": [2, 3], "offset": [0, 1, 2], "time": [0, 1, 2]}


def test_footer_is_read_once_and_only_as_long_as_it_is() -> None:
    store = MemoryStore()
    with limits(ROW_GROUP_EVENTS=10):
        (ref,) = stage_at(store, table_of(1_000, size=500))
    file = Ranges(store.get(f"{TABLE}/{ref.path}"))
    with patch.object(store, "open", lambda key: pa.PythonFile(file, mode="r")):
        chunk_search.bytes_before(store, TABLE, ref, 503)
    length = int(ref.footer.partition("-")[0])
    assert file.read_ranges[0] == (ref.size - length, length)
    assert all(start + size <= ref.size - length for start, size in file.read_ranges[1:])
    assert sum(size for _, size in file.read_ranges[1:]) < ref.size / 50


class Ranges(io.BytesIO):
    """A file that records its reads."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.read_ranges: list[tuple[int, int]] = []

    def read(self, size: int | None = -1) -> bytes:
        start, found = self.tell(), super().read(size)
        self.read_ranges.append((start, len(found)))
        return found


@pytest.mark.parametrize("groups", [1, 4])
def test_footer_of_several_row_groups_records_the_bytes_before_each(groups: int) -> None:
    with limits(ROW_GROUP_EVENTS=12 // groups):
        file = pq.ParquetFile(pa.BufferReader(writer.encode(table_of(12))))
    wanted = None if groups == 1 else {b"pravega.event_bytes": b"0,24,48,72"}
    assert file.metadata.metadata == wanted


def test_bytes_before_the_ends_of_a_chunk_reads_nothing() -> None:
    (ref,) = stage_at(MemoryStore(), table_of(3), base=10)
    assert chunk_search.bytes_before(Failing(), TABLE, ref, 10) == 70
    assert chunk_search.bytes_before(Failing(), TABLE, ref, 13) == 94
    with pytest.raises(InvalidInput, match="offset 14 is not a part of chunk"):
        chunk_search.bytes_before(Failing(), TABLE, ref, 14)


def test_events_of_a_batch_have_their_pointers() -> None:
    store = MemoryStore()
    (ref,) = stage_at(store, chunk.encode_events(["a", None], [1, -2], [b"x", b""]), base=5)
    (batch,) = reader.read(store, TABLE, ref, 5, 7)
    found = list(reader.events_of(batch, "scope/stream", 2, SEGMENT))
    assert [(e.data, e.routing_key, e.timestamp_us) for e in found] == [
        (b"x", "a", 1),
        (b"", None, -2),
    ]
    assert [str(e.pointer) for e in found] == ["scope/stream@2:3#1=5", "scope/stream@2:3#1=6"]


# ------------------------------------------------------------------------------------- neighbours


def test_delta_readers_see_the_same_events(tmp_path: Any) -> None:
    """A table of two chunks with a log written by hand, read by delta-rs and DuckDB."""
    store = LocalStore(str(tmp_path))
    with limits(CHUNK_EVENTS=200, ROW_GROUP_EVENTS=64):
        staged = writer.stage(store, "t", "v0", SEGMENT, table_of(300), name="x")
    partitions = ["segment_id", "base_offset"]
    kinds = dict.fromkeys(partitions, "long") | {"offset_delta": "integer"}
    kinds |= {"routing_key": "string", "timestamp": "timestamp", "event": "binary"}
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in kinds.items()
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = {
        "id": "0",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": partitions,
        "configuration": {},
        "createdTime": 0,
    }
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
    ]
    for staged_chunk, ref in zip(staged, refs_of(staged), strict=True):
        place = {"segment_id": str(SEGMENT), "base_offset": str(ref.base_offset)}
        actions.append(
            {
                "add": {
                    "path": ref.path,
                    "partitionValues": place,
                    "size": ref.size,
                    "modificationTime": 0,
                    "dataChange": True,
                    "stats": staged_chunk.stats(),
                }
            }
        )
    log = "\n".join(map(json.dumps, actions)).encode()
    store.put("t/_delta_log/00000000000000000000.json", log)

    table = deltalake.DeltaTable(f"{tmp_path}/t").to_pyarrow_table()
    offsets = np.add(table["base_offset"].to_numpy(), table["offset_delta"].to_numpy())
    found = table.append_column("offset", pa.array(offsets)).sort_by("offset")
    found = found.select(reader.BATCH_COLUMNS).cast(reader.BATCH_SCHEMA)
    assert found.to_pylist() == expected_rows(table_of(300))
    (extension,) = Path(str(files("duckdb_extension_delta"))).glob(
        "extensions/*/delta.duckdb_extension"
    )
    with duckdb.connect() as connection:
        connection.load_extension(str(extension))
        newest = connection.sql(
            f"SELECT base_offset + offset_delta, epoch_us(timestamp), event "
            f"FROM delta_scan('{tmp_path}/t') WHERE timestamp >= make_timestamp({NOW_US + 299})"
        )
        assert newest.fetchall() == [(299, NOW_US + 299, b"00000299")]


@pytest.mark.medium
def test_no_flipped_bit_of_a_footer_ends_the_process_or_changes_an_event() -> None:
    """In a process of its own, because pyarrow aborts at some footers of several row groups."""
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_flip_each_bit_of_footers)
    child.start()
    child.join(120)
    assert child.exitcode == 0


def _flip_each_bit_of_footers() -> None:
    for row_groups in (1, 3):
        store = MemoryStore()
        with limits(ROW_GROUP_EVENTS=12 // row_groups):
            (ref,) = stage_at(store, table_of(12))
        if row_groups == 1:  # readable without a digest, too
            _flip_each_bit(store, without_digest(ref))
        _flip_each_bit(store, ref)


def _flip_each_bit(store: MemoryStore, ref: ChunkRef) -> None:
    good = store.get(f"{TABLE}/{ref.path}")
    assert good is not None
    rows, refused = whole(store, ref), 0
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    for at in range(footer, len(good)):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[at] ^= 1 << bit
            store.put(f"{TABLE}/{ref.path}", bytes(damaged))
            try:
                assert whole(store, ref) == rows, (at, bit)
            except CorruptChunk:
                refused += 1
    assert refused > 1_000
    store.put(f"{TABLE}/{ref.path}", good)
