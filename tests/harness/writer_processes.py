"""Writers in processes that tests kill: ``python -m tests.harness.writer_processes``."""

from __future__ import annotations

import json
import os
import sys
import threading

from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.errors import PravegaSparkError
from pravega_spark.manager import StreamManager

STREAM = "s/t"


def manager_of(root: str) -> StreamManager:
    options = json.loads(os.environ.get("STORAGE_OPTIONS", "{}"))
    return StreamManager(root, storage_options=options)


def resume(root: str, writer_id: str, count: str) -> None:
    """Resume after the last durable number, up to ``count``, with a few events in each commit."""
    with manager_of(root).create_writer(STREAM, writer_id) as writer:
        for n in range(writer.last_event_number, int(count)):
            writer.write_event(str(n), f"k{n % 3}")
            if n % 4 == 3:
                writer.flush(f"line {n + 1}")


def stall(root: str, writer_id: str) -> None:
    """Write one event, wait for a line of input, write another, and print the outcome."""
    writer = manager_of(root).create_writer(STREAM, writer_id)
    writer.write_event("before the stall").result(60)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        writer.write_event("after the stall").result(60)
        print("written", flush=True)
    except PravegaSparkError as error:
        print(type(error).__name__, flush=True)
    writer.close()


def race(root: str, name: str, count: str) -> None:
    """Wait for a line of input, then commit ``count`` times as fast as possible."""
    writer = manager_of(root).create_writer(STREAM)
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(int(count)):
        writer.write_event(f"{name}-{n}", name).result(240)
    writer.close()


def write_on(root: str, name: str) -> None:
    """Write events, each after the acknowledgement of the one before, until a line of input.

    Prints how many there are.
    """
    ends, count = threading.Event(), 0
    with manager_of(root).create_writer(STREAM) as writer:
        print("ready", flush=True)

        def wait_for_line() -> None:
            sys.stdin.readline()
            ends.set()

        threading.Thread(target=wait_for_line).start()
        while not ends.is_set():
            writer.write_event(f"{name}-{count}", name).result(240)
            count += 1
    print(count, flush=True)


def create(root: str, segments: str) -> None:
    """Wait for a line of input, create the scope and the stream, and print if this process did."""
    manager = manager_of(root)
    print("ready", flush=True)
    sys.stdin.readline()
    manager.create_scope("s")
    configuration = StreamConfiguration(ScalingPolicy.fixed(int(segments)))
    print(manager.create_stream(STREAM, configuration), flush=True)


def delete(root: str) -> None:
    """Seal and delete the stream."""
    manager = manager_of(root)
    manager.seal_stream(STREAM)
    manager.delete_stream(STREAM)


def sweep(root: str) -> None:
    """Sweep the stream without a grace period."""
    manager_of(root).sweep_stream(STREAM, grace=0, retain=0)


if __name__ == "__main__":
    action = {f.__name__: f for f in (resume, stall, race, write_on, create, delete, sweep)}[
        sys.argv[1]
    ]
    action(*sys.argv[2:])
