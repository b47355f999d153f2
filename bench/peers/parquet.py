"""Plain Parquet files, fsynced: the floor. There is no log, no order and no transaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.dataset as ds

from bench.harness.dataset import EVENT
from bench.harness.floor import put_durably
from bench.peers import events, spark
from bench.peers.library import Library
from bench.peers.peer import Found, Limit, folder_bytes, latency, rate, rows_then_aggregate
from bench.peers.processes import follow, writers

_BATCH = 131_072
_COLUMNS = "routing_key string, timestamp timestamp, event binary"
_READER = """
import json, os, sys, time
import pyarrow.parquet as pq


folder, _, count, _ = json.loads(sys.argv[1])
found, known = [], set()
while len(found) < count:
    for name in sorted(set(os.listdir(folder)) - known):
        known.add(name)
        event = pq.read_table(f"{folder}/{name}", columns=["event"])["event"][0].as_py()
        found.append((int(event[:20]), time.monotonic_ns()))
        if len(found) == 1:
            print("ready", flush=True)
    time.sleep(0.001)
print(json.dumps(found))
"""
_WRITER = """
import itertools
from bench.harness.floor import put_durably
from bench.peers.events import encoded, one
folder, numbers = arguments[0], itertools.count()
def write(event):
    put_durably(folder, f"{key}-{next(numbers)}", encoded(one(event)))
"""


class PlainParquet(Library):
    name = "Parquet"
    acknowledged = "file and folder are fsynced (Spark's are not)"
    caveats = ("The floor: files without a log, an order, or a reader's position.",)
    cannot: ClassVar[Mapping[str, str]] = {"to_delta": "a folder of files is not a Delta table"}

    def start(self) -> None:
        self._root = self.place.folder / "plain-parquet"
        self._numbers = count()
        self._root.mkdir()

    def versions(self) -> str:
        return f"pyarrow {pa.__version__}"

    def fill(self) -> None:
        folder = self._folder("filled")
        for number, block in enumerate(events.blocks(self.place)):
            put_durably(folder, f"{number:05d}.parquet", events.encoded(block))
        self._filled = folder

    def append(self, limit: Limit) -> Found:
        return latency(self._putter(lambda: events.one(EVENT)), limit)

    def end_to_end(self, limit: Limit) -> Found:
        folder, numbers = self._folder("tail"), count()

        def write(event: bytes) -> None:
            put_durably(folder, f"{next(numbers):08d}", events.encoded(events.one(event)))

        return follow(_READER, folder, "", write, limit)

    def pipelined(self, limit: Limit) -> Found:
        folder = self._folder("pipelined")
        keys, values = events.pool()

        def write() -> None:
            held: tuple[list[str], list[bytes]] = ([], [])
            for number in range(limit.calls):
                held[0].append(keys[number % len(keys)])
                held[1].append(values[number % len(keys)])
                if len(held[0]) == _BATCH or number == limit.calls - 1:
                    rows = pa.table(
                        [held[0], [events.TIME] * len(held[0]), held[1]], schema=events.SCHEMA
                    )
                    put_durably(folder, f"{number:08d}", events.encoded(rows))
                    held = ([], [])

        return rate(limit.calls, write)

    def writers(self, limit: Limit) -> Found:
        return writers(_WRITER, [self._folder("writers")], limit)

    def transaction(self, limit: Limit) -> Found:
        return latency(self._putter(events.hundred), limit)

    def catch_up(self, limit: Limit) -> Found:
        def read() -> None:
            found = ds.dataset(self._filled, format="parquet").to_batches()
            assert sum(batch.num_rows for batch in found) == self.place.rows

        return rate(self.place.rows, read)

    def single_rows(self, limit: Limit) -> Found:
        folder = self._folder("rows")
        put = self._putter(lambda: events.one(EVENT), folder)

        def aggregate() -> int:
            dataset = ds.dataset(folder, format="parquet")
            return events.by_key(dataset.to_table(columns=["routing_key"]))

        return rows_then_aggregate(put, aggregate, limit, 0)

    def stored(self, limit: Limit) -> Found:
        return {"bytes": folder_bytes(self._filled) / self.place.rows}

    def spark_write(self, limit: Limit) -> Found:
        path = self._folder("spark")
        return spark.write(self.place, lambda frame: self._save(frame, path))

    def spark_read(self, limit: Limit) -> Found:
        return spark.read(self.place, self.place.context.spark.read.parquet(self._filled))

    def backlog(self, limit: Limit) -> Found:
        return spark.backlog(self.place, self._stream(self._filled, 1_000))

    def micro_batch(self, limit: Limit) -> Found:
        source = self._folder("batches")
        for number in range(limit.calls):
            put_durably(source, f"{number:05d}.parquet", events.encoded(events.hundred(number)))
        target = self._folder("copied")
        return spark.micro_batches(
            self.place,
            self._stream(source, 1),
            lambda writer: writer.format("parquet").option("path", target),
            limit,
        )

    def _stream(self, folder: str, files_per_batch: int) -> Any:
        reader = self.place.context.spark.readStream.option("maxFilesPerTrigger", files_per_batch)
        return reader.schema(_COLUMNS).parquet(folder)

    def _save(self, frame: Any, path: str) -> None:
        frame.write.mode("overwrite").option("compression", "zstd").parquet(path)

    def _folder(self, name: str) -> str:
        folder = self._root / f"{name}-{next(self._numbers)}"
        os.makedirs(folder)
        return str(folder)

    def _putter(
        self, rows: Callable[[], pa.Table], folder: str | None = None
    ) -> Callable[[], None]:
        folder = folder or self._folder("puts")
        return lambda: put_durably(folder, f"{next(self._numbers):08d}", events.encoded(rows()))
