"""Metrics of a process: what counting costs writers and readers, and what not counting costs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry

from bench.harness.context import Context
from bench.harness.dataset import EVENT
from bench.harness.figures import Figure
from bench.harness.measure import interleave
from bench.harness.registry import benchmark
from pravega_spark import StreamManager, start_metrics
from pravega_spark.engine.runtime.observers import observers

_REPORTS = 6
"""Places that look for observers in the course of an append that a thread of its own commits."""


@benchmark()
def process_metrics(context: Context) -> Iterator[Figure]:
    """Lone appends and reads in memory, where no disk hides the cost, with metrics and without.

    A lone append is the worst case: each of its events is a batch, a commit and a report of both.
    """
    appends, events = context.size(1_000, 50), context.size(100_000, 5_000)
    manager = StreamManager(f"memory://{uuid.uuid4().hex}")
    manager.create_scope("s")
    manager.create_stream("s/appended")
    manager.create_stream("s/read")
    with manager.create_writer("s/read") as writer:
        writer.write_events([EVENT] * events, routing_key="k")
    reader = manager.stream("s/read").create_reader()

    with manager.create_writer("s/appended") as writer:

        def append() -> None:
            for _ in range(appends):
                writer.write_event(EVENT, "k").result()

        def read() -> None:
            for _ in reader.batches():
                pass

        sides = {
            "appends": lambda: _used_us(append, appends),
            "counted appends": _counted(lambda: _used_us(append, appends)),
            "reads": lambda: _used_us(read, events),
            "counted reads": _counted(lambda: _used_us(read, events)),
            "unobserved": lambda: _used_us(lambda: _report(appends), appends),
        }
        found = interleave(context.size(15, 3), sides)
    yield Figure.of_rounds(
        "lone append in memory with metrics, CPU",
        found["counted appends"],
        "µs",
        "the same without",
        found["appends"],
    ).within(ratio_at_most=1.1)
    yield Figure.of_rounds(
        "read of an event of a batch with metrics, CPU",
        found["counted reads"],
        "µs",
        "the same without",
        found["reads"],
    ).within(ratio_at_most=1.1)
    yield Figure.of_rounds(
        "looks for observers in an append without metrics",
        found["unobserved"],
        "µs",
        "the whole append",
        found["appends"],
    ).within(ratio_at_most=0.01)


def _used_us(action: Callable[[], object], count: int) -> float:
    """Return the processor time of all threads, in µs for each of ``count`` events."""
    begun = time.process_time()
    action()
    return 1e6 * (time.process_time() - begun) / count


def _counted(side: Callable[[], float]) -> Callable[[], float]:
    """Return a side that is measured while metrics count."""

    def counted() -> float:
        with start_metrics(registry=CollectorRegistry()):
            return side()

    return counted


def _report(appends: int) -> None:
    """Look for observers as often as so many appends do."""
    for _ in range(appends * _REPORTS):
        for observer in observers:
            observer.race_lost("s/appended")
