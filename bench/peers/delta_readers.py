"""How long after its acknowledgement an event is in a Delta table: three readers that poll."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb

from bench.harness.dataset import EVENT
from bench.peers.peer import Found, Limit, Place

_LONGEST_SECONDS = 120.0
_PAUSE_SECONDS = 0.5


def delays(place: Place, path: str, write: Callable[[bytes], object], limit: Limit) -> Found:
    """Write one event after another, and poll the table after each until it has one row more.

    Each reader in turn, and as fast as it can; the median of its seconds. Pauses between the events
    are drawn, so that no query's trigger keeps step with them.
    """
    write(EVENT)
    readers = _readers(place, path)
    rows = 1
    found: dict[str, float] = {}
    for name, count in readers.items():
        _wait(count, rows)
        times: list[float] = []
        randomness = random.Random(1)
        end = time.monotonic() + limit.seconds
        while len(times) < limit.calls and time.monotonic() < end:
            time.sleep(_PAUSE_SECONDS * randomness.uniform(0.5, 1.5))
            write(EVENT)
            rows += 1
            acknowledged = time.monotonic()
            _wait(count, rows)
            times.append(time.monotonic() - acknowledged)
        found[name] = statistics.median(times)
    return found


def _wait(count: Callable[[], int], rows: int) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while (seen := count()) != rows:
        assert seen < rows, f"{seen} rows, but {rows} were written"
        assert time.monotonic() < deadline, f"{seen} of {rows} rows after {_LONGEST_SECONDS} s"


def _readers(place: Place, path: str) -> Mapping[str, Callable[[], int]]:
    """Return what counts the rows of a Delta table's newest version, which may not be there yet."""
    from deltalake import DeltaTable

    connection = duckdb_with("delta")
    spark = place.context.spark

    def is_there() -> bool:
        return DeltaTable.is_deltatable(path)

    def delta_rs() -> int:
        return DeltaTable(path).to_pyarrow_dataset().count_rows() if is_there() else 0

    def by_duckdb() -> int:
        if not is_there():
            return 0
        row = connection.execute(f"SELECT count(*) FROM delta_scan('{path}')").fetchone()
        assert row is not None
        return int(row[0])

    def by_spark() -> int:
        return int(spark.read.format("delta").load(path).count()) if is_there() else 0

    return {"delta_rs": delta_rs, "duckdb": by_duckdb, "spark": by_spark}


def duckdb_with(extension: str, folder: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Return a connection that has loaded an extension from a package of PyPI.

    ``folder`` is where the package is, if not in this environment.
    """
    if folder is None:
        import duckdb_extension_delta  # type: ignore[import-untyped]

        folder = Path(duckdb_extension_delta.__path__[0])
    file = folder / f"extensions/v{duckdb.__version__}/{extension}.duckdb_extension"
    connection = duckdb.connect()
    connection.execute(f"LOAD '{file}'")
    return connection
