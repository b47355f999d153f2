"""The folded table of key-value tables: folds against a plain sort and write, and cold gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.harness.context import SCOPE, Context
from bench.harness.distant_bucket import CALL_SECONDS, start_distant_bucket
from bench.harness.figures import Figure
from bench.harness.measure import percentile
from bench.harness.page_cache import forget_pages
from bench.harness.registry import benchmark
from pravega_spark import KeyValueTable, KeyValueTableConfiguration, StreamManager
from pravega_spark.key_value.folded_record import FoldedRecord
from pravega_spark.key_value.folded_table import FoldedTable, folded_table
from pravega_spark.key_value.rows import ENTRY_SCHEMA, ChangeSorter
from pravega_spark.values.limits import FOLDED_GROUP_ROWS

_NAME = f"{SCOPE}/folded"
_PART = 250_000
_VALUE_BYTES = 100
_GETS = 21
_random = np.random.default_rng(1)
_READER = """
import json, sys, time
from pravega_spark import StreamManager

root, options, name, keys = json.loads(sys.argv[1])
table = StreamManager(root, storage_options=options).key_value_table(name)
assert table.get(b"absent") is None  # opens both logs, and reads no row
print("open", flush=True)
for line in sys.stdin:
    begun = time.perf_counter()
    assert table.get(line.strip().encode()) is not None
    print(time.perf_counter() - begun, flush=True)
"""
"""A process that opens the table, and then gets one key after the other."""


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


def _create(manager: StreamManager) -> KeyValueTable:
    """Create the table of keys of bytes, which asks for changes of others once an hour."""
    manager.create_scope(SCOPE)
    manager.create_key_value_table(_NAME, KeyValueTableConfiguration(staleness="1 hour"))
    return manager.key_value_table(_NAME)


def _folded(table: KeyValueTable) -> FoldedTable:
    return folded_table(table._stream, table.configuration)


def _fold(table: KeyValueTable, parts: list[pa.Table]) -> float:
    """Fold rows as if the change log had held them: it is empty, and so is what is not folded."""
    began = time.perf_counter()
    view, folded = table._stream.view(), _folded(table)
    with ChangeSorter() as sorter:
        for part in parts:
            sorter.add(folded.layout.rows_of_entries(part))
        reflects = FoldedRecord(view.life, log_version=view.version, cut=view.tail.positions)
        assert folded.merge_rows(None, sorter.sorted(), reflects).is_committed
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


def _cold_gets(root: str, options: dict[str, Any], keys: int, calls: Any) -> list[float]:
    """Return the seconds of gets by a new process, each of a file that it has not read yet.

    ``calls`` is called before the first get, and after each.
    """
    given = json.dumps([root, options, _NAME, keys])
    command = [sys.executable, "-c", _READER, given]
    found = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        calls()
        for number in range(_GETS):
            process.stdin.write(f"{_key(number * keys // _GETS).decode()}\n")
            process.stdin.flush()
            found.append(float(process.stdout.readline()))
            calls()
        process.stdin.close()
    return found


@benchmark()
def folded_tables(context: Context) -> Iterator[Figure]:
    """A first fold, and one of a tenth of the keys, against a plain sort and write."""
    keys = context.size(10_000_000, 100_000)
    order = _random.permutation(keys)
    parts = [_changes(order[at : at + _PART].tolist(), at) for at in range(0, keys, _PART)]
    table = _create(context.manager)
    ours, theirs = _fold(table, parts), _plain(parts, context.folder / "plain.parquet")
    del parts
    millions = keys / 1e6
    yield Figure(
        *(f"fold of {keys:,} new keys", millions / ours, "million/s"),
        *("pyarrow: the same sort and write", millions / theirs, theirs / ours),
    )
    yield _local_gets(context, keys)
    changes = _changes(sorted(_random.permutation(keys)[: keys // 10].tolist()), keys)
    state = _folded(table).read()
    assert state is not None
    before = state.record.size_bytes
    done = _folded(table).merge(state, changes, {0: 2}, 2, 1)
    amplification = done.bytes_written / (before / 10)
    yield Figure("bytes written for those of a tenth of the keys", amplification, "x")


def _local_gets(context: Context, keys: int) -> Figure:
    """Get keys whose files are not in the page cache."""
    forget_pages(context.folder)
    cold = _cold_gets(context.root, {}, keys, lambda: None)
    return Figure(
        f"get of a cold key of {keys:,}, local, p50",
        1e3 * percentile(cold, 0.5),
        "ms",
        note=f"worst of {_GETS} {1e3 * max(cold):.1f} ms; nothing is in the page cache, "
        "the handle is open, and what others changed was asked for within the staleness",
        limited_by="two reads of the disk, and a row group of 4,096 rows that is decoded",
    ).within(at_most=10)


@benchmark()
def cold_gets_from_s3(context: Context) -> Iterator[Figure]:
    """Gets of keys by a process that has the table open and has read none of its files."""
    keys = context.size(1_000_000, 50_000)
    parts = [_changes(list(range(at, at + _PART)), at) for at in range(0, keys, _PART)]
    with start_distant_bucket() as bucket:
        table = _create(StreamManager(bucket.root, storage_options=bucket.options))
        _folded(table).file_bytes = context.size(4, 1) << 20  # so that each get needs another file
        _fold(table, parts)
        seen: list[int] = []
        times = _cold_gets(
            bucket.root, bucket.options, keys, lambda: seen.append(bucket.endpoint.calls().total())
        )
    note = f"{bucket.server}, {1e3 * CALL_SECONDS:.0f} ms a call; p50 of the time "
    note += f"{1e3 * percentile(times, 0.5):.0f} ms; {sum(seen[1:]) / _GETS:.2f} calls on average; "
    note += "the handle is open, and what others changed was asked for within the staleness"
    name = f"get of a cold key of {keys:,}, S3: calls of the worst of {_GETS}"
    yield Figure(name, max(seen[1:]), "calls", note=note, limited_by="footer and row group").within(
        at_most=2
    )
