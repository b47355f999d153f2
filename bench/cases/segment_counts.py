"""Appends to streams of 1 to 64 segments: what segments cost, since all share one log."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.measure import Side, interleave, timed
from bench.harness.registry import benchmark
from pravega_spark import EventStreamWriter

_SEGMENTS = (1, 4, 16, 64)
_KEYS = [f"key-{number}" for number in range(1_024)]


@benchmark()
def appends_by_segments(context: Context) -> Iterator[Figure]:
    """One writer, local: single events, and flushes of 1,024 events with as many keys."""
    writers = {
        count: context.manager.create_writer(context.create(f"segments-{count}", count))
        for count in _SEGMENTS
    }
    rounds, singles, commits = context.size(9, 3), context.size(100, 5), context.size(20, 2)
    single = interleave(
        rounds, {str(count): _singles(writer, singles) for count, writer in writers.items()}
    )
    spread = interleave(
        rounds, {str(count): _commits(writer, commits) for count, writer in writers.items()}
    )
    for writer in writers.values():
        writer.close()
    for count in map(str, _SEGMENTS[1:]):
        yield Figure.of_rounds(
            f"durable appends of one event, {count} segments",
            single[count],
            "commits/s",
            "a stream of 1 segment",
            single["1"],
            limited_by="the log: a commit at a time, however many segments",
        ).within(ratio_at_least=0.8)
        yield Figure.of_rounds(
            f"flushes of 1,024 events with 1,024 keys, {count} segments",
            spread[count],
            "flushes/s",
            "a stream of 1 segment",
            spread["1"],
            limited_by="a chunk for each segment of a commit: on a local disk two fsyncs each",
        )


def _singles(writer: EventStreamWriter, calls: int) -> Side:
    """Return a side that measures commits a second of single events."""

    def run() -> None:
        for _ in range(calls):
            writer.write_event(EVENT, "key").result()

    run()
    return lambda: calls / timed(run)


def _commits(writer: EventStreamWriter, calls: int) -> Side:
    """Return a side that measures flushes a second of events that reach every segment."""

    def run() -> None:
        for _ in range(calls):
            for key in _KEYS:
                writer.write_event(EVENT, key)
            writer.flush()

    run()
    return lambda: calls / timed(run)
