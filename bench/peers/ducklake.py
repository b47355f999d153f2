"""DuckLake: Parquet files whose log is a database, here a file of DuckDB."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import ClassVar

import duckdb

from bench.harness.dataset import EVENT
from bench.peers import environments, events
from bench.peers.delta_readers import duckdb_with
from bench.peers.library import Library
from bench.peers.peer import (
    A_WRITE_IS_A_COMMIT,
    Absent,
    Found,
    Limit,
    folder_bytes,
    latency,
    no_spark,
    rate,
    rows_then_aggregate,
)
from bench.peers.processes import WRITERS, threads

_INLINED = 1_000
_BY_SPARK = "Spark has no reader or writer of DuckLake"
_COLUMNS = "routing_key VARCHAR, timestamp TIMESTAMPTZ, event BLOB"


class DuckLake(Library):
    name = "DuckLake"
    acknowledged = (
        "DuckDB has fsynced its log, which holds small writes; files of larger ones are not"
    )
    caveats = (
        f"Writes of up to {_INLINED:,} rows stay in the catalogue (data inlining), which is a file "
        "of DuckDB and so belongs to one process: 16 writers are threads.",
    )
    cannot: ClassVar[Mapping[str, str]] = {
        "end_to_end": "a catalogue in a file of DuckDB belongs to one process: a reader in another "
        "cannot open it",
        "pipelined": A_WRITE_IS_A_COMMIT,
        **no_spark(_BY_SPARK),
        "to_delta": "its tables are not Delta's",
    }

    def start(self) -> None:
        extension = environments.ducklake()
        if extension is None:
            raise Absent("its extension was not fetched: python -m bench.peers.environments")
        self._root = self.place.folder / "ducklake"
        self._root.mkdir()
        self._numbers = count()
        self._lake = duckdb_with("ducklake", extension)
        self._lake.execute(
            f"ATTACH 'ducklake:{self._root}/catalogue.ducklake' AS lake "
            f"(DATA_PATH '{self._root}/data', DATA_INLINING_ROW_LIMIT {_INLINED})"
        )
        self._lake.execute("CALL lake.set_option('parquet_compression', 'zstd')")
        for setting in ("max_retry_count = 10000", "retry_wait_ms = 1", "retry_backoff = 1.0"):
            self._lake.execute(f"SET ducklake_{setting}")

    def stop(self) -> None:
        if "_lake" in self.__dict__:
            self._lake.close()

    def versions(self) -> str:
        return f"DuckDB and its extension ducklake {duckdb.__version__}"

    def fill(self) -> None:
        self._filled = self._create("filled")
        source = events.parquet(self.place)
        self._lake.execute(f"INSERT INTO {self._filled} FROM read_parquet('{source}/*.parquet')")

    def append(self, limit: Limit) -> Found:
        table = self._create("append")
        return latency(lambda: _insert(self._lake, table), limit)

    def writers(self, limit: Limit) -> Found:
        table = self._create("writers")
        connections = [self._lake.cursor() for _ in range(WRITERS)]
        try:
            return threads(lambda number: _insert(connections[number], table), limit)
        finally:
            for connection in connections:
                connection.close()

    def transaction(self, limit: Limit) -> Found:
        table = self._create("transactions")
        self._lake.register("hundred", events.hundred())
        return latency(lambda: self._lake.execute(f"INSERT INTO {table} FROM hundred"), limit)

    def catch_up(self, limit: Limit) -> Found:
        def read() -> None:
            found = self._lake.execute(f"FROM {self._filled}").to_arrow_reader(100_000)
            assert sum(batch.num_rows for batch in found) == self.place.rows

        return rate(self.place.rows, read)

    def single_rows(self, limit: Limit) -> Found:
        table = self._create("rows")

        def aggregate() -> int:
            query = f"SELECT count(*) FROM {table} GROUP BY routing_key"
            return sum(row[0] for row in self._lake.execute(query).fetchall())

        return rows_then_aggregate(lambda: _insert(self._lake, table), aggregate, limit, 0)

    def stored(self, limit: Limit) -> Found:
        files = folder_bytes(Path(self._root, "data/main", self._filled.removeprefix("lake.")))
        assert files > 0, "the table has no file"
        return {"bytes": files / self.place.rows}

    def _create(self, name: str) -> str:
        table = f"lake.{name}_{next(self._numbers)}"
        self._lake.execute(f"CREATE TABLE {table} ({_COLUMNS})")
        return table


def _insert(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    connection.execute(f"INSERT INTO {table} VALUES ('key', now(), ?)", [EVENT])
