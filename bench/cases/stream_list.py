"""A list of a thousand and of ten thousand streams, in a process that has opened none of them."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.counting_store import CountingStore
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from pravega_spark.cli.stream_description import show_summaries
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle, stream_log
from pravega_spark.engine.stream.stream_log import StreamLog

_FEW, _MANY = 1_000, 10_000


@benchmark()
def stream_list(context: Context) -> Iterator[Figure]:
    """What ``stream ls`` does after it has the names, which ``-q`` prints without it."""
    few, few_calls, _ = _list(context.size(_FEW, 100))
    many, many_calls, seconds = _list(context.size(_MANY, 1_000))
    yield Figure.of_rounds(
        f"list {_MANY:,} streams, CPU of each",
        [many],
        "ms",
        f"{_FEW:,} streams",
        [few],
        note=f"storage calls of each {many_calls:.1f} and {few_calls:.1f}; {seconds:.1f} s in all",
        limited_by="opening each stream, and Python's collector, which looks at all that is open",
    ).within(at_most=1.0, ratio_at_most=2.0)


def _list(streams: int) -> tuple[float, float, float]:
    """Return the processor time in ms and the storage calls of each stream, and all seconds."""
    store = CountingStore(MemoryStore(f"list-of-{streams}"))
    names = [f"bench/s{number}" for number in range(streams)]
    for name in names:
        stream = StreamLog(store, name)
        stream.log.maintain = None
        lifecycle.create(stream, 1, StreamConfiguration(ScalingPolicy.fixed(1)))
    stream_log._open.reset()
    calls, used, begun = store.total, time.process_time(), time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        show_summaries(store, names, "json")
    assert shown.getvalue().count('"stream"') == streams
    seconds, used = time.perf_counter() - begun, time.process_time() - used
    return 1e3 * used / streams, (store.total - calls) / streams, seconds
