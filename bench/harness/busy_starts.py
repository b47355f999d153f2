"""Starts of queries beside processes that only compute, in one JVM.

``python -m bench.harness.busy_starts JSON`` prints the seconds of each, by the busy processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness.first_batches import others_session, own_session

_BUSY = "while True: pass"
_BATCH_SECONDS = 120.0


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _start(frame: Any, checkpoint: Path) -> float | None:
    """Return the seconds until a query has processed its first batch; None if Python was too late.

    Raises RuntimeError if the query neither begins nor fails.
    """
    begun = time.monotonic()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.start()
    while query.isActive and query.lastProgress is None:
        if time.monotonic() > begun + _BATCH_SECONDS:
            raise RuntimeError(f"no batch within {_BATCH_SECONDS:.0f} s")
        time.sleep(0.05)
    seconds = time.monotonic() - begun
    error = query.exception()
    query.stop()
    if error is None:
        return seconds
    if "failed to connect back" not in str(error):
        raise error
    return None


def main(text: str) -> None:
    """Print what was measured as the last line: seconds, or null for a start that failed."""
    given = json.loads(text)
    spark = (own_session if given["is_own"] else others_session)(given["settings"])
    reader = spark.readStream.format("pravega").option("startingOffsets", "earliest")
    place = given["place"]
    frame = reader.option("root", place["root"]).load(place["stream"])
    folder = Path(place["folder"])
    assert _start(frame, folder / "warm") is not None
    found: dict[int, list[float | None]] = {}
    for processes in given["processes"]:
        with _busy(processes):
            found[processes] = [
                _start(frame, folder / f"{processes}-{number}") for number in range(given["starts"])
            ]
    print("\n" + json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
