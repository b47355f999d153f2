"""Streams in memory and reader groups on them, on a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pravega_spark.engine.log.commit import Log
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.state.scopes import Scope
from pravega_spark.engine.state.synchronizer import Synchronizer
from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.reader_groups.configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.lifecycle import GroupLifecycle
from pravega_spark.reader_groups.membership import ReaderMembership
from pravega_spark.reader_groups.reader import EventStreamReader
from pravega_spark.reader_groups.reader_group import ReaderGroup
from pravega_spark.reader_groups.state import GroupState, Phase
from tests.harness.fake_runtime import FakeRuntime, memory
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.spy_store import Spy

NAME = "s/t"


def membership_of(reader: EventStreamReader) -> ReaderMembership:
    """A reader's inside: its lease and its refreshes, whose times no public call shows."""
    return reader._membership


class OpenGroup(ReaderGroup):
    """A reader group with the lifecycle, state and streams that users do not see."""

    stream: Callable[[str], StreamLog]

    @property
    def lifecycle(self) -> GroupLifecycle:
        return self._lifecycle

    @property
    def sync(self) -> Synchronizer[GroupState]:
        return self._lifecycle.sync

    @property
    def log(self) -> Log:
        return self.sync.table.log

    def state(self) -> GroupState:
        return self._lifecycle.state()

    def exists(self) -> bool:
        state = self._lifecycle.repair()
        return state is not None and state.phase is Phase.ACTIVE

    def create(self, configuration: ReaderGroupConfiguration) -> bool:
        return self._lifecycle.create(configuration)

    def delete(self) -> bool:
        return self._lifecycle.delete()


class World:
    """One store, one clock, streams (by default ``s/t``), and groups as any process opens them.

    With a ``clock`` of the test's own, ``runtime`` is not used.
    """

    def __init__(
        self, segments: int = 1, names: Sequence[str] = (NAME,), clock: Runtime | None = None
    ) -> None:
        self.runtime = FakeRuntime()
        self.clock = clock or self.runtime
        self.store = Spy(memory(self.clock))
        Scope(self.store, "s", self.clock).create()
        self.streams = {n: make_stream(self.store, self.clock, segments, n) for n in names}
        self.written = 0

    @property
    def stream(self) -> StreamLog:
        return self.streams[NAME]

    def write(self, count: int, name: str = NAME) -> list[bytes]:
        """Write events of many keys, each with its own number."""
        numbers = range(self.written, self.written + count)
        events = [(f"key-{n}", str(n).encode()) for n in numbers]
        write(self.streams[name], events)
        self.written += count
        return [event for _, event in events]

    def group(self, name: str = "s/g", store: Store | None = None) -> OpenGroup:
        """Open a group as another process does."""
        opened = {n: reopen(stream, store) for n, stream in self.streams.items()}

        def stream_of(name: str) -> StreamLog:
            if name not in opened:
                opened[name] = StreamLog(store or self.store, name, self.clock)
            return opened[name]

        group = OpenGroup(GroupLifecycle(store or self.store, name, stream_of, self.clock))
        group.stream = stream_of
        group.log.maintain = None
        return group

    def created(self, **options: object) -> OpenGroup:
        group = self.group()
        options.setdefault("checkpoint_interval", None)
        streams = options.pop("streams", list(self.streams))
        group.create(ReaderGroupConfiguration(streams, **options))  # type: ignore[arg-type]
        return group


def expired_after(group: ReaderGroup, seconds: float, sleep: Callable[[float], None]) -> list[str]:
    """Return who expires if a judge finds old heartbeats and looks again after these seconds."""
    assert group.expire_readers() == [], "a judge that has seen nothing yet"
    sleep(seconds)
    return group.expire_readers()


class BufferingApplication:
    """An application that keeps events in a buffer and flushes it when it sees a marker."""

    def __init__(self, reader: EventStreamReader, flushed: list[bytes]) -> None:
        self.reader, self.flushed = reader, flushed
        self.buffer: list[bytes] = []
        self.markers: list[str] = []

    def read(self, count: int) -> bool:
        """Make some calls; return whether the last one found an event or a marker."""
        for _ in range(count):
            read = self.reader.read_next_event(0)
            if read.checkpoint is not None:
                self.markers.append(read.checkpoint)
                self.flush()
            elif read.event is not None:
                self.buffer.append(read.event.data)
            else:
                return False
        return True

    def flush(self) -> None:
        self.flushed += self.buffer
        self.buffer.clear()

    def close(self) -> None:
        self.flush()
        self.reader.close()


def drain(reader: EventStreamReader, timeout: float = 0.0) -> list[bytes]:
    """Read until no event comes; skip markers."""
    found: list[bytes] = []
    while True:
        read = reader.read_next_event(timeout)
        if read.event is not None:
            found.append(read.event.data)
        elif read.checkpoint is None:
            return found
