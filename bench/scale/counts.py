"""The requests and bytes of each operation, counted while the real code runs on a distant store.

The store is in memory and says that it is far away, so no count depends on the machine, but for
what runs in the background.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.harness.counting_store import CountingStore
from pravega_spark import KeyValueTableConfiguration, ScalingPolicy, StreamConfiguration
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.base import ResponseDate, WrappedStore
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.manager import StreamManager, manager_over

_KINDS = {
    "put": "PUT",
    "get": "GET",
    "exists": "GET",
    "modified": "GET",
    "time": "GET",
    "list": "LIST",
    "delete": "DELETE",
}
"""By the calls of a store: the requests by which S3 bills; to make folders durable is none."""
KINDS = ("PUT", "GET", "LIST", "DELETE")
_KEY = "key"
_IDLE_SECONDS = 60
_SMALL = b"e" * 100


@dataclass(frozen=True, slots=True)
class Count:
    """What one operation takes: requests by kind, and bytes; the mean of ``operations``."""

    name: str
    operations: int
    calls: dict[str, float]
    written_bytes: float
    read_bytes: float


class _Distant(MemoryStore):
    """An object store: it is polled seldom, and each of its answers has a date."""

    is_local = False

    def __init__(self, name: str, runtime: Runtime) -> None:
        super().__init__(name, clock_ms=runtime.now_ms)
        self._runtime = runtime

    @property
    def response_date(self) -> ResponseDate:  # type: ignore[override]
        """The date of the newest answer."""
        now_ms = self._runtime.now_ms()
        return ResponseDate(now_ms, now_ms, self._runtime.monotonic())


class _World:
    """One root on a counted store."""

    def __init__(self, name: str, runtime: Runtime = SYSTEM) -> None:
        self._runtime = runtime
        self.store = CountingStore(_Distant(f"scale-{name}-{os.getpid()}", runtime))
        self.manager = manager_over(self.store, runtime)
        self.manager.create_scope("s")

    def stream(self, name: str, segments: int = 1) -> str:
        configuration = StreamConfiguration(ScalingPolicy.fixed(segments))
        self.manager.create_stream(f"s/{name}", configuration)
        return f"s/{name}"

    def fresh(self) -> StreamManager:
        """Return a manager that knows nothing, as that of another process, and counts as well."""
        return manager_over(_Handle(self.store), self._runtime)

    def count(self, name: str, operations: int, work: Callable[[], object]) -> Count:
        self.store.calls.clear()
        self.store.read_bytes = self.store.written_bytes = 0
        work()
        calls = dict.fromkeys(KINDS, 0.0)
        for call, count in self.store.calls.items():
            if call in _KINDS:
                calls[_KINDS[call]] += count / operations
        return Count(
            name,
            operations,
            {kind: round(count, 4) for kind, count in calls.items()},
            round(self.store.written_bytes / operations, 1),
            round(self.store.read_bytes / operations, 1),
        )


class _Handle(WrappedStore):
    """Another handle of a counted store: what it opens and keeps is its own."""

    @property
    def cache_bytes(self) -> int:
        """Nothing is kept of chunks: each reader is one of another process."""
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _times(count: int, work: Callable[[], object]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(count):
            work()

    return repeat


def counted() -> Iterator[Count]:
    """Yield the count of each operation."""
    yield from _writes()
    yield from _reads()
    yield from _tables()
    yield from _groups()
    yield from _sizes()


def _writes() -> Iterator[Count]:
    world = _World("writes")
    writer = world.manager.create_writer(world.stream("append"))
    writer.write_event(_SMALL, _KEY).result()
    yield world.count(
        "append of one event of 100 bytes",
        2_048,
        _times(2_048, lambda: writer.write_event(_SMALL, _KEY).result()),
    )
    events = [os.urandom(1_024) for _ in range(1_024)]
    yield world.count(
        "append of 1,024 events of 1 KiB",
        64,
        _times(64, lambda: writer.write_events(events, _KEY).result()),
    )
    for segments in (4, 16):
        spread = world.manager.create_writer(world.stream(f"spread-{segments}", segments))

        def flush(spread=spread) -> None:  # type: ignore[no-untyped-def]
            for key in range(256):
                spread.write_event(_SMALL, f"key-{key}")
            spread.flush()

        flush()
        yield world.count(f"append that reaches {segments} segments", 256, _times(256, flush))
    transactions = world.manager.create_transactional_writer(world.stream("transactions"))

    def transaction() -> None:
        opened = transactions.begin_transaction()
        for _ in range(100):
            opened.write_event(_SMALL, _KEY)
        opened.commit()

    transaction()
    yield world.count("transaction of 100 events", 256, _times(256, transaction))


def _reads() -> Iterator[Count]:
    world = _World("reads")
    writer = world.manager.create_writer(world.stream("read"))
    count = 1_024

    def append() -> None:
        writer.write_event(_SMALL, _KEY).result()

    for _ in range(count):
        append()
    last = world.manager.tail("s/read")
    append()
    yield world.count(
        "opening a stream, and reading its last event",
        1,
        lambda: list(world.fresh().read("s/read", start=last)),
    )
    yield world.count(
        "cold read of a chunk, of 1,025",
        count + 1,
        lambda: list(world.fresh().read("s/read")),
    )
    following = world.fresh().stream("s/read")
    list(following.follow(timeout=5))
    yield _hourly(
        "an hour of a follower of an idle stream, by its first minute",
        world.count("", 1, lambda: list(following.follow(timeout=_IDLE_SECONDS))),
    )


def _tables() -> Iterator[Count]:
    world = _World("tables")
    world.manager.create_key_value_table("s/table", KeyValueTableConfiguration(key_type="string"))
    with world.manager.key_value_table("s/table") as table:
        table.put("first", b"value").result()
        yield world.count(
            "put of a key-value table",
            512,
            _times(512, lambda: table.put(_KEY, b"v" * 100).result()),
        )
        yield world.count(
            "fresh get of a key-value table", 512, _times(512, lambda: table.get(_KEY, fresh=True))
        )


def _hourly(name: str, count: Count) -> Count:
    """Return what was counted in _IDLE_SECONDS as that of an hour."""
    hourly = 3_600 / _IDLE_SECONDS
    calls = {kind: round(number * hourly) for kind, number in count.calls.items()}
    return Count(
        name,
        1,
        {**dict.fromkeys(KINDS, 0.0), **calls},
        count.written_bytes * hourly,
        count.read_bytes * hourly,
    )


def _groups() -> Iterator[Count]:
    world = _World("groups")
    group = world.manager.create_reader_group("s/group", [world.stream("read")])
    with group.create_reader("reader") as reader:
        reader.read_next_event(timeout=30)
        yield _hourly(
            "an hour of an idle reader of a group, by its first minute",
            world.count("", 1, lambda: reader.read_next_event(timeout=_IDLE_SECONDS)),
        )


def _segments_of(world: _World, stream: str) -> object:
    return world.fresh().segments(stream)


def _sizes() -> Iterator[Count]:
    for streams in (10, 100, 300):
        world = _World(f"creation-{streams}")

        def create(world: _World = world, streams: int = streams) -> None:
            for number in range(streams):
                world.stream(f"t{number}")

        yield world.count(f"creating a stream, the mean of {streams}", streams, create)
    world = _World("segments")
    for segments in (1, 100, 1_000, 10_000):
        name = world.stream(f"of-{segments}", segments)
        yield world.count(
            f"opening a stream, segments: {segments:,}",
            1,
            partial(_segments_of, world, name),
        )
