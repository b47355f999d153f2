"""A verb whose decision takes long gets through beside writers in processes that never pause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.log.commit import Log
from tests.harness.releases import start_release
from tests.harness.s3_server import S3Server
from tests.harness.tiers import sized
from tests.harness.writer_processes import STREAM

PROJECT = Path(__file__).parents[2]
WRITERS = 2
SECONDS = sized(5, 50) / 10

OLD_WRITER = """
import sys, threading, pravega_spark
ends, count = threading.Event(), 0
def wait_for_line():
    sys.stdin.readline()
    ends.set()
with pravega_spark.StreamManager(sys.argv[1]).create_writer("s/t") as writer:
    print("ready", flush=True)
    threading.Thread(target=wait_for_line).start()
    while not ends.is_set():
        writer.write_event(f"old-{count}", "old").result(240)
        count += 1
print(count, flush=True)
"""


@contextmanager
def writers(manager: StreamManager, options: Mapping[str, Any], old: int) -> Iterator[list[int]]:
    """Let processes write one event after another; the list has how many, once they ended."""
    environment = {"STORAGE_OPTIONS": json.dumps(dict(options))}
    command = [sys.executable, "-m", "tests.harness.writer_processes", "write_on", manager.root]
    pipe, counts = subprocess.PIPE, list[int]()
    with ExitStack() as stack:
        started = [
            subprocess.Popen(
                [*command, str(number)],
                stdin=pipe,
                stdout=pipe,
                text=True,
                cwd=PROJECT,
                env={**os.environ, **environment},
            )
            for number in range(WRITERS)
        ]
        started += [start_release("0.1.0", OLD_WRITER, manager.root) for _ in range(old)]
        for process in started:
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield counts
        for process in started:
            output, _ = process.communicate("\n", timeout=240)
            counts.append(int(output))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[float]]:
    """Make each decision on the stream's log in this process take so long; list when they began."""

    def slow_down(seconds: float) -> list[float]:
        original, begun = Log._decide, list[float]()

        def decide(log: Log, *args: Any, **options: Any) -> Any:
            decided = original(log, *args, **options)
            if log.path == STREAM:
                begun.append(time.monotonic())
                time.sleep(seconds)
            return decided

        monkeypatch.setattr(Log, "_decide", decide)
        return begun

    return slow_down


def split_beside_writers(
    root: object,
    slow: Callable[[float], list[float]],
    seconds: float,
    *,
    old: int = 0,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    manager = StreamManager(str(root), storage_options=dict(options))
    manager.create_scope("s")
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2)))
    first = manager.segments(STREAM)[0]
    manager.tail(STREAM)
    with writers(manager, options, old) as counts:
        decisions = slow(seconds)
        epoch = manager.scale_stream(STREAM, [first], [(0.0, 0.25), (0.25, 0.5)])
    assert len(decisions) <= 3, "one that loses, and one whose version was requested"
    assert len(epoch.segments) == 3
    assert sum(1 for _ in manager.read(STREAM)) == sum(counts)


def test_slow_scale_gets_through_on_a_local_disk(
    tmp_path: Path, slow: Callable[[float], list[float]]
) -> None:
    split_beside_writers(tmp_path, slow, SECONDS)


@pytest.mark.s3
def test_slow_scale_gets_through_on_an_object_store(
    s3: S3Server, slow: Callable[[float], list[float]]
) -> None:
    root = f"s3://{s3.bucket}/slow-decisions"
    split_beside_writers(root, slow, SECONDS, options=s3.options)


def test_previous_release_waits_as_long_as_it_always_did_and_reads_on(
    tmp_path: Path, slow: Callable[[float], list[float]]
) -> None:
    split_beside_writers(tmp_path, slow, 0.01, old=1)
