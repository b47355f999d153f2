"""A durable append of one event: beside its floor, and in streams of many chunks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.floor import AppendFloor, last_append
from bench.harness.long_stream import long_stream
from bench.harness.measure import Side, interleave, median_ms, percentile, timed_each
from bench.harness.registry import benchmark
from pravega_spark import EventStreamWriter


def append_one(writer: EventStreamWriter) -> Callable[[], object]:
    """Return an action that writes one event and waits until it is durable."""
    return lambda: writer.write_event(EVENT, "key").result()


@benchmark()
def durable_append(context: Context) -> Iterator[Figure]:
    """One event, durable and visible, from a writer of a stream of 4 segments."""
    stream = context.create("append", 4)
    with context.manager.create_writer(stream) as writer:
        append = append_one(writer)
        median_ms(append, context.size(300, 20))
        floor = AppendFloor(context.folder / "floor-append", *last_append(context.manager, stream))
        median_ms(floor, context.size(100, 20))
        calls = context.size(40, 10)
        seen: list[float] = []

        def ours() -> float:
            found = timed_each(append, calls)
            seen.extend(found)
            return 1e3 * statistics.median(found)

        sides = {"ours": ours, "floor": lambda: median_ms(floor, calls)}
        found = interleave(context.size(25, 3), sides)
    yield Figure.of_rounds(
        "durable append of one event, local, p50",
        found["ours"],
        "ms",
        "the same writes, links and fsyncs",
        found["floor"],
        note=f"p99 {1e3 * percentile(seen, 0.99):.2f} ms",
        limited_by="two waits for the disk, where the floor has four; the Python of one batch: "
        "commit JSON, thread hand-overs",
    ).within(at_most=3.0, ratio_at_most=1.6)


@benchmark()
def append_to_long_stream(context: Context) -> Iterator[Figure]:
    """The same append in streams that hold 10 to 100,000 commits and chunks."""
    sizes = [10, 100, 600] if context.quick else [10, 10_000, 100_000]
    streams = {size: long_stream(context, size) for size in sizes}
    writers = {size: context.manager.create_writer(name) for size, name in streams.items()}
    calls = context.size(30, 5)

    def side(writer: EventStreamWriter) -> Side:
        append = append_one(writer)
        median_ms(append, calls)
        return lambda: median_ms(append, calls)

    found = interleave(
        context.size(15, 3), {str(size): side(writer) for size, writer in writers.items()}
    )
    for writer in writers.values():
        writer.close()
    smallest, *larger = map(str, sizes)
    for size in larger:
        yield Figure.of_rounds(
            f"the same in a stream of {int(size):,} chunks",
            found[size],
            "ms",
            f"a stream of {smallest} chunks",
            found[smallest],
            note="the engine built the stream without fsync, from hard-linked chunks",
            limited_by="what grows with the log: the snapshot, or the folder's entries",
        ).within(ratio_at_most=1.3)
