"""Many writers of one stream on a real S3 server with 30 ms added to each call."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from bench.harness.context import Context
from bench.harness.distant_bucket import DistantBucket, start_distant_bucket
from bench.harness.figures import Figure
from bench.harness.registry import benchmark
from bench.harness.writer_load import WriterLoad
from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager

_PROCESSES = 16
_TIMED = """
import collections, json, sys, threading, time
from pravega_spark import EventStreamWriter
from pravega_spark.engine.store import open_store
from pravega_spark.engine.store.s3 import S3Store
from pravega_spark.engine.stream.stream_log import StreamLog

kind, root, options, stream, name, count, warm, seconds = json.loads(sys.argv[1])
store, gets, get = open_store(root, **options), collections.Counter(), S3Store.get

def counted_get(self, key):
    try:
        found = get(self, key)
    except FileNotFoundError:
        gets["missed"] += 1
        raise
    gets["found"] += 1
    return found

S3Store.get = counted_get

def appends(number):
    writer, key = EventStreamWriter(StreamLog(store, stream)), f"{name}-{number}"
    return lambda: writer.write_event(b"e" * 100, key).result(), writer.close

def bare_puts(number):
    names = iter(range(1 << 30))
    def put():
        key = f"bare/{name}-{number}-{next(names)}"
        store.put(f"{key}-chunk", b"e" * 1_000)
        store.put_if_absent(f"{key}-commit", b"e" * 2_000)
    return put, lambda: None

made = [{"appends": appends, "bare puts": bare_puts}[kind](number) for number in range(count)]
for act, _ in made:
    act()
print("ready", flush=True)
sys.stdin.readline()
begin, times = time.monotonic() + warm, [[] for _ in made]

def run(act, times):
    while (before := time.monotonic()) < begin + seconds:
        act()
        if before >= begin:
            times.append(time.monotonic() - before)

threads = [threading.Thread(target=run, args=(act, of)) for (act, _), of in zip(made, times)]
for thread in threads:
    thread.start()
time.sleep(warm)
print("warm", flush=True)
gets.clear()
cpu = time.process_time()
time.sleep(seconds)
cpu = time.process_time() - cpu
found, missed = gets["found"], gets["missed"]
print("over", flush=True)
for thread in threads:
    thread.join()
for _, close in made:
    close()
print(json.dumps([times, cpu, found, missed]))
"""


def _measure(
    bucket: DistantBucket,
    stream: str,
    writers: int,
    warm: float,
    seconds: float,
    kind: str = "appends",
) -> WriterLoad:
    """Let as many processes write, up to 16; beyond that each runs several writers in threads.

    The writers of a process share connections, but neither views nor commits, as if each had a
    process of its own. ``bare puts`` are the two objects of a lone append, and nothing else.
    """
    given = [kind, bucket.root, bucket.options, stream]
    count = min(writers, _PROCESSES)
    each = [writers // count + (n < writers % count) for n in range(count)]
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", _TIMED),
                json.dumps([*given, f"w{n}", each[n], warm, seconds]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(count)
    ]
    _wait_for(processes, "ready")
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    _wait_for(processes, "warm")
    bucket.endpoint.calls()
    _wait_for(processes, "over")
    calls = bucket.endpoint.calls()
    lists, cpu, hits, misses = zip(*map(_result, processes), strict=True)
    times = [of for each in lists for of in each]
    looks = sum(hits), sum(misses)
    return WriterLoad(seconds, times, sum(cpu), calls.total(), looks=looks)


def _wait_for(processes: list[subprocess.Popen[str]], line: str) -> None:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{line}\n"


def _result(process: subprocess.Popen[str]) -> tuple[list[list[float]], float, int, int]:
    with process:  # closes its pipes and waits
        assert process.stdout is not None
        times, cpu, found, missed = json.loads(process.stdout.read())
    return times, cpu, found, missed


def _bound(count: int, alone: WriterLoad, many: WriterLoad, bare: WriterLoad) -> str:
    """Say what bounds many writers: the calls that follow one another, and the two cores."""
    by_calls = count * 2 / 4.5
    by_cores = bare.calls_per_second / many.calls_each / alone.per_second
    return (
        "4.5 calls one after the other (the chunk, half a commit of others, a listing, a commit, "
        f"the GET of it) where one writer waits for two: {by_calls:.1f}x; and by two cores, which "
        f"clients, server and proxy share: {count} clients of bare PUTs make "
        f"{bare.calls_per_second:.0f} calls a second, enough for {by_cores:.1f}x"
    )


@benchmark()
def s3_writers(context: Context) -> Iterator[Figure]:
    """1, 16 and 64 writers that each wait for an acknowledgement before the next event."""
    seconds, warm = context.size(20, 2), context.size(5, 1)
    with start_distant_bucket() as bucket:
        manager = StreamManager(bucket.root, storage_options=bucket.options)
        manager.create_scope("s")
        for name in ("alone", "many-16", "many-64"):
            manager.create_stream(f"s/{name}", StreamConfiguration(ScalingPolicy.fixed(4)))
        alone = _measure(bucket, "s/alone", 1, 1.0, seconds / 2)
        yield Figure.of_rounds(
            "a writer alone, S3: p50 of an acknowledgement",
            [1e3 * alone.quantile(0.5)],
            "ms",
            "two calls",
            [60.0],
            note=f"{bucket.server}; {alone.note}; {alone.calls_each:.2f} calls each",
        ).within(at_most=75.0)
        for count, times, most_ms, most_calls in ((16, 6.5, 400.0, 4.0), (64, 12.0, 550.0, 4.3)):
            many = _measure(bucket, f"s/many-{count}", count, warm, seconds)
            bare = _measure(bucket, "", count, warm / 2, seconds / 2, "bare puts")
            bound = _bound(count, alone, many, bare)
            yield Figure.of_rounds(
                f"{count} writers, S3: appends a second",
                [many.per_second],
                "/s",
                "one such writer",
                [alone.per_second],
                note=f"{min(count, _PROCESSES)} processes; {many.note}",
                limited_by=bound,
            ).within(ratio_at_least=times)
            yield Figure.of_rounds(
                "the same: storage calls a second",
                [many.calls_per_second],
                "/s",
                "bare PUTs by as many",
                [bare.calls_per_second],
                note=f"of bare PUTs {bare.note}",
                limited_by="a look that would find nothing waits, so the store idles meanwhile",
            ).within(ratio_at_least=0.7)
            yield Figure(
                "the same: p99 of an acknowledgement",
                1e3 * many.quantile(0.99),
                "ms",
                limited_by=bound,
            ).within(at_most=most_ms)
            yield Figure(
                "the same: calls an acknowledgement",
                many.calls_each,
                "",
                note=f"{bucket.server}; {many.looks_each}",
                limited_by="an owner reads each commit from its last one to that which holds its "
                f"event: {many.looks_each}",
            ).within(at_most=most_calls)
