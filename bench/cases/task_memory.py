"""The peak memory of a task that writes a frame, when one segment gets few of the events."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.registry import benchmark

_WRITE = """
import json, resource, sys
import numpy as np
import pyarrow as pa
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from pravega_spark.engine.chunks.routing import position
from pravega_spark.spark.source import PravegaDataSource

ROWS, EVENT = 10_000, 1_000
root, stream, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
keys = [f"key-{n}" for n in range(2_000)]
often = [key for key in keys if position(key) < 0.25]
seldom = next(key for key in keys if position(key) > 0.75)
random = np.random.default_rng(1)

def batches():
    for _ in range(megabytes * 1_000_000 // (ROWS * EVENT)):
        chosen = [often[n % len(often)] for n in range(ROWS)]
        chosen[5] = seldom
        ends = pa.py_buffer((np.arange(ROWS + 1) * EVENT).astype(np.int32))
        data = pa.py_buffer(random.bytes(ROWS * EVENT))
        events = pa.Array.from_buffers(pa.binary(), ROWS, [None, ends, data])
        batch = pa.RecordBatch.from_pydict({"routing_key": chosen, "event": events})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.ipc.open_stream(sink.getvalue()).read_next_batch()

def peak():  # getrusage would start at the parent's peak
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))

schema = StructType([StructField("routing_key", StringType()), StructField("event", BinaryType())])
options = {"root": root, "path": stream, "numsegments": "4"}
writer = PravegaDataSource(options).writer(schema, False)
message = writer.write(batches())
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([peak(), used.ru_utime + used.ru_stime, len(message.chunks)]))
"""


@benchmark()
def task_memory(context: Context) -> Iterator[Figure]:
    """A fresh process stages 1,200 MB, and 120 MB; one event in 10,000 is of a rare segment."""
    large, small = context.size(1_200, 40), context.size(120, 20)
    (peak, seconds, files), (few, few_seconds, _) = (
        _measured(context, megabytes) for megabytes in (large, small)
    )
    yield Figure(
        f"peak memory of a task that writes {large:,} MB, one segment is rare",
        peak,
        "MiB",
        f"a task that writes {small} MB",
        few,
        peak / few,
        note=f"{files:.0f} files; processor time {seconds:.1f} s against {few_seconds:.1f} s",
        limited_by="the open chunks of the segments, and the row groups that wait to be encoded",
    ).within(at_most=900.0, ratio_at_most=1.7)


def _measured(context: Context, megabytes: int) -> list[float]:
    context.manager  # noqa: B018 (the scope)
    command = [sys.executable, "-c", _WRITE, context.root, f"bench/memory-{megabytes}"]
    output = subprocess.run([*command, str(megabytes)], check=True, capture_output=True, text=True)
    found: list[float] = json.loads(output.stdout)
    return found
