"""Paimon by pypaimon, in an environment and a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import ClassVar

from bench.peers import environments, events
from bench.peers.library import Library
from bench.peers.peer import (
    A_WRITE_IS_A_COMMIT,
    Absent,
    Found,
    Limit,
    folder_bytes,
    no_spark,
    quantiles,
)
from bench.peers.processes import follow, writers
from bench.peers.worker import Worker

_WORKER = Path(__file__).with_name("paimon_worker.py")
_BY_SPARK = "no jar of Paimon for Spark 4 is in Maven's central repository"
_IMPORTS = f"""
import sys
sys.path.insert(0, {str(_WORKER.parent)!r})
import paimon_worker
"""
_READER = (
    _IMPORTS
    + """
import json, time
warehouse, name, count, _ = json.loads(sys.argv[1])
found = []
for event in paimon_worker.follow(warehouse, name):
    found.append((int(event[:20]), time.monotonic_ns()))
    if len(found) == 1:
        print("ready", flush=True)
    if len(found) == count:
        break
print(json.dumps(found), flush=True)
import os
os._exit(0)  # its prefetch waits for the next snapshot
"""
)
_WRITER = (
    _IMPORTS
    + """
table = paimon_worker.Table(*arguments)
def write(event):
    table.put([key], [event])
"""
)


class Paimon(Library):
    name = "Paimon"
    acknowledged = "the snapshot's file is there; nothing is fsynced"
    caveats = (
        "An append table without buckets, Parquet with zstd, by pypaimon; a reader at the tail "
        "polls each millisecond.",
    )
    cannot: ClassVar[Mapping[str, str]] = {
        "pipelined": A_WRITE_IS_A_COMMIT,
        **no_spark(_BY_SPARK),
        "to_delta": "its tables are not Delta's",
    }

    def start(self) -> None:
        python = environments.paimon()
        if python is None:
            raise Absent("pypaimon was not fetched: python -m bench.peers.environments")
        self._python = python
        self._warehouse = self.place.folder / "paimon"
        self._numbers = count()
        command = [python, str(_WORKER), str(self._warehouse)]
        self._worker = Worker(command, self.place.folder / "paimon.log")

    def stop(self) -> None:
        if "_worker" in self.__dict__:
            self._worker.close()

    def versions(self) -> str:
        return f"{environments.PAIMON.replace('==', ' ')}, {self._worker.ask(do='version')}"

    def fill(self) -> None:
        self._filled = self._create("filled")
        source = str(events.parquet(self.place))
        self._worker.ask(do="fill", table=self._filled, folder=source)

    def append(self, limit: Limit) -> Found:
        return self._puts(1, limit)

    def end_to_end(self, limit: Limit) -> Found:
        table = self._create("tail")

        def write(event: bytes) -> None:
            self._worker.ask(do="put", table=table, event=event.decode())

        return follow(_READER, str(self._warehouse), table, write, limit, self._python)

    def writers(self, limit: Limit) -> Found:
        given = [str(self._warehouse), self._create("writers")]
        return writers(_WRITER, given, limit, self._python)

    def transaction(self, limit: Limit) -> Found:
        return self._puts(events.TRANSACTION_EVENTS, limit)

    def catch_up(self, limit: Limit) -> Found:
        found = self._worker.ask(do="read", table=self._filled)
        assert found["rows"] == self.place.rows, found
        return {"rate": found["rows"] / found["seconds"]}

    def single_rows(self, limit: Limit) -> Found:
        table = self._create("rows")
        times = self._worker.ask(do="puts", table=table, rows=1, **_asked(limit))
        found = self._worker.ask(do="count", table=table)
        assert found["rows"] == len(times), f"{found} after {len(times)} rows"
        return {
            "rows": len(times),
            "rate": 1e3 * len(times) / sum(times),
            "aggregate": 1e3 * found["seconds"],
        }

    def stored(self, limit: Limit) -> Found:
        folder = next(self._warehouse.rglob(self._filled.split(".")[1]))
        return {"bytes": folder_bytes(folder) / self.place.rows}

    def _puts(self, rows: int, limit: Limit) -> Found:
        table = self._create("puts")
        return quantiles(self._worker.ask(do="puts", table=table, rows=rows, **_asked(limit)))

    def _create(self, name: str) -> str:
        table = f"bench.{name}_{next(self._numbers)}"
        self._worker.ask(do="create", table=table)
        return table


def _asked(limit: Limit) -> dict[str, float]:
    return {"calls": limit.calls, "seconds": limit.seconds}
