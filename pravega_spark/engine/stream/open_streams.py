"""The open streams of this process: opened once, so that a Spark worker keeps its snapshots."""

from __future__ import annotations

import os
from weakref import WeakValueDictionary

from pravega_spark.engine.eviction import make_room
from pravega_spark.engine.runtime import SYSTEM, Runtime
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.limits import OPEN_STREAMS
from pravega_spark.process_locks import new_lock


class _OpenStreams:
    """The open streams by store and name; a forked child starts with none.

    A stream is kept while anybody uses it, and some also when nobody does. So all users of
    a stream in a process know what one of them has changed.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._used = WeakValueDictionary[tuple[Store, str], StreamLog]()
        self._kept: dict[tuple[Store, str], StreamLog] = {}

    def get(self, store: Store, name: str) -> StreamLog:
        """Return the open stream, or open it."""
        key = (store, name)
        with self._lock:
            stream = self._kept.get(key)
            if stream is None:
                stream = self._used.get(key) or StreamLog(store, name)
                make_room(self._kept, OPEN_STREAMS, SYSTEM.random)
                self._kept[key] = self._used[key] = stream
            return stream


_open = _OpenStreams()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.reset)


def open_stream(root: str | Store, name: str, runtime: Runtime = SYSTEM) -> StreamLog:
    """Return this process's stream of that root and name; it need not exist yet.

    Streams with another runtime than the system's are not kept.
    """
    store = open_store(root) if isinstance(root, str) else root
    return _open.get(store, name) if runtime is SYSTEM else StreamLog(store, name, runtime)
