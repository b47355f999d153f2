"""Looks at many streams, one after the other, again and again: those that fit stay open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.registry import benchmark

_LOOKS = """
import gc, json, os, sys, time
from bench.harness.counting_store import CountingStore
from pravega_spark import StreamManager
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import open_stream
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration

def resident_mib():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

count, rounds = int(sys.argv[1]), int(sys.argv[2])
store = CountingStore(MemoryStore("looks"))
names = [f"bench/s{number}" for number in range(count)]
for name in names:
    stream = StreamLog(store, name)
    stream.log.maintain = None
    lifecycle.create(stream, 1, StreamConfiguration(ScalingPolicy.fixed(1)))
del stream
before = resident_mib()

def look_at_all():
    for name in names:
        open_stream(store, name).view()

look_at_all()
calls, begun, opened, real = store.total, time.process_time(), 0, StreamLog.__init__

def counted(*arguments):
    global opened
    opened += 1
    real(*arguments)

StreamLog.__init__ = counted
for _ in range(rounds):
    look_at_all()
looks = rounds * count
used, made = time.process_time() - begun, store.total - calls
print(json.dumps([made / looks, 1e6 * used / looks, 1 - opened / looks, resident_mib() - before]))
"""
_SOME, _MANY = 1_060, 10_600


@benchmark()
def looks_at_many_streams(context: Context) -> Iterator[Figure]:
    """A process looks at 1,060 idle streams, and at ten times as many: all stay open."""
    rounds = context.size(5, 1)
    for count in (_SOME, _MANY):
        command = [sys.executable, "-c", _LOOKS, str(count), str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        calls, used, hits, memory = json.loads(done.stdout)
        yield Figure(
            f"a look at each of {count:,} streams, in turn",
            calls,
            "calls",
            note=f"{100 * hits:.0f} % are open, {used:.0f} µs of processor time, {memory:.0f} MiB",
            limited_by="a request for the next version",
        ).within(at_most=1.0)
