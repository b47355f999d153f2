"""A root in memory with one stream that grows, and what tests of its copies share."""

from __future__ import annotations

from collections.abc import Callable

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store import Store
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager, manager_over
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_streams import all_events, write


def manager_of(store: Store, runtime: Runtime | None = None) -> StreamManager:
    """Return a manager that knows nothing of the store yet, like one of another process."""
    return manager_over(store, runtime or FakeRuntime())


def stream_of(store: Store, name: str = "s/t", runtime: Runtime | None = None) -> StreamLog:
    """Return a stream whose log is not maintained in the background."""
    stream = StreamLog(store, name, runtime or FakeRuntime())
    stream.log.maintain = None
    return stream


def events_in(store: Store, stream: str = "s/t") -> list[bytes]:
    """Return the data of all events of a stream."""
    return [event for _, event in all_events(stream_of(store, stream))]


def numbers(count: int) -> list[bytes]:
    """Return the data of the first events that a world writes."""
    return [b"%d" % n for n in range(count)]


def copy_objects(
    source: Store,
    target: Store | None = None,
    wanted: Callable[[str], bool] = lambda key: True,
) -> Store:
    """Copy the wanted keys one by one, as ``cp`` or ``tar`` does."""
    target = MemoryStore() if target is None else target
    for entry in source.list(""):
        if wanted(entry.key):
            target.put(entry.key, source.get(entry.key))
    return target


class World:
    """A root with the stream ``s/t``, which grows by two events a commit."""

    def __init__(self, commits: int = 5, store: Store | None = None) -> None:
        self.runtime = FakeRuntime()
        self.store = store or memory(self.runtime)
        self.manager = manager_of(self.store, self.runtime)
        self.manager.create_scope("s")
        self.manager.create_stream("s/t", StreamConfiguration())
        self.stream = stream_of(self.store, runtime=self.runtime)
        self.grow(commits)

    def grow(self, commits: int) -> None:
        """Append the next numbers, two events in each commit, a commit a minute."""
        for _ in range(commits):
            at = self.stream.view().segment(0).next_offset
            write(self.stream, [(None, b"%d" % n) for n in (at, at + 1)])
            self.runtime.sleep(60)
