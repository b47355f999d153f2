"""A root in memory with a stream that lives, and the roots that it is copied to."""

from __future__ import annotations

from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager
from pravega_spark.policies import StreamConfiguration
from tests.harness.engine import FakeRuntime, memory, write


def manager_of(store: Store, runtime: Runtime | None = None) -> StreamManager:
    """A manager as another process would make it: nothing is remembered."""
    made = StreamManager("memory://unused", runtime=runtime or FakeRuntime())
    made._store = store
    return made


def stream_of(store: Store, name: str = "s/t", runtime: Runtime | None = None) -> StreamLog:
    stream = StreamLog(store, name, runtime or FakeRuntime())
    stream.log.maintain = None
    return stream


class World:
    """A root with the stream ``s/t``, which grows by two events a commit."""

    def __init__(self, commits: int = 5) -> None:
        self.runtime = FakeRuntime()
        self.store: Store = memory(self.runtime)
        self.manager = manager_of(self.store, self.runtime)
        self.manager.create_scope("s")
        self.manager.create_stream("s/t", StreamConfiguration())
        self.stream = stream_of(self.store, runtime=self.runtime)
        self.grow(commits)

    def grow(self, commits: int) -> None:
        for _ in range(commits):
            at = self.stream.view().segment(0).next_offset
            write(self.stream, [(None, b"%d" % n) for n in (at, at + 1)])
            self.runtime.sleep(60)
