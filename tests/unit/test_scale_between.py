"""A scale between any two steps of an operation: nothing is lost, repeated or out of order by key.

A step is a storage call, so every failpoint lies between two steps. Each operation runs once to
count its calls, and then once for each call, with a scale by another process just before it, and
with writes behind the scale.
"""

from __future__ import annotations

import itertools
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import append
from pravega_spark.manager import StreamManager
from pravega_spark.scaling import commit
from pravega_spark.spark import settings
from pravega_spark.spark.read.columns import schema_of
from pravega_spark.spark.source import PravegaDataSource
from pravega_spark.spark.write.task_run import TaskRun
from pravega_spark.values.segments import KeyRange, StreamCut
from tests.harness.small_streams import staged

pytestmark = pytest.mark.slow

NAME = "s/a"
KEYS = [f"k{number}" for number in range(9)]
MOST_STEPS = 8
"""Steps of a reading that are tested, evenly spread: one with small batches has hundreds."""
_stores = itertools.count()

Edges = list[list[float]]
"""Successive scales: the edges of the new segments, which replace the old ones between."""
SCALES: dict[str, Edges] = {
    "split and merge": [[0.0, 0.1, 1 / 3, 1.0]],
    "across borders": [[0.0, 0.5, 0.6, 1.0]],
    "twice": [[0.0, 1.0], [0.0, 0.3, 0.7, 1.0]],
}
Read = tuple[str | None, int]


class Interrupted(MemoryStore):
    """A store that runs another action before one of its calls."""

    def __init__(self, at: int | None, what: Callable[[], object]) -> None:
        super().__init__(f"interrupted-{next(_stores)}")
        self.calls, self.at, self.what = 0, at, what
        self.watched = self.happened = False
        self.is_over = at is None
        """Whether all actions had run before the last round began."""

    def begin_round(self) -> None:
        """Record that a new round begins."""
        self.is_over = self.at is None or self.happened

    def _step(self) -> None:
        if not self.watched:
            return
        self.calls += 1
        if self.calls - 1 == self.at:
            self.watched = False
            self.what()
            self.watched = self.happened = True


def _stepping(name: str) -> Any:
    def call(self: Interrupted, *args: Any, **options: Any) -> Any:
        if "/metadata" not in str(args[0]):  # a scale's rows, whose log is maintained in a thread
            self._step()
        return getattr(MemoryStore, name)(self, *args, **options)

    return call


CALLS = ["get", "get_many", "exists", "put_if_absent", "put", "delete", "folders", "open", "list"]
for _name in CALLS:
    setattr(Interrupted, _name, _stepping(_name))


@dataclass
class World:
    """A stream with some events, the record of its writes, and a future scale."""

    scale: Edges
    at: int | None
    writes_behind: bool = False
    written: dict[str | None, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.store = Interrupted(self.at, self.interrupt)
        self.numbers = itertools.count()
        self.manager = StreamManager(self.store.url)
        lifecycle.create(self.other(), 1, StreamConfiguration())
        apply(self.other(), [[0.0, 1 / 3, 2 / 3, 1.0]])
        self.write()

    def other(self) -> StreamLog:
        """The stream as another process has it."""
        stream = StreamLog(self.store, NAME)
        stream.log.maintain = None
        return stream

    def events(self, nulls: int = 3) -> list[tuple[str | None, bytes]]:
        """Record and return an event of each key, and some without a key."""
        keys = [*KEYS, *[None] * nulls]
        found = [(key, next(self.numbers)) for key in keys]
        for key, number in found:
            self.written[key].append(number)
        return [(key, b"%d" % number) for key, number in found]

    def write(self) -> None:
        """Write events as another process."""
        stream = self.other()
        view = stream.view()
        append(stream, 1, view.version, staged(stream, self.events()))

    def interrupt(self) -> None:
        """Scale, and perhaps write events behind the scale, which must be read last."""
        apply(self.other(), self.scale)
        if self.writes_behind:
            self.write()

    def watched(self, operation: Callable[[], Any]) -> Any:
        """Run the operation and count its storage calls."""
        self.store.watched = True
        found = operation()
        self.store.watched = False
        return found

    def check(self) -> None:
        """Read everything, and check that later events without a key reach all segments."""
        found: dict[str | None, list[int]] = defaultdict(list)
        for event in self.manager.read(NAME):
            found[event.routing_key].append(int(event.data))
        compare(found, self.written)
        before = dict(self.manager.tail(NAME))
        with self.manager.create_writer(NAME) as writer:
            for _ in range(2 * len(self.manager.segments(NAME))):
                writer.write_event(b"loose")
        assert all(end == before[s] + 2 for s, end in self.manager.tail(NAME))


@pytest.fixture(autouse=True)
def memory_is_a_root_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's tasks run in this process here, so that they share its memory."""
    monkeypatch.setattr(settings, "given_root", lambda found: str(found["root"]))


def apply(stream: StreamLog, scale: Edges) -> None:
    """Scale, step by step."""
    for edges in scale:
        segments = stream.view().active.segments
        inside = [s for s in segments if edges[0] <= s.key_range.low < edges[-1]]
        ranges = [KeyRange(low, high) for low, high in itertools.pairwise(edges)]
        commit.scale_stream(stream, [segment.segment_id for segment in inside], ranges)


def compare(found: dict[str | None, list[int]], written: dict[str | None, list[int]]) -> None:
    """Compare events by key: in order, except those without a key."""
    loose = sorted(found.pop(None, []))
    assert loose == sorted(written.get(None, []))
    assert found == {key: numbers for key, numbers in written.items() if key is not None}


# ------------------------------------------------------------------------------- what is done

ROWS = StructType([StructField(n, StringType()) for n in ("routing_key", "event")])
COLUMNS = schema_of("pravega", ("routing_key", "event"))


def source(world: World, **options: str) -> PravegaDataSource:
    """The data source as Spark creates it."""
    return PravegaDataSource({"root": world.store.url, "path": NAME, **options})


def rows(world: World) -> pa.RecordBatch:
    """One Arrow batch of a DataFrame to write."""
    events = world.events()
    columns = [[key for key, _ in events], [event.decode() for _, event in events]]
    return pa.record_batch([pa.array(c, pa.string()) for c in columns], ["routing_key", "event"])


def event_writer(world: World) -> None:
    """Batches of an event writer; each pointer leads to its event."""
    with world.manager.create_writer(NAME, "w") as writer:
        for _ in range(2):
            futures = [(writer.write_event(e, k), k, e) for k, e in world.events()]
            writer.flush()
    world.store.watched = False
    for future, key, event in futures:
        found = world.manager.fetch_event(future.result())
        assert (found.routing_key, found.data) == (key, event)


def staged_append(world: World) -> None:
    """Chunks that the commit moves to the successors of their segments."""
    stream = world.other()
    version = stream.view().version
    append(stream, 1, version, staged(stream, world.events()))


def spark_write(world: World) -> None:
    """A DataFrame of two partitions: the plan, the tasks in other processes, the commit."""
    writer = pickle.loads(pickle.dumps(source(world).writer(ROWS, False)))
    messages = [writer.write(iter([rows(world)])) for _ in range(2)]
    writer.commit(pickle.loads(pickle.dumps(messages)))


def spark_batch_of_a_query(world: World) -> None:
    """A micro-batch of the sink."""
    options = {"checkpointLocation": "memory://nowhere"}
    writer = pickle.loads(pickle.dumps(source(world, **options).streamWriter(ROWS, False)))
    message = writer.write(iter([rows(world)]))
    message.task = TaskRun("query")
    for _ in range(2):
        writer.commit([message], 7)


def transaction(world: World) -> None:
    """A transaction that is flushed in the middle."""
    with world.manager.create_transactional_writer(NAME) as writer:
        opened = writer.begin_transaction()
        put(world, opened)
        opened.flush()
        put(world, opened)
        opened.commit()


def transaction_decided(world: World) -> None:
    """A decided transaction that a sweep commits."""
    with world.manager.create_transactional_writer(NAME) as writer:
        opened = writer.begin_transaction()
        put(world, opened)
        opened.commit(wait=False)
    world.manager.sweep_transactions(NAME)


def rolling_transaction(world: World) -> None:
    """A transaction with one scale before its commit, and another one during it."""
    with world.manager.create_transactional_writer(NAME) as writer:
        first, second = writer.begin_transaction(), writer.begin_transaction()
        put(world, first)
        first.flush()
        world.store.watched = False
        low, high = next((s.key_range.low, s.key_range.high) for s in world.manager.segments(NAME))
        doomed = [world.manager.segments(NAME)[0].segment_id]
        world.manager.scale_stream(NAME, doomed, [(low, low + 0.05), (low + 0.05, high)])
        world.store.watched = True
        first.commit()
        put(world, second)
        second.commit()


def put(world: World, opened: Any) -> None:
    for key, event in world.events():
        opened.write_event(event, key)


WRITES = [
    event_writer,
    staged_append,
    spark_write,
    spark_batch_of_a_query,
    transaction,
    transaction_decided,
    rolling_transaction,
]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("operation", WRITES)
def test_scale_between_any_two_steps_of_a_write(
    operation: Callable[[World], None], scale: str
) -> None:
    counted = World(SCALES[scale], None)
    counted.watched(lambda: operation(counted))
    counted.check()
    assert counted.store.calls > 3
    for at in range(counted.store.calls):
        world = World(SCALES[scale], at)
        world.watched(lambda w=world: operation(w))  # type: ignore[misc]
        world.check()


# ------------------------------------------------------------------------------- how it is read


def source_reading(world: World, options: dict[str, str], *, all_now: bool) -> list[Read]:
    """Read as a query does: offsets, partitions, tasks, until there are no new events."""
    reader = source(world, startingOffsets="earliest", **options).streamReader(COLUMNS)
    found: list[Read] = []
    start = reader.initialOffset()
    while True:
        # Another run of the same query: it knows only the offset.
        world.store.begin_round()
        reader = pickle.loads(pickle.dumps(reader))
        if all_now:
            reader.prepareForTriggerAvailableNow()
        before = start
        while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
            for partition in reader.partitions(start, end):
                task = pickle.loads(pickle.dumps((reader, partition)))
                for batch in task[0].read(task[1]):
                    found += read_of(batch)
            start = end
        if start == before and world.store.is_over:
            return found


def batch_reading(world: World) -> list[Read]:
    """Read as a DataFrame does; its partitions are of one version and in no order."""
    reader = source(world).reader(COLUMNS)
    found = [
        read for partition in reader.partitions() for b in reader.read(partition)
        for read in read_of(b)
    ]  # fmt: skip
    return sorted(found, key=lambda read: read[1])


def plain_reading(world: World) -> list[Read]:
    """Read up to the tail, and then from there."""
    reader = world.manager.create_reader(NAME)
    found: list[Read] = []
    cut: StreamCut | None = StreamCut.EARLIEST
    while cut is not None and cut != reader.position:
        cut = cut if reader.position is None else reader.position
        found += [(e.routing_key, int(e.data)) for e in reader.events(cut)]
    return found


def read_of(batch: pa.RecordBatch) -> list[Read]:
    keys, events = (batch.column(name).to_pylist() for name in ("routing_key", "event"))
    return [(key, int(event)) for key, event in zip(keys, events, strict=True)]


def queries() -> Iterator[tuple[str, Callable[[World], list[Read]]]]:
    """Every trigger with every limit."""
    limits: list[dict[str, str]] = [
        {},
        {"maxOffsetsPerTrigger": "1"},
        {"maxOffsetsPerTrigger": "7", "minPartitions": "5"},
        {"maxBytesPerTrigger": "20"},
    ]
    for options, all_now in itertools.product(limits, (False, True)):
        text = " ".join(f"{name}={value}" for name, value in options.items()) or "no limit"
        name = f"{'AvailableNow' if all_now else 'query'}, {text}"
        yield name, lambda w, o=options, a=all_now: source_reading(w, o, all_now=a)  # type: ignore[misc]


READS = {"reader": plain_reading, "frame": batch_reading, **dict(queries())}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("reading", READS)
def test_scale_between_any_two_steps_of_a_reading(reading: str, scale: str) -> None:
    counted = World(SCALES[scale], None)
    counted.watched(lambda: READS[reading](counted))
    steps = range(counted.store.calls)
    for at in steps[:: max(1, len(steps) // MOST_STEPS)]:
        world = World(SCALES[scale], at, writes_behind=True)
        before = set(itertools.chain(*world.written.values()))
        found: dict[str | None, list[int]] = defaultdict(list)
        for key, number in world.watched(lambda w=world: READS[reading](w)):  # type: ignore[misc]
            found[key].append(number)
        if reading == "frame":  # of one version: with all events behind the scale, or none
            late = set(itertools.chain(*found.values())) - before
            assert len(late) in (0, sum(map(len, world.written.values())) - len(before))
            compare(
                found, {k: [n for n in w if n in before | late] for k, w in world.written.items()}
            )
        else:
            compare(found, world.written)
