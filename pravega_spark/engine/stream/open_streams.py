"""The open streams of this process: opened once, so that a Spark worker keeps its snapshots."""

from __future__ import annotations

from pravega_spark.engine.open_objects import OpenObjects
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.limits import OPEN_STREAM_BYTES

_open = OpenObjects(StreamLog, lambda stream: stream.log.held_bytes, OPEN_STREAM_BYTES)


def open_stream(root: str | Store, name: str, runtime: Runtime = SYSTEM) -> StreamLog:
    """Return this process's stream of that root and name; it need not exist yet.

    Streams with another runtime than the system's are not kept.
    """
    store = open_store(root) if isinstance(root, str) else root
    return _open.get(store, name) if runtime is SYSTEM else StreamLog(store, name, runtime)
