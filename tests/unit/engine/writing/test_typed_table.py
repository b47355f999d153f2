"""Tables for typed streams: columns are checked and cut into batches, and never copied."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pravega_spark import StreamSchema
from pravega_spark.engine.chunks.format import format_of
from pravega_spark.engine.writing.encode import TypedTable, key_texts
from pravega_spark.errors import InvalidInput, SchemaMismatch
from pravega_spark.values.limits import WRITER_EVENT_BYTES

COLUMNS = format_of(StreamSchema.of(pa.schema([("n", pa.int64()), ("word", pa.string())])))


class Ignored:
    """Takes the positions of rows, of which these tests have none."""

    def add(self, positions: object, row: int, count: int) -> None:
        raise AssertionError(positions)


def table(rows: int) -> pa.Table:
    numbers = pa.array(range(rows), pa.int64())
    return pa.table({"n": numbers, "word": pa.array(["w" * (n % 3) for n in range(rows)])})


def test_rows_are_cut_into_batches_by_their_sizes() -> None:
    given = table(90)
    rows = TypedTable("s/t", given, COLUMNS, routing_key="word")
    most = 9 * (8 + 1 + WRITER_EVENT_BYTES)
    parts = list(rows.parts(most, 7_000, Ignored()))
    assert [part.count for part in parts] == [9] * 10
    assert sum(part.size_bytes for part in parts) == 90 * (8 + 1 + WRITER_EVENT_BYTES)
    found = pa.concat_tables([part.table() for part in parts])
    assert found.schema.equals(COLUMNS.events)
    assert found.select(["n", "word"]).equals(given)
    assert found.column("routing_key").equals(given.column("word"))
    assert set(found.column("timestamp").cast(pa.int64()).to_pylist()) == {7}


def test_columns_that_fit_share_the_memory_of_the_table() -> None:
    given = table(1_000)
    (part,) = TypedTable("s/t", given, COLUMNS).parts(1 << 20, 0, Ignored())
    for name in ("n", "word"):
        mine, theirs = part.table().column(name).chunk(0), given.column(name).chunk(0)
        assert mine.buffers()[-1].address == theirs.buffers()[-1].address


def test_no_row_is_a_table_without_a_part() -> None:
    empty = TypedTable("s/t", table(0), COLUMNS)
    assert (len(empty), empty.latest_us, list(empty.parts(1, 0, Ignored()))) == (0, None, [])


def test_misfits_name_stream_row_and_column() -> None:
    with pytest.raises(SchemaMismatch, match=r"write_table on stream s/t.*column 'm'"):
        TypedTable("s/t", pa.table({"m": [1]}), COLUMNS)
    with pytest.raises(SchemaMismatch, match=r"write_table on stream s/t.*column n"):
        TypedTable("s/t", pa.table({"n": ["x"]}), COLUMNS)
    with pytest.raises(InvalidInput, match=r"s/t.*longer than") as found:
        TypedTable("s/t", pa.table({"word": ["k", "x" * 70_000]}), COLUMNS, routing_key="word")
    assert "row 1" in str(found.value)
    with pytest.raises(InvalidInput, match="needs the times of the rows"):
        TypedTable("s/t", table(1), COLUMNS, needs_times=True)


@pytest.mark.parametrize(
    "kind",
    [pa.float64(), pa.binary(), pa.timestamp("us", "UTC"), pa.list_(pa.string())],
    ids=str,
)
def test_a_key_without_one_text_form_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match=r"stream s/t cannot be the column c.*no text form"):
        key_texts("s/t", "c", pa.chunked_array([pa.nulls(1, kind)]))


def test_what_has_no_form_in_arrow_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"stream s/t: a table or batch .* got a dict"):
        TypedTable("s/t", {"n": [1]}, COLUMNS)


@pytest.mark.parametrize("name", ["n", "routing_key"])
def test_a_column_that_is_there_twice_is_refused(name: str) -> None:
    twice = pa.table([pa.array(["1"])] * 2, names=[name] * 2)
    with pytest.raises(InvalidInput, match=rf"stream s/t: .*{name}"):
        TypedTable("s/t", twice, COLUMNS)
