"""A stream in memory with events, and a group of readers on it, on clocks that tests move."""

from __future__ import annotations

from collections.abc import Sequence

from pravega_spark.engine.store import Store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.tables.scopes import Scope
from pravega_spark.reader_groups.group_configuration import ReaderGroupConfiguration
from pravega_spark.reader_groups.group_reader import EventStreamReader
from pravega_spark.reader_groups.reader_group import ReaderGroup
from tests.harness.engine import FakeRuntime, Spy, again, make_stream, memory, write

NAME = "s/t"


class World:
    """One store, one clock, one stream ``s/t`` unless told, and groups of any process."""

    def __init__(self, segments: int = 1, names: Sequence[str] = (NAME,)) -> None:
        self.runtime = FakeRuntime()
        self.store = Spy(memory(self.runtime))
        Scope(self.store, "s", self.runtime).create()
        self.streams = {n: make_stream(self.store, self.runtime, segments, n) for n in names}
        self.written = 0

    @property
    def stream(self) -> StreamLog:
        return self.streams[NAME]

    def write(self, count: int, name: str = NAME) -> list[bytes]:
        """Events of many keys, each its own number."""
        numbers = range(self.written, self.written + count)
        events = [(f"key-{n}", str(n).encode()) for n in numbers]
        write(self.streams[name], events)
        self.written += count
        return [event for _, event in events]

    def group(self, name: str = "s/g", store: Store | None = None) -> ReaderGroup:
        """The group as another process sees it."""
        opened = {n: again(stream, store) for n, stream in self.streams.items()}

        def stream_of(name: str) -> StreamLog:
            if name not in opened:
                opened[name] = StreamLog(store or self.store, name, self.runtime)
            return opened[name]

        group = ReaderGroup(store or self.store, name, stream_of, self.runtime)
        group.sync.table.log.maintain = None
        return group

    def created(self, **options: object) -> ReaderGroup:
        group = self.group()
        options.setdefault("checkpoint_interval", None)
        streams = options.pop("streams", list(self.streams))
        group.create(ReaderGroupConfiguration(streams, **options))  # type: ignore[arg-type]
        return group


def drain(reader: EventStreamReader, timeout: float = 0.0) -> list[bytes]:
    """Everything that the reader gets until it gets nothing; markers are passed over."""
    found: list[bytes] = []
    while True:
        read = reader.read_next_event(timeout)
        if read.event is not None:
            found.append(read.event.data)
        elif read.checkpoint is None:
            return found
