"""Runs in pypaimon's environment, which has nothing of this project: see worker.py."""

from __future__ import annotations

import datetime
import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pypaimon import CatalogFactory, Schema

_SCHEMA = pa.schema(
    {"routing_key": pa.string(), "timestamp": pa.timestamp("us", "UTC"), "event": pa.binary()}
)
_OPTIONS = {"file.format": "parquet", "file.compression": "zstd", "commit.max-retries": "10000"}

logging.disable(logging.WARNING)  # of each race that is lost, and tried again


def open_catalogue(warehouse: str) -> Any:
    return CatalogFactory.create({"warehouse": warehouse})


class Table:
    """A table that appends rows, each call in a commit of its own."""

    def __init__(self, warehouse: str, name: str) -> None:
        self.table = open_catalogue(warehouse).get_table(name)
        self._builder = self.table.new_batch_write_builder()

    def put(self, keys: list[str], events: list[bytes]) -> None:
        now = datetime.datetime.now(datetime.timezone.utc)
        self.put_rows(pa.table([keys, [now] * len(keys), events], schema=_SCHEMA))

    def put_rows(self, rows: pa.Table) -> None:
        write, commit = self._builder.new_write(), self._builder.new_commit()
        write.write_arrow(rows)
        commit.commit(write.prepare_commit())
        write.close()
        commit.close()

    def read(self, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        builder = self.table.new_read_builder()
        if columns:
            builder = builder.with_projection(columns)
        splits = builder.new_scan().plan().splits()
        yield from builder.new_read().to_arrow_batch_reader(splits)


def follow(warehouse: str, name: str) -> Iterator[bytes]:
    """Yield the events of a table, and those that come."""
    builder = Table(warehouse, name).table.new_stream_read_builder()
    builder.with_poll_interval_ms(1)
    read = builder.new_read()
    for plan in builder.new_streaming_scan().stream_sync():
        yield from read.to_arrow(plan.splits())["event"].to_pylist()


class _Answers:
    def __init__(self, warehouse: str) -> None:
        self._warehouse = warehouse
        self._catalogue = open_catalogue(warehouse)
        self._catalogue.create_database("bench", True)
        self._tables: dict[str, Table] = {}

    def version(self) -> str:
        return f"pyarrow {pa.__version__}"

    def create(self, table: str) -> None:
        schema = Schema.from_pyarrow_schema(_SCHEMA, options=_OPTIONS)
        self._catalogue.create_table(table, schema, False)
        self._tables[table] = Table(self._warehouse, table)

    def fill(self, table: str, folder: str) -> None:
        for path in sorted(Path(folder).glob("*.parquet")):
            self._tables[table].put_rows(pq.read_table(path).cast(_SCHEMA))

    def put(self, table: str, event: str) -> None:
        self._tables[table].put(["key"], [event.encode()])

    def puts(self, table: str, rows: int, calls: int, seconds: float) -> list[float]:
        """Return the milliseconds of each call that writes so many rows."""
        keys, events = [f"key-{n}" for n in range(rows)], [b"e" * 100] * rows
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < calls and (not times or time.perf_counter() < end):
            begun = time.perf_counter()
            self._tables[table].put(keys, events)
            times.append(1e3 * (time.perf_counter() - begun))
        return times

    def read(self, table: str) -> dict[str, float]:
        begun = time.perf_counter()
        rows = sum(batch.num_rows for batch in self._tables[table].read())
        return {"rows": rows, "seconds": time.perf_counter() - begun}

    def count(self, table: str) -> dict[str, float]:
        """Count all rows by key."""
        begun = time.perf_counter()
        rows = pa.Table.from_batches(self._tables[table].read(["routing_key"]))
        counts = rows.group_by("routing_key").aggregate([([], "count_all")])
        total = sum(counts["count_all"].to_pylist())
        return {"rows": total, "seconds": time.perf_counter() - begun}


def main() -> None:
    answers = _Answers(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = getattr(answers, question.pop("do"))(**question)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
