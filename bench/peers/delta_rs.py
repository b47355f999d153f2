"""delta-rs: a Delta table that Python writes and reads without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import ClassVar

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake import __version__ as version

from bench.harness.dataset import EVENT
from bench.peers import delta_readers, events
from bench.peers.library import Library
from bench.peers.peer import (
    A_WRITE_IS_A_COMMIT,
    Found,
    Limit,
    folder_bytes,
    latency,
    rate,
    rows_then_aggregate,
)
from bench.peers.processes import follow, writers

_BY_DELTA_SPARK = "Spark reads and writes the same table by Delta Spark"
_READER = """
import json, sys, time
import pyarrow.parquet as pq
from deltalake import DeltaTable

path, _, count, _ = json.loads(sys.argv[1])
table, found, known = DeltaTable(path), [], set()
while len(found) < count:
    table.update_incremental()
    for file in sorted(set(table.file_uris()) - known):
        known.add(file)
        for event in pq.read_table(file, columns=["event"])["event"].to_pylist():
            found.append((int(event[:20]), time.monotonic_ns()))
        if len(found) == 1:
            print("ready", flush=True)
    time.sleep(0.001)
print(json.dumps(found))
"""
_WRITER = """
from bench.peers.delta_rs import RETRIES, ZSTD
from bench.peers.events import one
from deltalake import DeltaTable, write_deltalake
table = DeltaTable(arguments[0])
given = {"mode": "append", "commit_properties": RETRIES, "writer_properties": ZSTD}
def write(event):
    write_deltalake(table, one(event), **given)
"""
RETRIES = CommitProperties(max_commit_retries=10_000)
"""Without them writers beside each other fail after 15 lost races."""
ZSTD = WriterProperties(compression="ZSTD")
"""As all others compress; the default is Snappy."""


class DeltaRs(Library):
    name = "delta-rs"
    acknowledged = "the commit's file is there; nothing is fsynced"
    caveats = (
        "A table, not a stream: the order of rows is by commit, and a reader at the tail polls the "
        "log each millisecond.",
        "16 writers retry up to 10,000 times.",
    )
    cannot: ClassVar[Mapping[str, str]] = {
        "pipelined": A_WRITE_IS_A_COMMIT,
        "spark_write": _BY_DELTA_SPARK,
        "spark_read": _BY_DELTA_SPARK,
        "backlog": _BY_DELTA_SPARK,
        "micro_batch": _BY_DELTA_SPARK,
    }

    def start(self) -> None:
        self._root = self.place.folder / "delta-rs"
        self._numbers = count()

    def versions(self) -> str:
        return f"deltalake {version}"

    def fill(self) -> None:
        self._filled = str(self._root / "filled")
        for block in events.blocks(self.place):
            write_deltalake(self._filled, block, mode="append", writer_properties=ZSTD)

    def append(self, limit: Limit) -> Found:
        return latency(self._appender(lambda: events.one(EVENT))[1], limit)

    def end_to_end(self, limit: Limit) -> Found:
        table = self._create("tail")

        def write(event: bytes) -> None:
            write_deltalake(table, events.one(event), mode="append", writer_properties=ZSTD)

        return follow(_READER, table.table_uri, "", write, limit)

    def writers(self, limit: Limit) -> Found:
        return writers(_WRITER, [self._create("writers").table_uri], limit)

    def transaction(self, limit: Limit) -> Found:
        return latency(self._appender(events.hundred)[1], limit)

    def catch_up(self, limit: Limit) -> Found:
        def read() -> None:
            found = DeltaTable(self._filled).to_pyarrow_dataset().to_batches()
            assert sum(batch.num_rows for batch in found) == self.place.rows

        return rate(self.place.rows, read)

    def single_rows(self, limit: Limit) -> Found:
        table, append = self._appender(lambda: events.one(EVENT))

        def aggregate() -> int:
            dataset: ds.Dataset = DeltaTable(table.table_uri).to_pyarrow_dataset()
            return events.by_key(dataset.to_table(columns=["routing_key"]))

        return rows_then_aggregate(append, aggregate, limit, 0)

    def stored(self, limit: Limit) -> Found:
        return {"bytes": folder_bytes(self._filled) / self.place.rows}

    def to_delta(self, limit: Limit) -> Found:
        table = self._create("to-delta")
        return delta_readers.delays(
            self.place,
            table.table_uri.removeprefix("file://"),
            lambda event: write_deltalake(
                table, events.one(event), mode="append", writer_properties=ZSTD
            ),
            limit,
        )

    def _create(self, name: str) -> DeltaTable:
        path = str(self._root / f"{name}-{next(self._numbers)}")
        return DeltaTable.create(path, events.hundred().schema)

    def _appender(self, rows: Callable[[], pa.Table]) -> tuple[DeltaTable, Callable[[], None]]:
        table = self._create("appended")
        return table, lambda: write_deltalake(table, rows(), mode="append", writer_properties=ZSTD)
