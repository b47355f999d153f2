"""Events to benchmark with: 100 bytes each, 20 decimal digits and 80 hexadecimal ones.

The hexadecimal digits compress to about half their size.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from bench.harness.context import Context
from pravega_spark.engine.chunk_paths import version_folder
from pravega_spark.engine.chunks.chunk import EVENT_SCHEMA
from pravega_spark.engine.chunks.routing import Router, split
from pravega_spark.engine.chunks.writer import stage
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.writing.append import append

EVENT_BYTES = 100
EVENT = b"e" * EVENT_BYTES
"""An event for benchmarks in which its content does not matter."""
KEYS = 1_000
_BLOCK = 500_000


def payloads(count: int, seed: int = 1) -> pa.BinaryArray:
    """Return events; equal seeds give equal events."""
    digits = np.frombuffer(np.random.default_rng(seed).bytes(40 * count).hex().encode(), np.uint8)
    numbers = np.char.zfill(np.arange(count).astype("S20"), 20)
    events = np.empty((count, EVENT_BYTES), np.uint8)
    events[:, :20] = np.frombuffer(numbers.tobytes(), np.uint8).reshape(count, 20)
    events[:, 20:] = digits.reshape(count, 80)
    offsets = np.arange(count + 1, dtype=np.int32) * EVENT_BYTES
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(events)]
    )


def keys(count: int) -> pa.StringArray:
    """Return routing keys that cycle through ``KEYS`` values."""
    names = pa.array([f"key-{i}" for i in range(KEYS)])
    return names.take(pa.array(np.arange(count) % KEYS))


def table(count: int, seed: int = 1) -> pa.Table:
    """Return events in the engine's schema."""
    times = pa.array(np.full(count, 1_700_000_000_000_000 + seed)).view(pa.timestamp("us", "UTC"))
    return pa.Table.from_arrays([keys(count), times, payloads(count, seed)], schema=EVENT_SCHEMA)


def fill(context: Context, stream: str, count: int) -> str:
    """Append ``count`` events to a stream in large blocks; return the stream's name."""
    opened = open_stream(open_store(context.root), stream)
    view = opened.view()
    router = Router(view.active.segments)
    for block, first in enumerate(range(0, count, _BLOCK)):
        events = table(min(_BLOCK, count - first), block)
        staged = [
            chunk
            for segment_id, part in split(events, router)
            for chunk in stage(
                opened.store, opened.path, version_folder(view.version), segment_id, part,
                name=f"{opened.runtime.token()}-{segment_id}",
            )
        ]  # fmt: skip
        append(opened, view.life, view.version, staged)
    return stream


def backlog(context: Context) -> tuple[str, int]:
    """Return a stream of 4 M events in 4 segments, made once a run, and its number of events."""

    def make(context: Context) -> tuple[str, int]:
        count = context.size(4_000_000, 20_000)
        return fill(context, context.create("backlog", 4), count), count

    return context.shared("backlog", make)
