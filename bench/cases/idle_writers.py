"""Open writers without work: the threads, memory and storage calls that they cost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.registry import benchmark

_WRITERS = """
import gc, json, os, sys, threading, time
from bench.harness.counting_store import CountingStore
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.event_writer import EventStreamWriter

def resident_mib():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

root, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = CountingStore(open_store(root))
stream = StreamLog(store, name)
first = EventStreamWriter(stream)
first.write_event(b"first", "k").result()
memory, threads = resident_mib(), threading.active_count()
writers = [EventStreamWriter(stream) for _ in range(count)]
opened = store.total
time.sleep(2.0)
print(json.dumps([threading.active_count(), resident_mib() - memory, store.total - opened]))
"""


@benchmark()
def idle_writers(context: Context) -> Iterator[Figure]:
    """1,000 open writers of one stream that write nothing, in a process of their own."""
    count = context.size(1_000, 50)
    name = context.create("idle")
    command = [sys.executable, "-c", _WRITERS, context.root, name, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    threads, memory, calls = json.loads(done.stdout)
    yield Figure(f"{count:,} idle writers: threads", threads, "threads").within(at_most=8)
    yield Figure(
        f"{count:,} idle writers: memory", memory, "MiB", note="resident, beside one writer"
    ).within(at_most=64)
    yield Figure(
        f"{count:,} idle writers: storage calls in 2 s",
        calls,
        "calls",
        target="0 calls",
        met=calls == 0,
    )
