"""Processes and threads beside a peer: 16 writers, and a reader at the tail."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.harness.tail_reader import TailReader, stamped
from bench.harness.writer_load import WriterLoad
from bench.peers.peer import Found, Limit, quantiles

WRITERS = 16
_PAUSE_SECONDS = 0.005
_LOOP = """
import json, sys, time
arguments = json.loads(sys.argv[1])
key, seconds = sys.argv[2], float(sys.argv[3])
{setup}
write(b"e" * 100)
print("ready", flush=True)
sys.stdin.readline()
began, times = time.monotonic(), []
while time.monotonic() < began + seconds:
    before = time.monotonic()
    write(b"e" * 100)
    times.append(time.monotonic() - before)
print(json.dumps(times), flush=True)
"""


def writers(
    setup: str, arguments: Sequence[str], limit: Limit, python: str = sys.executable
) -> Found:
    """Run 16 processes that write for the seconds of the limit.

    ``setup`` defines ``write(event)`` from the list ``arguments`` and a ``key`` of its own.
    """
    code, given = _LOOP.format(setup=setup), json.dumps(list(arguments))
    processes = [
        subprocess.Popen(
            [python, "-c", code, given, f"key-{number}", str(limit.seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(WRITERS)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "a writer did not start"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return load([json.loads(process.communicate()[0]) for process in processes])
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def threads(write: Callable[[int], object], limit: Limit) -> Found:
    """Run 16 threads that write for the seconds of the limit; raise what one of them raised."""
    end = time.monotonic() + limit.seconds

    def run(number: int) -> list[float]:
        times: list[float] = []
        while (before := time.monotonic()) < end:
            write(number)
            times.append(time.monotonic() - before)
        return times

    with ThreadPoolExecutor(WRITERS) as pool:
        return load(list(pool.map(run, range(WRITERS))))


def load(times: Sequence[Sequence[float]]) -> Found:
    """Return the rate of writers, and the slowest hundredth of the seconds that they waited.

    Each wrote without a pause, so that its waits together are how long it wrote.
    """
    found = WriterLoad(max(map(sum, times)), times, 0.0)
    return {"rate": found.per_second, "p99": 1e3 * found.quantile(0.99)}


def follow(
    script: str,
    place: str,
    name: str,
    write: Callable[[bytes], object],
    limit: Limit,
    python: str = sys.executable,
) -> Found:
    """Write to a reader in a process of its own, an event about every 5 ms."""
    randomness = random.Random(1)
    with TailReader(script, place, name, 1 + limit.calls, python=python) as reader:
        write(stamped())
        reader.wait_until_it_reads()
        for _ in range(limit.calls):
            time.sleep(_PAUSE_SECONDS * randomness.uniform(0.5, 1.5))
            write(stamped())
        return quantiles(reader.delays_ms())
