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
_WRITERS = """
import json, sys, threading, time
from pravega_spark import EventStreamWriter
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream.stream_log import StreamLog

root, options, stream, name, count, warm, seconds = json.loads(sys.argv[1])
store = open_store(root, **options)
writers = [EventStreamWriter(StreamLog(store, stream)) for _ in range(count)]
for number, writer in enumerate(writers):
    writer.write_event(b"e" * 100, f"{name}-{number}").result()
print("ready", flush=True)
sys.stdin.readline()
begin, times = time.monotonic() + warm, [[] for _ in writers]

def write(number):
    key = f"{name}-{number}"
    while (before := time.monotonic()) < begin + seconds:
        writers[number].write_event(b"e" * 100, key).result()
        if before >= begin:
            times[number].append(time.monotonic() - before)

threads = [threading.Thread(target=write, args=(n,)) for n in range(count)]
for thread in threads:
    thread.start()
time.sleep(warm)
print("warm", flush=True)
cpu = time.process_time()
time.sleep(seconds)
cpu = time.process_time() - cpu
print("over", flush=True)
for thread in threads:
    thread.join()
for writer in writers:
    writer.close()
print(json.dumps([times, cpu]))
"""


def _measure(
    bucket: DistantBucket, stream: str, writers: int, warm: float, seconds: float
) -> WriterLoad:
    """Let as many processes write, up to 16; beyond that each runs several writers in threads.

    The writers of a process share connections, but neither views nor commits, as if each had a
    process of its own.
    """
    count = min(writers, _PROCESSES)
    each = [writers // count + (n < writers % count) for n in range(count)]
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", _WRITERS),
                json.dumps([bucket.root, bucket.options, stream, f"w{n}", each[n], warm, seconds]),
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
    found = [_result(process) for process in processes]
    times = [times for lists, _ in found for times in lists]
    return WriterLoad(seconds, times, sum(cpu for _, cpu in found), calls.total())


def _wait_for(processes: list[subprocess.Popen[str]], line: str) -> None:
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{line}\n"


def _result(process: subprocess.Popen[str]) -> tuple[list[list[float]], float]:
    with process:  # closes its pipes and waits
        assert process.stdout is not None
        times, cpu = json.loads(process.stdout.read())
    return times, cpu


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
            "a writer alone, S3 with 30 ms a call: p50 of an acknowledgement",
            [1e3 * alone.quantile(0.5)],
            "ms",
            "two calls",
            [60.0],
            note=f"{bucket.server}; {alone.note}; {alone.calls_each:.2f} calls each",
        ).within(at_most=75.0)
        for count, target in ((16, 8.0), (64, 24.0)):
            many = _measure(bucket, f"s/many-{count}", count, warm, seconds)
            yield Figure.of_rounds(
                f"{count} writers, S3 with 30 ms a call: appends a second",
                [many.per_second],
                "/s",
                "one such writer",
                [alone.per_second],
                note=f"{min(count, _PROCESSES)} processes; {many.note}",
                limited_by="two cores, which writers, server and proxy share",
            ).within(ratio_at_least=target)
            yield Figure(
                "the same: p99 of an acknowledgement", 1e3 * many.quantile(0.99), "ms"
            ).within(at_most=400.0)
            yield Figure(
                "the same: calls an acknowledgement", many.calls_each, "", note=bucket.server
            ).within(at_most=4.0)
