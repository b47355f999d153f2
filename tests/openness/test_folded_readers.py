"""Other Delta readers of folded tables: one row a key at every version, and filters prune right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import compute as pc

from pravega_spark.engine.store.local import LocalStore
from pravega_spark.key_value.changes import Change
from pravega_spark.key_value.folded_files import folded_file
from pravega_spark.key_value.folded_table import FoldedTable
from pravega_spark.key_value.keys import KeyCodec, KeyType, TableKey
from tests.harness.delta_engines import connect_duckdb
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.folded_tables import after, entries, scanned, small_groups
from tests.harness.tiers import sized

NOW_US = 1_700_000_000_123_456
KEYS: dict[KeyType, list[Any]] = {
    KeyType.STRING: [f"key {n:04}" for n in range(300)] + ["ä" * 40, "z" * 60, "\U0010ffff" * 33],
    KeyType.LONG: [*range(-200, 100), -(2**63), 2**63 - 1],
    KeyType.BYTES: [b"%04d" % n for n in range(300)] + [b"\xff\x00", b"\x00"],
}


def written(folder: Path, key_type: KeyType) -> tuple[FoldedTable, dict[int, dict[Any, bytes]]]:
    """Return a table of several folds, and its rows by version."""
    codec = KeyCodec("s/t", key_type)
    table = FoldedTable(
        LocalStore(str(folder)), "t", key_type, False, FakeRuntime(), file_bytes=4_000
    )
    state: dict[TableKey, Change] = {}
    versions = {}
    with small_groups(20):
        for number in range(4):
            keys = KEYS[key_type][number % 2 :: 1 + number]
            value = None if number == 3 else b"v%d" % number
            changes = {codec.encode(k): Change(0, number, NOW_US, value) for k in keys}
            done = table.merge(table.read(), entries(changes), {0: number}, number, 1)
            state = after(state, changes)
            versions[done.version] = {codec.decode(k[0]): c.value or b"" for k, c in state.items()}
    return table, versions


@pytest.mark.medium
@pytest.mark.parametrize("key_type", KeyType)
def test_delta_rs_reads_every_version_and_filters_by_key(tmp_path: Path, key_type: KeyType) -> None:
    _, versions = written(tmp_path, key_type)
    for version, expected in versions.items():
        found = DeltaTable(tmp_path / "t", version=version)
        rows = found.to_pyarrow_table(columns=["key", "value"]).to_pylist()
        assert len(rows) == len(expected)
        assert {row["key"]: row["value"] for row in rows} == expected
    dataset = DeltaTable(tmp_path / "t").to_pyarrow_dataset()
    newest = versions[max(versions)]
    for key in KEYS[key_type][::4] + KEYS[key_type][-3:]:
        rows = dataset.to_table(filter=pc.field("key") == key).to_pylist()
        assert [row["value"] for row in rows] == ([newest[key]] if key in newest else []), key


@pytest.mark.medium
@pytest.mark.parametrize("key_type", KeyType)
def test_duckdb_reads_one_row_a_key_and_filters_by_key(tmp_path: Path, key_type: KeyType) -> None:
    _, versions = written(tmp_path, key_type)
    newest = versions[max(versions)]
    connection = connect_duckdb()
    source = f"delta_scan('{tmp_path}/t')"
    rows = connection.sql(f"SELECT key, value FROM {source}").fetchall()
    assert len(rows) == len(newest)
    assert dict(rows) == newest
    for key in KEYS[key_type][::20] + KEYS[key_type][-3:]:
        sql = f"SELECT value FROM {source} WHERE key = $1"
        found = connection.execute(sql, [key]).fetchall()
        assert [value for (value,) in found] == ([newest[key]] if key in newest else []), key


@pytest.mark.spark
@pytest.mark.long
def test_delta_spark_reads_every_version_and_filters_by_key(tmp_path: Path, spark: Any) -> None:
    for key_type in (KeyType.STRING, KeyType.LONG, KeyType.BYTES)[: sized(1, 3)]:
        _, versions = written(tmp_path / key_type.value, key_type)
        path = f"{tmp_path}/{key_type.value}/t"
        for version, expected in versions.items():
            frame = spark.read.format("delta").option("versionAsOf", version).load(path)
            rows = frame.select("key", "value").collect()
            assert len(rows) == len(expected)
        newest = versions[max(versions)]
        frame = spark.read.format("delta").load(path)
        for key in KEYS[key_type][-3:]:
            found = frame.where(frame.key == key).collect()
            assert len(found) == (key in newest), key


def test_files_of_the_log_are_the_ranges_that_a_reader_sees(tmp_path: Path) -> None:
    table, _ = written(tmp_path, KeyType.STRING)
    state = table.read()
    assert state is not None
    with table.log.files() as index:
        adds = list(index.all())
    assert sorted(f.first for f in state.files) == sorted(
        folded_file(add, table.layout, "").first for add in adds
    )
    assert all(file.first <= file.last for file in state.files)
    assert len(scanned(state)) == state.record.rows
