"""The peak memory of a reader."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.dataset import backlog
from bench.harness.figures import Figure
from bench.harness.registry import benchmark

_READ = """
import json, sys
from pravega_spark import StreamManager

def peak():  # getrusage would start at the parent's peak
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))

before = peak()
count = sum(1 for event in StreamManager(sys.argv[1]).read(sys.argv[2]))
print(json.dumps([count, peak(), before]))
"""


@benchmark()
def reader_memory(context: Context) -> Iterator[Figure]:
    """A fresh process reads a backlog event by event, from the head to the tail."""
    stream, count = backlog(context)
    command = [sys.executable, "-c", _READ, context.root, stream]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    read, peak, before = json.loads(output)
    assert read == count, f"{read} of {count} events were read"
    yield Figure(
        f"peak memory of a reader of {count:,} events",
        peak,
        "MiB",
        "the same process after its import",
        before,
        peak / before,
        limited_by="a row group of a chunk in Arrow, and a batch of it as Python objects",
    ).within(at_most=300.0)
