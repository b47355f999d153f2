"""Reads by an expression: only row groups that may have a wanted row are unpacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pravega_spark import StreamSchema
from pravega_spark.engine.chunks import encoder, reader
from pravega_spark.engine.chunks.chunk import ChunkRef, StagedChunk
from pravega_spark.engine.chunks.encoder import UnexpectedNaN
from pravega_spark.engine.chunks.format import EventFormat, format_of
from pravega_spark.engine.chunks.open_file import ChunkFile, open_chunk
from pravega_spark.engine.chunks.reader import WhereExpression, read_filtered
from pravega_spark.engine.chunks.writer import ChunkWriter, stage
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.errors import InvalidInput
from pravega_spark.values.segments import SegmentRange

TABLE = "s/t/events"
FORMAT = format_of(
    StreamSchema.of(
        pa.schema([("n", pa.int64()), ("word", pa.string()), ("list", pa.list_(pa.int64()))])
    )
)
GROUP = 100


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr(encoder, "ROW_GROUP_EVENTS", GROUP)
    return MemoryStore()


def staged(store: MemoryStore, rows: int, base: int = 0, columns: EventFormat = FORMAT) -> ChunkRef:
    numbers = range(base, base + rows)
    every = {
        "n": pa.array(numbers, pa.int64()),
        "word": pa.array([f"w{n:04d}" for n in numbers]),
        "list": pa.array([[n] for n in numbers], pa.list_(pa.int64())),
    }
    arrays = [
        pa.nulls(rows, pa.string()),
        pa.array(numbers, pa.int64()).view(pa.timestamp("us", "UTC")),
        *(every[name] for name in columns.payload),
    ]
    events = pa.Table.from_arrays(arrays, schema=columns.events)
    (chunk,) = stage(store, TABLE, "v0", 0, events, name=f"c{base}")
    return ref_of(chunk, base)


def ref_of(chunk: StagedChunk, base: int = 0) -> ChunkRef:
    return ChunkRef(
        chunk.path, 0, base, chunk.rows, chunk.size, chunk.event_bytes, 0,
        chunk.min_timestamp_us, chunk.max_timestamp_us, chunk.footer,
    )  # fmt: skip


def read(
    store: MemoryStore, refs: list[ChunkRef], where: Any, start: int = 0, end: int | None = None
) -> tuple[list[int], int]:
    """Return the numbers of the wanted rows, and how many rows were unpacked for them."""
    rng = SegmentRange("s/t", 1, 0, start, refs[-1].end if end is None else end)
    wanted = WhereExpression("s/t", where, FORMAT)
    found, unpacked, at = list[int](), 0, start
    for last, batch in read_filtered(store, TABLE, refs, rng, wanted, columns=["n"]):
        assert last >= at
        at = last
        if batch is not None:
            unpacked += batch.num_rows
            found += wanted.of(batch, ["n"]).column("n").to_pylist()
    assert at == rng.end
    return found, unpacked


@pytest.mark.parametrize(
    ("where", "numbers", "unpacked"),
    [
        (pc.field("n") >= 950, range(950, 1_000), 100),
        (pc.field("word") == "w0105", [105], 100),
        (pc.field("timestamp") < pa.scalar(3, pa.timestamp("us", "UTC")), range(3), 100),
        ((pc.field("n") > 990) & (pc.field("word") < "w0100"), [], 0),
        (pc.field("n").is_null(), [], 0),
        (pc.list_value_length(pc.field("list")) > 1, [], 1_000),
        (pc.field("offset") == 7, [7], 100),
    ],
)
def test_row_groups_without_a_wanted_row_are_not_unpacked(
    store: MemoryStore, where: Any, numbers: Any, unpacked: int
) -> None:
    assert read(store, [staged(store, 1_000)], where) == ([*numbers], unpacked)


def test_a_part_of_a_range_is_read_over_chunks(store: MemoryStore) -> None:
    refs = [staged(store, 300), staged(store, 300, 300)]
    wanted = [n for n in range(250, 351) if n != 300]
    assert read(store, refs, pc.field("n") != 300, 250, 351)[0] == wanted


@pytest.mark.parametrize("ahead", [None, SYSTEM])
def test_small_chunks_of_a_remote_store_come_many_at_a_time_also_ahead(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, ahead: Runtime | None
) -> None:
    refs = [staged(store, 30, 30 * number) for number in range(9)]
    asked: list[int] = []
    get_many = store.get_many

    def counted(keys: Sequence[str]) -> list[bytes | None]:
        asked.append(len(keys))
        return get_many(keys)

    monkeypatch.setattr(store, "get_many", counted)
    monkeypatch.setattr(store, "open", None)
    monkeypatch.setattr(store, "is_local", False)
    monkeypatch.setattr(reader, "READ_BATCH_EVENTS", 100)
    wanted = WhereExpression("s/t", pc.bit_wise_and(pc.field("n"), 1) == 0, FORMAT)
    rng = SegmentRange("s/t", 1, 0, 40, 250)
    parts = read_filtered(store, TABLE, refs, rng, wanted, columns=["n"], ahead=ahead)
    found = [n for _, batch in parts if batch for n in wanted.of(batch, ["n"])["n"].to_pylist()]
    assert found == [*range(40, 250, 2)]
    assert asked == ([8] if ahead is None else [3, 3, 2])


def test_a_chunk_of_an_older_schema_has_null_for_the_expression(store: MemoryStore) -> None:
    older = format_of(StreamSchema.of(pa.schema([("n", pa.int64())])))
    refs = [staged(store, 150, columns=older), staged(store, 50, 150)]
    assert read(store, refs, pc.field("word").is_null())[0] == [*range(150)]
    assert read(store, refs, pc.field("word") == "w0160")[0] == [160]


def test_the_bounds_of_a_footer_that_was_not_checked_count_for_nothing(store: MemoryStore) -> None:
    ref = staged(store, 200)
    unchecked = ChunkRef(*(getattr(ref, name) for name in ref.__slots__[:-2]))
    with open_chunk(store, TABLE, unchecked) as chunk:
        assert isinstance(chunk, ChunkFile)
        assert chunk.groups_with(pc.field("n") > 1_000, FORMAT.batch) == {0, 1}
    with open_chunk(store, TABLE, ref) as chunk:
        assert chunk.groups_with(pc.field("n") > 1_000, FORMAT.batch) == set()


def test_the_columns_of_an_expression_are_known() -> None:
    where = (pc.field("n") > 1) | pc.field("word").is_valid()
    assert WhereExpression("s/t", where, FORMAT).needed == ("n", "word")


@pytest.mark.parametrize("where", [pc.field("m") > 1, pc.field("n") > "x", "n > 1", True])
def test_what_is_no_expression_of_these_columns_is_refused(where: Any) -> None:
    with pytest.raises(InvalidInput, match=r"where of a read of stream s/t"):
        WhereExpression("s/t", where, FORMAT)


NAN = float("nan")
FLOATS = format_of(StreamSchema.of(pa.schema([("speed", pa.float64()), ("n", pa.int32())])))


def measured(speeds: list[float | None]) -> pa.Table:
    count = len(speeds)
    times = pa.array(range(count), pa.int64()).view(pa.timestamp("us", "UTC"))
    numbers = pa.array([None if n % 2 else n for n in range(count)], pa.int32())
    arrays = [pa.nulls(count, pa.string()), times, pa.array(speeds, pa.float64()), numbers]
    return pa.Table.from_arrays(arrays, schema=FLOATS.events)


def test_a_column_with_nan_has_no_bounds_in_its_file_and_loses_no_row(store: MemoryStore) -> None:
    above = ~(pc.field("speed") <= 500)
    cases: list[tuple[list[float | None], set[int]]] = [
        ([*map(float, range(300))], set()),
        ([1.0, None, NAN] * 100, {0, 1, 2}),
    ]
    for speeds, groups in cases:
        (chunk,) = stage(store, TABLE, "v0", 0, measured(speeds), name=f"f{len(groups)}")
        ref = ref_of(chunk)
        with open_chunk(store, TABLE, ref) as file:
            assert file.groups_with(above, FLOATS.batch) == groups
            assert file.groups_with(pc.field("n") > 500, FLOATS.batch) == set(), "nulls are no NaN"


def test_a_chunk_that_is_written_in_parts_says_where_nan_was_not_expected(
    store: MemoryStore,
) -> None:
    def write(unbounded: frozenset[str]) -> ChunkRef:
        with ChunkWriter(
            store, TABLE, "v0", 0, name="parts", columns=FLOATS.events, unbounded=unbounded
        ) as writer:
            for speeds in ([1.0] * GROUP, [NAN] * GROUP, [2.0]):
                writer.write(measured([*speeds]))
            return ref_of(writer.close())

    with pytest.raises(UnexpectedNaN) as found:
        write(frozenset())
    assert found.value.columns == {"speed"}
    with open_chunk(store, TABLE, write(found.value.columns)) as file:
        assert file.groups_with(pc.field("speed") > 500, FLOATS.batch) == {0, 1, 2}
