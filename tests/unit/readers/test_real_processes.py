"""Readers in processes of their own on a local disk; one of them is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.engine import lifecycle
from pravega_spark.engine.scopes import Scope
from pravega_spark.engine.store import open_store
from pravega_spark.engine.stream import Stream, open_stream
from pravega_spark.readers.configuration import ReaderGroupConfiguration
from pravega_spark.readers.group import ReaderGroup
from tests.support import make_stream, scale, write

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")

NAME = "s/t"


def group_of(root: str) -> ReaderGroup:
    store = open_store(root)
    return ReaderGroup(store, "s/g", lambda name: open_stream(store, name))


def read_all(root: str, reader_id: str, path: str) -> None:
    """Write each event to a file before asking for the next one."""
    with (
        open(path, "w", buffering=1, encoding="utf-8") as out,
        group_of(root).create_reader(reader_id, lease="5 s") as reader,
    ):
        for event in reader:
            out.write(event.data.decode() + "\n")


@pytest.fixture
def processes() -> Iterator[dict[str, Any]]:
    started: dict[str, Any] = {}
    yield started
    for process in started.values():
        process.kill()
        process.join()


@pytest.mark.slow
def test_killed_process_costs_repetitions_and_no_event(
    tmp_path: Path, processes: dict[str, Any]
) -> None:
    root = str(tmp_path / "root")
    Scope(open_store(root), "s").create()
    stream = make_stream(open_store(root), Stream(open_store(root), NAME).runtime, 3)
    group = group_of(root)
    settings = ReaderGroupConfiguration([NAME], refresh=0.5, checkpoint_interval=1.0)
    group.create(settings)
    spawn = multiprocessing.get_context("spawn")
    for name in "abc":
        path = str(tmp_path / name)
        processes[name] = spawn.Process(target=read_all, args=(root, name, path))
        processes[name].start()
    shared = {"a": 1, "b": 1, "c": 1, None: 0}
    deadline = time.monotonic() + 60
    while group.distribution() != shared and time.monotonic() < deadline:
        time.sleep(0.1)
    assert group.distribution() == shared
    count = 0
    for batch in range(30):
        write(stream, [(f"k{n % 31}", str(n).encode()) for n in range(count, count + 50)])
        count += 50
        if batch == 10:
            scale(stream, [0], [(0.0, 0.1), (0.1, 1 / 3)])
        if batch == 15:
            os.kill(processes["b"].pid, signal.SIGKILL)
        time.sleep(0.1)
    checkpoint = group.initiate_checkpoint("before the end").result(timeout=60)
    assert set(checkpoint.stream_cuts) == {NAME}
    lifecycle.seal(stream)
    for name in "ac":
        processes[name].join(60)
        assert processes[name].exitcode == 0
    lines = {name: (tmp_path / name).read_text(encoding="utf-8").split() for name in "abc"}
    assert {int(line) for found in lines.values() for line in found} == set(range(count))
    clean = lines["a"] + lines["c"]
    assert len(clean) == len(set(clean)), "only what the killed one had read is there twice"
    assert group.is_at_end()
