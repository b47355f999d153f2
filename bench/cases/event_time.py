"""Event time: what notes cost a writer, and what the marks of many writers cost a watermark."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.measure import interleave, median_ms, timed_each
from bench.harness.registry import benchmark
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.watermarks import MARK_PREFIX
from pravega_spark.event_writer import EventStreamWriter


def _note_marks(stream: StreamLog, name: str, context: Context, first: int, end: int) -> None:
    time = context.manager.event_time(name)
    for number in range(first, end):
        time.note(f"writer-{number:04}", 1_000 + number)


def _events(writer: EventStreamWriter, numbers: Iterator[int], notes: bool) -> float:
    def write() -> None:
        done = writer.write_event(EVENT, "key")
        if notes:
            writer.note_time(next(numbers))
        done.result()

    return 1e3 * statistics.median(timed_each(write, 10))


@benchmark()
def event_time(context: Context) -> Iterator[Figure]:
    """A stream of four segments and the marks of more and more writers."""
    name = context.create("timed", 4)
    stream = context.manager.stream(name)._log()
    numbers, marks = iter(range(10_000, 1 << 40)), 0
    with context.manager.create_writer(name, "measured") as writer:
        for count in (10, 100, context.size(1_000, 200)):
            _note_marks(stream, name, context, marks, count)
            marks = count
            seen = interleave(
                context.size(20, 2),
                {
                    "noted": lambda: _events(writer, numbers, True),
                    "plain": lambda: _events(writer, numbers, False),
                },
            )
            yield Figure.of_rounds(
                f"an event with a note, {count} writers with marks, p50",
                seen["noted"],
                "ms",
                "an event without",
                seen["plain"],
            )
            stored = [
                len(value)
                for key, value in stream.view().snapshot.domains.items()
                if key.startswith(MARK_PREFIX)
            ]
            yield Figure(
                f"the newest watermark of {count} marks, with a look at the log",
                median_ms(context.manager.event_time(name).watermark, 20),
                "ms",
                note=f"the marks are {sum(stored) / 1_000:.1f} kB of the log's state",
            )
