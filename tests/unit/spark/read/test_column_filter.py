"""Spark's filters on typed columns: row groups without a wanted row are not read."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import datasource as sources

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.chunks import encoder
from pravega_spark.manager import StreamManager
from pravega_spark.spark.read.pushdown import PravegaFilteredReader, condition_of, expression_of
from tests.harness.spark_reading import batch_reader, rows

Row = dict[str, Any]
GROUP, GROUPS = 20, 10
START = datetime(2026, 3, 1, tzinfo=timezone.utc)
DAY = date(2026, 3, 1)
HOUR = timedelta(hours=1)
NAN = float("nan")
COLUMNS = pa.schema(
    [
        ("n", pa.int32()),
        ("word", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("speed", pa.float64()),
        ("ratio", pa.float32()),
        ("flag", pa.bool_()),
        ("blob", pa.binary()),
        ("plane", pa.struct([("tail", pa.string())])),
    ]
)


def row(number: int) -> Row:
    """Return a row; its values grow with its number, and every seventh one has nulls."""
    if number % 7 == 3:
        return {"n": number if number < 3 * GROUP else None}
    return {
        "n": number,
        "word": f"w{number:03d}é",
        "price": Decimal(number) / 4,
        "day": DAY + timedelta(days=number),
        "at": START + number * HOUR,
        "speed": number / 2,
        "ratio": NAN if number % GROUP == 9 else number / 4,
        "flag": number >= 5 * GROUP,
        "blob": b"%03d" % number,
        "plane": {"tail": f"N{number}"},
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A typed stream of one chunk with ten row groups."""
    root: Path = tmp_path_factory.mktemp("columns")
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(schema=COLUMNS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "ROW_GROUP_EVENTS", GROUP)
        with manager.create_writer("s/a") as writer:
            table = pa.Table.from_pylist([row(n) for n in range(GROUP * GROUPS)], COLUMNS)
            writer.write_table(table).result()
    return str(root)


@pytest.fixture
def groups_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that are decoded, as they are."""
    found: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def counted(self: Any, size: int, groups: list[int], *args: Any, **options: Any) -> Any:
        found.extend(groups)
        return iter_batches(self, size, groups, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    return found


def order(value: float) -> tuple[bool, float]:
    """Return a float's place in Spark's order."""
    return (True, 0.0) if math.isnan(value) else (False, value)


def has(column: str, condition: Callable[[Any], bool]) -> Callable[[Row], bool]:
    return lambda row: row[column] is not None and condition(row[column])


Not = sources.Not
CASES: dict[str, tuple[sources.Filter, Callable[[Row], bool], int]] = {
    "equal": (sources.EqualTo(("n",), 101), has("n", lambda v: v == 101), 1),
    "other case": (sources.EqualTo(("N",), 101), has("n", lambda v: v == 101), 1),
    "less": (sources.LessThan(("n",), 30), has("n", lambda v: v < 30), 2),
    "not less": (Not(sources.LessThan(("n",), 170)), has("n", lambda v: v >= 170), 2),
    "in": (sources.In(("n",), (5, 6, 190, 5_000)), has("n", lambda v: v in (5, 6, 190)), 2),
    "not in": (Not(sources.In(("n",), (5, 6))), has("n", lambda v: v not in (5, 6)), 10),
    "null-safe": (sources.EqualNullSafe(("n",), 101), has("n", lambda v: v == 101), 1),
    "not null-safe": (
        Not(sources.EqualNullSafe(("n",), 101)), lambda row: row["n"] != 101, 10,
    ),
    "null-safe null": (sources.EqualNullSafe(("n",), None), lambda row: row["n"] is None, 7),
    "null": (sources.IsNull(("n",)), lambda row: row["n"] is None, 7),
    "not null": (Not(sources.IsNull(("n",))), lambda row: row["n"] is not None, 10),
    "is not null": (sources.IsNotNull(("n",)), lambda row: row["n"] is not None, 10),
    "prefix": (
        sources.StringStartsWith(("word",), "w11"), has("word", lambda v: v.startswith("w11")), 1,
    ),
    "not prefix": (
        Not(sources.StringStartsWith(("word",), "w")), lambda row: False, 0,
    ),
    "suffix": (
        sources.StringEndsWith(("word",), "1é"), has("word", lambda v: v.endswith("1é")), 10,
    ),
    "infix": (sources.StringContains(("word",), "05"), has("word", lambda v: "05" in v), 10),
    "text": (sources.GreaterThan(("word",), "w19"), has("word", lambda v: v > "w19"), 1),
    "decimal": (
        sources.GreaterThanOrEqual(("price",), Decimal("47.25")),
        has("price", lambda v: v >= Decimal("47.25")), 1,
    ),
    "decimals": (
        sources.In(("price",), (Decimal("0.5"), Decimal(1))),
        has("price", lambda v: v in (Decimal("0.5"), Decimal(1))), 1,
    ),
    "date": (
        sources.LessThanOrEqual(("day",), DAY + timedelta(days=19)),
        has("day", lambda v: v <= DAY + timedelta(days=19)), 1,
    ),
    "time": (
        sources.GreaterThan(("at",), START + 160 * HOUR),
        has("at", lambda v: v > START + 160 * HOUR), 2,
    ),
    "float": (sources.GreaterThan(("speed",), 90.5), has("speed", lambda v: v > 90.5), 1),
    "not float": (
        Not(sources.LessThanOrEqual(("speed",), 90.5)), has("speed", lambda v: v > 90.5), 1,
    ),
    "zero": (sources.In(("speed",), (-0.0,)), has("speed", lambda v: v == 0), 1),
    "above all but NaN": (
        sources.GreaterThan(("ratio",), 40.0), has("ratio", lambda v: order(v) > order(40.0)), 10,
    ),
    "not above": (
        Not(sources.GreaterThan(("ratio",), 4.0)),
        has("ratio", lambda v: order(v) <= order(4.0)), 10,
    ),
    "not equal, NaN": (
        Not(sources.EqualTo(("ratio",), 4.0)), has("ratio", lambda v: order(v) != order(4.0)), 10,
    ),
    "flag": (sources.EqualTo(("flag",), True), has("flag", bool), 5),
    "blob": (sources.EqualTo(("blob",), b"007"), has("blob", lambda v: v == b"007"), 10),
    "time of the event": (
        sources.LessThan(("timestamp",), START), lambda row: row["timestamp"] < START, 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_pushed_filter_reads_the_row_groups_that_it_needs(
    root: str, groups_read: list[int], name: str
) -> None:
    one, condition, most = CASES[name]
    whole = batch_reader(root)
    everything = rows(whole, whole.partitions())
    assert len(everything) == GROUP * GROUPS
    assert len(groups_read) == GROUPS
    groups_read.clear()
    reader = batch_reader(root, pushfilters="true")
    assert isinstance(reader, PravegaFilteredReader)
    is_of_every_stream = name == "time of the event"
    assert list(reader.pushFilters([one])) == ([] if is_of_every_stream else [one])
    wanted = [row["offset"] for row in everything if condition(row)]
    assert [row["offset"] for row in rows(reader, reader.partitions())] == wanted
    assert len(groups_read) == most


UNKNOWN = [
    sources.EqualTo(("plane", "tail"), "N7"),
    sources.EqualTo(("plane",), {"tail": "N7"}),
    sources.EqualTo(("n",), 1 << 40),
    sources.EqualTo(("n",), None),
    sources.In(("n",), (1, None)),
    Not(sources.In(("n",), (1, None))),
    sources.EqualTo(("speed",), NAN),
    sources.LessThan(("price",), Decimal("0.001")),
]


@pytest.mark.parametrize("one", UNKNOWN, ids=str)
def test_a_filter_without_an_exact_form_is_left_to_spark_alone(
    root: str, one: sources.Filter
) -> None:
    reader = batch_reader(root, pushfilters="true")
    assert isinstance(reader, PravegaFilteredReader)
    assert list(reader.pushFilters([one])) == [one]
    assert len(rows(reader, reader.partitions())) == GROUP * GROUPS


def test_filters_of_a_read_hold_together_beside_those_of_the_log(
    root: str, groups_read: list[int]
) -> None:
    reader = batch_reader(root, pushfilters="true", columns="word,offset")
    assert isinstance(reader, PravegaFilteredReader)
    taken = sources.LessThan(("offset",), 150)
    left: list[sources.Filter] = [sources.GreaterThan(("word",), "w13"), UNKNOWN[0]]
    assert list(reader.pushFilters([taken, *left])) == left
    found = rows(reader, reader.partitions())
    assert [row["offset"] for row in found] == [n for n in range(130, 150) if n % 7 != 3]
    assert groups_read == [6, 7]


def test_a_prefix_ends_before_the_next_text_of_every_alphabet(
    tmp_path: Path, groups_read: list[int]
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(schema=pa.schema([("word", pa.string())])))
    last, high, low = chr(0x10FFFF), "\ud7ff", "\ue000"
    words = ["a", "b" + last, "b" + last + last, "c", high, high + "x", low, last, last + "a"]
    with manager.create_writer("s/a") as writer:
        writer.write_table(pa.table({"word": words})).result()
    for prefix in ["", *words]:
        reader = batch_reader(str(tmp_path), pushfilters="true")
        assert isinstance(reader, PravegaFilteredReader)
        list(reader.pushFilters([sources.StringStartsWith(("word",), prefix)]))
        found = [row["word"] for row in rows(reader, reader.partitions())]
        assert found == [word for word in words if word.startswith(prefix)]


def test_days_that_java_has_not_are_left_to_spark() -> None:
    """A date of 5 to 14 October 1582 comes as the 15th: neither is known by the filter."""
    fields = {field.name: field for field in COLUMNS}
    midnight = datetime(1582, 10, 15, tzinfo=timezone.utc)
    for name, value in (("day", midnight.date()), ("at", midnight)):
        for one in (sources.EqualTo((name,), value), sources.GreaterThan((name,), value)):
            assert expression_of([one], fields) is None
            assert expression_of([Not(one)], fields) is None
        assert expression_of([sources.In((name,), (value,))], fields) is None
        later = value + timedelta(days=40)
        assert expression_of([sources.EqualTo((name,), later)], fields) is not None
    sent = {"timestamp": "timestamp"}
    assert condition_of(sources.EqualTo(("timestamp",), midnight), sent) is None
    assert condition_of(sources.EqualTo(("timestamp",), START), sent) is not None
