"""The first event of a backlog of many tiny chunks, and what all of its events take then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.dataset import EVENT
from bench.harness.distant_bucket import start_distant_bucket
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave, timed
from bench.harness.registry import benchmark
from pravega_spark import EventStreamWriter, ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.store import Store, open_store
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.read import read_range
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.values.limits import OBJECT_CALLS
from pravega_spark.values.segments import SegmentRange

_MANY, _FEW = 1_000, 100


class _ChunkStore(CountingStore):
    """Counts how often one waits for a store that is asked for some objects at the same time."""

    waits = 0

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.waits += -(-len(keys) // OBJECT_CALLS)
        return super().get_many(keys)


class _Backlog:
    """A segment of so many chunks of an event each."""

    def __init__(self, store: Store, chunks: int) -> None:
        name = f"bench/chunks-{chunks}"
        lifecycle.create(StreamLog(store, name), 1, StreamConfiguration(ScalingPolicy.fixed(1)))
        with EventStreamWriter(StreamLog(store, name)) as writer:
            for _ in range(chunks):
                writer.write_event(EVENT, "key").result()
        self.store = _ChunkStore(store)
        self.stream = StreamLog(self.store, name)
        (segment_id,) = self.stream.view().tail.positions
        self.range = SegmentRange(name, 1, segment_id, 0, chunks)
        self.calls = self.waits = 0

    def first(self) -> None:
        next(read_range(self.stream, self.range, soon=True))

    def all(self) -> None:
        for _ in read_range(self.stream, self.range, soon=True):
            pass

    def all_at_once(self) -> None:
        for _ in read_range(self.stream, self.range):
            pass

    def first_at_once(self) -> None:
        next(read_range(self.stream, self.range))

    def waits_of(self, action: Callable[[], None]) -> int:
        before = self.store.waits
        action()
        return self.store.waits - before

    def side(self, action: Callable[[], None]) -> Side:
        def measured() -> float:
            calls, waits, begun = self.store.total, self.store.waits, time.process_time()
            action()
            spent = 1e3 * (time.process_time() - begun)
            self.calls, self.waits = self.store.total - calls, self.store.waits - waits
            return spent

        return measured


@benchmark()
def first_event(context: Context) -> Iterator[Figure]:
    """The first event of 1,000 and of 100 chunks, and all events of those that took it."""
    store = open_store(context.manager.root)
    many, few = _Backlog(store, _MANY), _Backlog(store, _FEW)
    rounds = context.size(20, 3)
    found = interleave(rounds, {"many": many.side(many.first), "few": few.side(few.first)})
    yield Figure.of_rounds(
        f"the first event of {_MANY:,} chunks of one, CPU",
        found["many"],
        "ms",
        f"of {_FEW} chunks",
        found["few"],
        note=f"{many.calls} and {few.calls} storage calls",
    ).within(ratio_at_most=2.0)
    notes = []
    for backlog in (many, few):
        backlog.side(backlog.all)()
        ours = backlog.waits
        backlog.side(backlog.all_at_once)()
        notes.append(f"{ours} against {backlog.waits}")
    found = interleave(
        rounds, {"soon": many.side(many.all), "at once": many.side(many.all_at_once)}
    )
    yield Figure.of_rounds(
        f"all events of {_MANY:,} chunks of one, event by event, CPU",
        found["soon"],
        "ms",
        "by large batches alone",
        found["at once"],
        note=f"round trips of {OBJECT_CALLS} objects: {notes[0]}; of {_FEW} chunks {notes[1]}",
    ).within(ratio_at_most=1.2)


@benchmark()
def first_event_on_s3(context: Context) -> Iterator[Figure]:
    """The same on a real S3 server with 30 ms added to each call, by the time that one waits."""
    chunks = context.size(_MANY, _FEW)
    with start_distant_bucket() as bucket:
        StreamManager(bucket.root, storage_options=bucket.options).create_scope("bench")
        store = open_store(bucket.root, **bucket.options)
        backlogs = {count: _Backlog(store, count) for count in (chunks // 10, chunks)}
        for count, backlog in backlogs.items():
            for what, soon, at_once, limit in (
                ("the first event", backlog.first, backlog.first_at_once, 1.0),
                ("all events, event by event", backlog.all, backlog.all_at_once, 1.2),
            ):
                soon(), at_once()
                found = interleave(
                    context.size(7, 2),
                    {"soon": partial(timed, soon), "at once": partial(timed, at_once)},
                )
                waits = [backlog.waits_of(action) for action in (soon, at_once)]
                yield Figure.of_rounds(
                    f"{what} of {count:,} chunks of one, S3",
                    [1e3 * seconds for seconds in found["soon"]],
                    "ms",
                    "by large batches alone",
                    [1e3 * seconds for seconds in found["at once"]],
                    note=f"{bucket.server}; round trips of {OBJECT_CALLS} objects: {waits[0]} "
                    f"against {waits[1]}",
                ).within(ratio_at_most=limit)
