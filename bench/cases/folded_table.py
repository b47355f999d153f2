"""The folded table of key-value tables: folds against a plain sort and write, and cold look-ups."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.distant_bucket import start_distant_bucket
from bench.harness.figures import Figure
from bench.harness.measure import percentile
from bench.harness.registry import benchmark
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.store.local import LocalStore
from pravega_spark.engine.stream.folded_record import FoldedRecord
from pravega_spark.key_value.change_sorter import ChangeSorter
from pravega_spark.key_value.folded_rows import ENTRY_SCHEMA
from pravega_spark.key_value.folded_table import FoldedTable
from pravega_spark.key_value.table_key import KeyType, TableKey
from pravega_spark.limits import FOLDED_GROUP_ROWS

_PATH = "bench/_kv_tables/folded/table"
_PART = 250_000
_VALUE_BYTES = 100
_random = np.random.default_rng(1)


def _key(number: int) -> bytes:
    return b"user-%012d" % number


def _changes(numbers: list[int], first: int) -> pa.Table:
    count = len(numbers)
    data = _random.integers(97, 123, count * _VALUE_BYTES, np.uint8).tobytes()
    values = [data[at : at + _VALUE_BYTES] for at in range(0, len(data), _VALUE_BYTES)]
    columns = (
        pa.array([_key(number) for number in numbers], pa.binary()),
        pa.array([b""] * count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(np.full(count, 1_700_000_000_000_000), ENTRY_SCHEMA.field("timestamp").type),
        pa.array(np.zeros(count, np.int64)),
        pa.array(np.arange(first, first + count)),
    )
    return pa.Table.from_arrays(columns, schema=ENTRY_SCHEMA)


def _table(store: Store) -> FoldedTable:
    return FoldedTable(store, _PATH, KeyType.BYTES, False)


def _fold(table: FoldedTable, parts: list[pa.Table]) -> float:
    began = time.perf_counter()
    with ChangeSorter() as sorter:
        for part in parts:
            sorter.add(table.layout.rows_of_entries(part))
        reflects = FoldedRecord(1, log_version=1, cut={0: 1})
        assert table.merge_rows(None, sorter.sorted(), reflects).is_committed
    return time.perf_counter() - began


def _plain(parts: list[pa.Table], path: Path) -> float:
    began = time.perf_counter()
    rows = pa.concat_tables(parts)
    order = pc.sort_indices(rows.column("key"))
    with pq.ParquetWriter(path, ENTRY_SCHEMA, compression="zstd", compression_level=1) as writer:
        for at in range(0, rows.num_rows, _PART):
            part = rows.take(order[at : at + _PART])
            writer.write_table(part, row_group_size=FOLDED_GROUP_ROWS)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return time.perf_counter() - began


def _cold_gets(store: Store, numbers: list[int]) -> tuple[list[float], int]:
    """Return the seconds of gets by new handles, and the most calls of one."""
    found, most = [], 0
    for number in numbers:
        counted = CountingStore(store)
        state = _table(counted).read()
        assert state is not None
        before, began = counted.calls["get"], time.perf_counter()
        assert state.get([TableKey(_key(number))])
        found.append(time.perf_counter() - began)
        most = max(most, counted.calls["get"] - before)
    return found, most


@benchmark()
def folded_tables(context: Context) -> Iterator[Figure]:
    """A first fold, one of a tenth of the keys, and cold gets on a disk and on S3."""
    keys = context.size(10_000_000, 100_000)
    order = _random.permutation(keys)
    parts = [_changes(order[at : at + _PART].tolist(), at) for at in range(0, keys, _PART)]
    folder = Path(context.root).parent / "folded"
    folder.mkdir()
    store = LocalStore(str(folder))
    ours, theirs = _fold(_table(store), parts), _plain(parts, folder / "plain.parquet")
    millions = keys / 1e6
    yield Figure(
        *(f"fold of {keys:,} new keys", millions / ours, "million/s"),
        *("pyarrow: the same sort and write", millions / theirs, theirs / ours),
    )
    cold, calls = _cold_gets(store, _random.integers(keys, size=21).tolist())
    get = Figure("cold get, local, p50", 1e3 * percentile(cold, 0.5), "ms", note=f"{calls} calls")
    yield get.within(at_most=10)
    table = _table(store)
    changes = _changes(sorted(_random.permutation(keys)[: keys // 10].tolist()), keys)
    state = table.read()
    assert state is not None
    before = state.record.size_bytes
    done = table.merge(state, changes, {0: 2}, 2, 1)
    amplification = done.bytes_written / (before / 10)
    yield Figure("bytes written for those of a tenth of the keys", amplification, "x")
    with start_distant_bucket() as bucket:
        remote = open_store(bucket.root, **bucket.options)
        _fold(_table(remote), parts[:4])
        found, most = _cold_gets(remote, order[: 4 * _PART].tolist()[:11])
        note = f"{most} calls; {bucket.server} and 30 ms a call"
        yield Figure("cold get, S3, p50", 1e3 * percentile(found, 0.5), "ms", note=note)
