"""Key-value tables in Spark: reads at versions, changes in order, and upserts that count once."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pravega_spark
from pravega_spark import TableInsert, TablePut
from pravega_spark.errors import ConditionalTableUpdate
from pravega_spark.key_value.configuration import KeyValueTableConfiguration
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.key_value.index import TableClock
from pravega_spark.key_value.key_value_table import KeyValueTable
from pravega_spark.manager import StreamManager
from pravega_spark.retention.run import RetentionOptions, run_retention
from pravega_spark.spark.key_value import changed_range, scan
from pravega_spark.spark.key_value import frame as key_value_frame
from pravega_spark.spark.key_value.columns import entry_schema
from pravega_spark.spark.key_value.settings import table_read_settings
from tests.harness.folded_tables import small_groups
from tests.harness.tiers import sized
from tests.spark.conftest import finish

NAME = "s/stock"
Read = Callable[..., DataFrame]


@pytest.fixture
def manager(root: str) -> StreamManager:
    return StreamManager(root)


@pytest.fixture
def table(manager: StreamManager) -> Callable[..., KeyValueTable]:
    def table(name: str = NAME, **configuration: Any) -> KeyValueTable:
        configuration.setdefault("key_type", "string")
        manager.create_key_value_table(name, KeyValueTableConfiguration(**configuration))
        return manager.key_value_table(name)

    return table


@pytest.fixture
def read(spark: SparkSession, root: str) -> Read:
    def read(name: str = NAME, **options: str) -> DataFrame:
        return spark.read.format("pravega_kvt").options(root=root, **options).load(name)

    return read


def folded(table: KeyValueTable, file_bytes: int = 1_024) -> None:
    """Fold into small files, so that a read has several of them."""
    into = folded_table(table._stream, table.configuration)
    into.file_bytes = file_bytes
    with small_groups(8):
        done = fold(table._stream, into, ttl_ms=table.configuration.ttl_ms)
    assert done.merge is None or done.merge.is_committed


def forget(checkpoint: Path, batch: int) -> None:
    """Leave a checkpoint as a query does that is killed after the sink's commit of a batch."""
    for name in (str(batch), f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink()


def by_key(frame: DataFrame) -> dict[Any, bytes]:
    rows = frame.select("key", "value").collect()
    found = {row.key: bytes(row.value) for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


@pytest.mark.versions(short=True)
def test_entries_are_exact_at_versions_over_folds(
    table: Callable[..., KeyValueTable], read: Read
) -> None:
    stock = table(partitions=3)
    dice, model = random.Random(5), dict[str, bytes]()
    versions = dict[int, dict[str, bytes]]()
    for step in range(6):
        for _ in range(120):
            key = f"k{dice.randrange(150):03}"
            if dice.random() < 0.3:
                stock.remove(key)
                model.pop(key, None)
            else:
                model[key] = f"{step}.{dice.random()}".encode()
                stock.put(key, model[key])
        stock.flush()
        versions[stock.at().version] = dict(model)
        if step in (1, 3):
            folded(stock)
    assert by_key(read()) == model
    for version, entries in versions.items():
        assert by_key(read(versionAsOf=str(version))) == entries
    row = read(low="k000").orderBy("key").first()
    assert row is not None
    entry = stock.get(row.key)
    assert entry is not None
    assert (str(entry.version), entry.timestamp_us) == (
        row.version,
        int(row.timestamp.timestamp() * 1_000_000 + 0.5),
    )
    some = {key: value for key, value in model.items() if "k040" <= key <= "k090"}
    assert by_key(read(low="k040", high="k090")) == some
    assert by_key(read(prefix="k01")) == {k: v for k, v in model.items() if k[:3] == "k01"}
    assert sorted(row.key for row in read(columns="key").collect()) == sorted(model)


def test_long_keys_with_secondary_parts_and_bytes_are_read_and_written(
    table: Callable[..., KeyValueTable], read: Read, spark: SparkSession, root: str
) -> None:
    pairs = table("s/pairs", key_type="long", secondary_key_length=2)
    blobs = table("s/blobs", key_type="bytes")
    assert read("s/pairs").schema.simpleString() == (
        "struct<key:bigint,secondary_key:binary,value:binary,timestamp:timestamp,version:string>"
    )
    assert read("s/pairs").collect() == []
    rows = [(k, bytes((0, s)), f"{k}.{s}".encode()) for k in (-3, 0, 7) for s in (0, 1)]
    frame = spark.createDataFrame(rows, "key bigint, secondary_key binary, value binary")
    frame.write.format("pravega_kvt").mode("append").option("root", root).save("s/pairs")
    entry = pairs.get(7, b"\x00\x01", fresh=True)
    assert entry is not None
    assert entry.value == b"7.1"
    folded(pairs)
    pairs.remove(0, b"\x00\x00").result()
    found = [(r.key, bytes(r.secondary_key), bytes(r.value)) for r in read("s/pairs").collect()]
    assert found == [row for row in rows if row[:2] != (0, b"\x00\x00")]
    keys = [b"\x00", b"\xff" * 8_000, b"a\x00b"]
    frame = spark.createDataFrame([(key, b"v") for key in keys], "key binary, value binary")
    frame.write.format("pravega_kvt").mode("append").option("root", root).save("s/blobs")
    assert [bytes(row.key) for row in read("s/blobs").collect()] == sorted(keys)
    assert [e.key for e in blobs.entries()] == sorted(keys)
    assert [bytes(row.key) for row in read("s/blobs", prefix="6100").collect()] == [b"a\x00b"]


@pytest.mark.versions(needs="delta")
def test_frame_of_the_folded_table_is_exact_and_shows_the_same_versions(
    table: Callable[..., KeyValueTable],
    read: Read,
    spark: SparkSession,
    root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stock = table(partitions=2)
    for n in range(60):
        stock.put(f"k{n:02}", f"old {n}".encode())
    stock.flush()
    assert by_key(pravega_spark.key_value_frame(spark, NAME, root=root)) == by_key(read())
    folded(stock)
    before = stock.at().version
    stock.remove("k07")
    stock.put("k08", b"new").result()
    stock.remove("k61")
    stock.put("k62", b"put twice")
    stock.put("k62", b"new").result()

    def same(**options: int) -> list[Any]:
        frame = pravega_spark.key_value_frame(spark, NAME, root=root, **options)
        found = sorted(frame.collect())
        pinned = {"versionAsOf": str(options["version"])} if options else {}
        assert found == sorted(read(**pinned).collect())
        return found

    newest = {row.key: bytes(row.value) for row in same()}
    assert len(newest) == 60
    assert (newest["k08"], newest["k62"]) == (b"new", b"new")
    assert len(same(version=before)) == 60
    monkeypatch.setattr(key_value_frame, "SCAN_CHANGED_BYTES", 0)  # as with many changes
    assert {row.key: bytes(row.value) for row in same()} == newest
    row = spark.read.format("pravega").options(root=root, metadata="KeyValueTables").load().first()
    assert row is not None
    assert (row.table, row.folded_entries) == ("stock", 60)
    assert 0 < row.folded_version <= before
    assert row.unfolded_changes == 5


@pytest.mark.long
@pytest.mark.parametrize(
    ("listed", "each", "scanned"),
    [(9, 2, 1 << 25), (0, 2, 1 << 25), (0, 0, 1 << 25), (0, 0, 0)][:: sized(2, 1)],
)
def test_condition_never_sees_a_key_that_is_not_there(
    table: Callable[..., KeyValueTable],
    spark: SparkSession,
    root: str,
    monkeypatch: pytest.MonkeyPatch,
    listed: int,
    each: int,
    scanned: int,
) -> None:
    monkeypatch.setattr(key_value_frame, "_LISTED_KEYS", listed)
    monkeypatch.setattr(changed_range, "_ROWS_EACH", each)
    monkeypatch.setattr(key_value_frame, "SCAN_CHANGED_BYTES", scanned)
    stock, least = table(key_type="long"), -(1 << 63)
    for n in (least, 7, 200, 300):
        stock.put(n, b"old")
    stock.flush()
    folded(stock)
    stock.remove(least).result()
    stock.put(300, b"new").result()
    frame = pravega_spark.key_value_frame(spark, NAME, root=root)
    found = frame.where("abs(key) > 100").collect()
    assert sorted((row.key, bytes(row.value)) for row in found) == [(200, b"old"), (300, b"new")]
    plan = frame.where("key = 200")._jdf.queryExecution().executedPlan().toString()
    assert ("EqualTo(key,200)" in plan) == bool(listed), "a few keys do not end the push-down"
    assert ("monotonically" in plan) == (not listed and not each), "nor do keys that fill a range"


RANGES = [("long", 2), ("string", 0), ("bytes", 2), ("long", 0), ("string", 2), ("bytes", 0)]


@pytest.mark.long
@pytest.mark.parametrize(("kind", "secondary"), RANGES[: sized(2, 6)])
def test_changes_that_fill_a_range_of_keys_are_not_looked_up(
    table: Callable[..., KeyValueTable],
    read: Read,
    spark: SparkSession,
    root: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    secondary: int,
) -> None:
    monkeypatch.setattr(key_value_frame, "_LISTED_KEYS", 0)
    stock = table(key_type=kind, secondary_key_length=secondary)
    primaries: dict[str, list[Any]] = {
        "long": [-(1 << 63), *range(40), (1 << 63) - 1],
        "string": [f"k{n:02}" for n in range(40)],
        "bytes": [b"\x00" * n for n in range(1, 40)],
    }
    parts = [(b"ab",), (b"\x00\x01",)] if secondary else [()]
    keys = [(primary, *part) for primary in primaries[kind] for part in parts]

    def put(some: list[Any], value: bytes) -> None:
        for primary, *part in some:
            stock.put(primary, value, *part)
        stock.flush()

    def plan_of_all() -> str:
        frame = pravega_spark.key_value_frame(spark, NAME, root=root)
        assert sorted(frame.collect()) == sorted(read().collect())
        return str(frame._jdf.queryExecution().executedPlan().toString())

    put(keys, b"old")
    folded(stock)
    put(keys[-11:], b"new")  # the first primary key in part, if there are two parts
    stock.remove(*keys[-6]).result()
    assert "Join" not in plan_of_all()
    put(keys[:1], b"new")
    assert "Join" in plan_of_all(), "the rows between do not pass through the driver"


def test_keys_of_all_types_are_left_out_of_the_folded_rows(
    table: Callable[..., KeyValueTable], spark: SparkSession, root: str
) -> None:
    for kind, keys in (
        ("long", [-(1 << 63), 0, (1 << 63) - 1]),
        ("string", ["a", "it's\\ \u00e9", "\n%"]),
        ("bytes", [b"\x00", b"'\xff", b"a"]),
    ):
        name = f"s/{kind}"
        of_kind = table(name, key_type=kind)
        for key in keys:
            of_kind.put(key, b"old")
        of_kind.flush()
        folded(of_kind)
        of_kind.remove(keys[0]).result()
        of_kind.put(keys[1], b"new").result()
        found = pravega_spark.key_value_frame(spark, name, root=root).collect()
        values = {bytes(r.key) if kind == "bytes" else r.key: bytes(r.value) for r in found}
        assert values == {keys[1]: b"new", keys[2]: b"old"}


def test_tasks_read_many_changes_themselves(
    table: Callable[..., KeyValueTable], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "SCAN_CHANGED_BYTES", 0)
    monkeypatch.setattr(scan, "FOLDED_FILE_BYTES", 4_096)
    stock = table(partitions=2)
    dice = random.Random(7)
    for n in range(300):
        stock.put(f"k{n:03}", dice.randbytes(200))
    stock.flush()
    folded(stock)
    for n in range(0, 310, 3):
        stock.remove(f"k{n:03}") if n % 2 else stock.put(f"k{n:03}", b"new")
    stock.flush()
    settings = table_read_settings({"root": root, "table": NAME, "low": "k010"})
    schema = entry_schema(stock.configuration)
    reader = scan.KeyValueTableReader(settings, stock.configuration, schema)
    planned = reader.partitions()
    assert 1 < len(planned) <= 8
    assert all(vars(part)["changes"] is None for part in planned)
    rows = [row for part in planned for batch in reader.read(part) for row in batch.to_pylist()]
    expected = [(e.key, e.value, str(e.version)) for e in stock.entries(low="k010")]
    assert [(row["key"], row["value"], row["version"]) for row in rows] == expected


@pytest.mark.versions
def test_rows_of_one_key_are_refused_unless_the_last_wins(
    table: Callable[..., KeyValueTable], spark: SparkSession, root: str
) -> None:
    stock = table(partitions=2)

    def write(frame: DataFrame, **options: str) -> None:
        writer = frame.write.format("pravega_kvt").mode("append")
        writer.options(root=root, **options).save(NAME)

    rows = [(f"k{n}", f"{n}") for n in range(20)]
    twice = spark.createDataFrame([*rows, ("k3", "last")], "key string, value string")
    for parts in (1, 2):
        with pytest.raises(Exception, match="two rows of one key, such as 'k3'"):
            write(twice.coalesce(1) if parts == 1 else twice)
    assert list(stock.keys()) == []
    write(twice, duplicateKeys="last", txnAppId="a", txnVersion="1")
    write(twice.limit(3), txnAppId="a", txnVersion="1")
    entry = stock.get("k3", fresh=True)
    assert entry is not None
    assert entry.value == b"last"
    assert len(list(stock.keys())) == 20
    for wrong, words in (
        ("CAST(1 AS BIGINT) AS key, 'v' AS value", "column key must be string .* cast it first"),
        ("'k' AS key", "the frame has no column 'value'"),
        ("'k' AS key, 'v' AS value, 1 AS more", "no columns more"),
        ("'k' AS key, CAST(NULL AS STRING) AS value", "column value is null in 1 of 1 rows"),
        ("'k' AS key, 'v' AS value, 'drop' AS operation", "column operation is 'drop'"),
        ("repeat('k', 9000) AS key, 'v' AS value", "a key of 9000 bytes"),
        ("'' AS key, 'v' AS value", "a key of 0 bytes"),
    ):
        with pytest.raises(Exception, match=words):
            write(spark.sql(f"SELECT {wrong}"))


@pytest.mark.versions
def test_changes_are_followed_and_applied_once_over_kills_and_scales(
    table: Callable[..., KeyValueTable],
    manager: StreamManager,
    spark: SparkSession,
    root: str,
    tmp_path: Path,
) -> None:
    stock, copy = table(partitions=2), table("s/copy")

    def follow() -> StreamingQuery:
        reader = spark.readStream.format("pravega_kvt").options(root=root, readChangeFeed="true")
        changes = reader.option("startingOffsets", "earliest").load(NAME)
        writer = changes.writeStream.format("pravega_kvt").trigger(availableNow=True)
        writer = writer.options(root=root, duplicateKeys="last")
        return writer.option("checkpointLocation", str(tmp_path / "cp")).start("s/copy")

    for step in range(3):
        for n in range(30):
            stock.put(f"k{n % 20}", f"{step}.{n}".encode())
        stock.remove(f"k{step}")
        stock.flush()
        if step == 1:
            table_changes = copy.at().version
            finish(follow())
            forget(tmp_path / "cp", 1)
            assert copy.at().version == table_changes + 1
        finish(follow())
        found = {e.key: e.value for e in copy.entries()}
        assert found == {e.key: e.value for e in stock.entries()}
    log = copy._stream.view()
    assert sum(offset for _, offset in log.tail) == 3 * 31, "a batch is there twice"
    manager.delete_key_value_table(NAME)
    table().put("k", b"v").result()
    with pytest.raises(Exception, match="was deleted and created again"):
        finish(follow())
    assert "k" not in list(copy.keys())


def test_slow_query_of_changes_keeps_its_place_by_a_group_and_is_told_how_without_one(
    table: Callable[..., KeyValueTable], read: Read, spark: SparkSession, root: str, tmp_path: Path
) -> None:
    stock = table(partitions=2)
    table("s/copy")

    def follow(checkpoint: str, **options: str) -> StreamingQuery:
        reader = spark.readStream.format("pravega_kvt").options(root=root, readChangeFeed="true")
        changes = reader.options(startingOffsets="earliest", **options).load(NAME)
        writer = changes.writeStream.format("pravega_kvt").trigger(availableNow=True)
        writer = writer.options(root=root, duplicateKeys="last")
        return writer.option("checkpointLocation", str(tmp_path / checkpoint)).start("s/copy")

    def change(step: int) -> None:
        for n in range(20):
            stock.put(f"k{n}", b"%d.%d" % (step, n))
        stock.remove(f"k{step}")
        stock.flush()

    def maintained() -> None:
        folded(stock)
        run_retention(stock._stream, RetentionOptions(root={}))

    change(0)
    finish(follow("held", readerGroup="s/held", readerGroupMode="subscriber"))
    finish(follow("lost"))
    change(1)
    maintained()
    assert stock.changelog.head() != stock.changelog.tail(), "the group did not hold the log"
    finish(follow("held", readerGroup="s/held", readerGroupMode="subscriber"))
    assert by_key(read("s/copy")) == by_key(read())
    finish(follow("held", readerGroup="s/held", readerGroupMode="subscriber"))  # publishes
    maintained()
    assert stock.changelog.head() == stock.changelog.tail()
    with pytest.raises(
        Exception, match=r"of table s/stock were folded.*readerGroupMode=subscriber"
    ):
        finish(follow("lost"))
    newest = stock.at().version
    with pytest.raises(Exception, match=f"does not exist yet: the newest one is {newest}"):
        read(versionAsOf=str(newest + 1)).collect()
    with pytest.raises(Exception, match="readerGroup=s/held is for readStream"):
        read(readChangeFeed="true", readerGroup="s/held").collect()


@pytest.mark.versions
def test_updates_of_an_aggregation_are_upserted_once(
    table: Callable[..., KeyValueTable], spark: SparkSession, root: str, tmp_path: Path
) -> None:
    stock = table("s/events", key_type="bytes")
    counts = table("s/counts")

    def count() -> None:
        changes = spark.readStream.format("pravega_kvt").options(root=root, changelog="true")
        frame = changes.option("startingOffsets", "earliest").load("s/events")
        grouped = frame.groupBy(frame.value.cast("string").alias("key")).count()
        values = grouped.selectExpr("key", "CAST(count AS STRING) AS value")
        query = values.writeStream.outputMode("update").trigger(availableNow=True)
        query = query.foreachBatch(pravega_spark.upsert_batches("s/counts", root=root))
        finish(query.option("checkpointLocation", str(tmp_path / "cp")).start())

    for step in range(2):
        for n in range(10):
            stock.put(bytes((step, n)), b"ab"[n % 2 : n % 2 + 1] if step else b"a")
        stock.flush()
        count()
        if step == 0:
            forget(tmp_path / "cp", 0)
            before = counts.at().version
            count()
            assert counts.at().version == before, "a batch was written twice"
    assert {e.key: e.value for e in counts.entries()} == {"a": b"15", "b": b"5"}


def test_expired_entries_are_hidden_from_now_and_not_from_older_versions(
    table: Callable[..., KeyValueTable], root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = table(ttl="1 hour")
    stock.put("folded", b"v").result()
    folded(stock)
    stock.put("changed", b"v").result()
    version = stock.at().version
    now_ms = TableClock.now_ms

    def keys(**options: str) -> list[str]:
        settings = table_read_settings({"root": root, "table": NAME, "columns": "key", **options})
        schema = entry_schema(stock.configuration, ["key"])
        reader = scan.KeyValueTableReader(settings, stock.configuration, schema)
        parts = reader.partitions()
        return [key for p in parts for b in reader.read(p) for key in b["key"].to_pylist()]

    assert keys() == ["changed", "folded"]
    monkeypatch.setattr(TableClock, "now_ms", lambda clock: now_ms(clock) + 3_599_000)
    assert keys() == ["changed", "folded"]
    monkeypatch.setattr(TableClock, "now_ms", lambda clock: now_ms(clock) + 3_800_000)
    assert keys() == []
    assert keys(versionAsOf=str(version)) == ["changed", "folded"]


def test_reads_beside_writers_and_folds_see_whole_updates(
    table: Callable[..., KeyValueTable], read: Read, spark: SparkSession, root: str
) -> None:
    bank = table("s/bank", key_type="long", partitions=3)
    bank.update([TableInsert(n, b"100") for n in range(20)])
    is_over = threading.Event()
    failures = list[BaseException]()

    def transfer() -> None:
        dice = random.Random(3)
        try:
            for turn in itertools.count():
                if is_over.is_set():
                    return
                one, two = bank.get_all(dice.sample(range(20), 2))
                assert one is not None
                assert two is not None
                some = [(one, int(one.value) - 1), (two, int(two.value) + 1)]
                with contextlib.suppress(ConditionalTableUpdate):
                    bank.update([TablePut(e.key, str(v), e.version) for e, v in some])
                if turn % 50 == 49:
                    folded(bank)
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=transfer)
    writer.start()
    try:
        for turn in range(4):
            frame = (
                pravega_spark.key_value_frame(spark, "s/bank", root=root)
                if turn % 2
                else read("s/bank")
            )
            found = by_key(frame)
            assert len(found) == 20
            assert sum(map(int, found.values())) == 2_000
    finally:
        is_over.set()
        writer.join()
    assert not failures
