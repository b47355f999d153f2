"""Delta by Spark: each write is a job of Spark, and a reader at the tail is a streaming query."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import count
from typing import Any, ClassVar

from deltalake import write_deltalake

from bench.harness.tail_reader import SENT_BYTES, stamped
from bench.peers import delta_readers, events, servers, spark
from bench.peers.peer import (
    Found,
    Limit,
    Peer,
    each_ms,
    folder_bytes,
    latency,
    quantiles,
    rows_then_aggregate,
)
from bench.peers.processes import threads

_LONGEST_SECONDS = 60.0


class DeltaSpark(Peer):
    name = "Delta Spark"
    acknowledged = "the commit's file is there; nothing is fsynced"
    caveats = (
        "local[2], two snapshot partitions. 16 writers are threads of one driver.",
        "A round has time for a few of its writes, and their p99 is the slowest.",
        "Its idle cost is that of the session's JVM, which all Spark measures share.",
    )
    cannot: ClassVar[Mapping[str, str]] = {
        "pipelined": "a write is a job and a commit: many events in one call are the transaction",
        "catch_up": "its reader is a job of Spark: the batch read below",
    }

    def start(self) -> None:
        self._spark = self.place.context.spark
        self._root = self.place.folder / "delta-spark"
        self._numbers = count()

    def versions(self) -> str:
        from importlib.metadata import version

        return f"delta-spark {version('delta-spark')}, Spark {self._spark.version}"

    def fill(self) -> None:
        self._filled = str(self._root / "filled")
        self._save(self._spark.read.parquet(str(events.parquet(self.place))), self._filled)

    def append(self, limit: Limit) -> Found:
        path = self._create("append")
        return latency(lambda: self._save(self._rows(1), path), limit)

    def end_to_end(self, limit: Limit) -> Found:
        path = self._create("tail")
        found: list[float] = []

        def arrived(rows: Any, _: int) -> None:
            sent = [int(bytes(row.event[:SENT_BYTES])) for row in rows.select("event").collect()]
            now = time.monotonic_ns()
            found.extend((now - each) / 1e6 for each in sent)

        def write() -> None:
            before = len(found)
            self._save(self._rows(1, stamped()), path)
            deadline = time.monotonic() + _LONGEST_SECONDS
            while len(found) == before:
                assert time.monotonic() < deadline, "the event did not arrive"
                time.sleep(0.001)

        rows = self._spark.readStream.format("delta").load(path)
        with spark.running(self.place, rows, lambda writer: writer.foreachBatch(arrived)):
            write()
            found.clear()
            each_ms(write, limit)
        return quantiles(found)

    def writers(self, limit: Limit) -> Found:
        path = self._create("writers")
        return threads(lambda _: self._save(self._rows(1), path), limit)

    def transaction(self, limit: Limit) -> Found:
        path = self._create("transactions")
        return latency(lambda: self._save(self._rows(events.TRANSACTION_EVENTS), path), limit)

    def single_rows(self, limit: Limit) -> Found:
        path = self._create("rows")

        def aggregate() -> int:
            counts = self._load(path).groupBy("routing_key").count().collect()
            return sum(row["count"] for row in counts)

        return rows_then_aggregate(lambda: self._save(self._rows(1), path), aggregate, limit, 0)

    def stored(self, limit: Limit) -> Found:
        return {"bytes": folder_bytes(self._filled) / self.place.rows}

    def idle(self, limit: Limit) -> Found:
        return servers.idle(self._spark.sparkContext._gateway.proc.pid, limit)

    def spark_write(self, limit: Limit) -> Found:
        path = self._path("frame")
        return spark.write(self.place, lambda rows: self._save(rows, path))

    def spark_read(self, limit: Limit) -> Found:
        return spark.read(self.place, self._load(self._filled))

    def backlog(self, limit: Limit) -> Found:
        return spark.backlog(self.place, self._spark.readStream.format("delta").load(self._filled))

    def micro_batch(self, limit: Limit) -> Found:
        source, target = self._path("source"), self._path("target")
        for number in range(limit.calls):
            write_deltalake(source, events.hundred(number), mode="append")
        reader = self._spark.readStream.format("delta").option("maxFilesPerTrigger", 1)
        return spark.micro_batches(
            self.place,
            reader.load(source),
            lambda writer: writer.format("delta").option("path", target),
            limit,
        )

    def to_delta(self, limit: Limit) -> Found:
        path = self._path("to-delta")
        return delta_readers.delays(
            self.place, path, lambda event: self._save(self._rows(1, event), path), limit
        )

    def _rows(self, rows: int, event: bytes = b"e" * 100) -> Any:
        return self._spark.range(0, rows, 1, 1).selectExpr(
            "'key' as routing_key",
            "current_timestamp() as timestamp",
            f"X'{event.hex()}' as event",
        )

    def _create(self, name: str) -> str:
        path = self._path(name)
        self._save(self._rows(0), path)
        return path

    def _path(self, name: str) -> str:
        return str(self._root / f"{name}-{next(self._numbers)}")

    def _load(self, path: str) -> Any:
        return self._spark.read.format("delta").load(path)

    def _save(self, rows: Any, path: str) -> None:
        writer = rows.write.format("delta").mode("append").option("compression", "zstd")
        writer.save(path)
