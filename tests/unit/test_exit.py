"""Process exit: open writers flush first, and the exit status is the process's own."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.engine.writing import writer_exit
from pravega_spark.engine.writing.write_queue import WriteQueue
from pravega_spark.errors import StoreFull
from pravega_spark.event_writer import EventStreamWriter
from tests.harness.fault_plans import Rule
from tests.harness.small_streams import make_stream
from tests.harness.spy_store import Spy

SHORT = """
import sys
from pravega_spark import StreamManager
manager = StreamManager(sys.argv[1])
manager.create_scope("nyc")
manager.create_stream("nyc/flights")
"""


def test_process_that_only_opens_an_existing_stream_ends_with_status_0(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    for _ in range(8):
        done = subprocess.run(
            [sys.executable, "-c", SHORT, root], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


UNCLOSED = """
import sys
from pravega_spark import StreamManager
from pravega_spark.engine.writing import writer_exit
writer_exit.WRITER_EXIT_SECONDS = 200.0  # however slow the machine is
manager = StreamManager(sys.argv[1])
{writes}
"""
IN_MAIN = """
writer = manager.create_writer("nyc/flights", "w")
for n in range(5_000):
    writer.write_event(b"%d" % n, f"key-{n}")
"""
COLLECTED = """
def write():
    manager.create_writer("nyc/flights").write_events([b"1", b"2"], "k")
    manager.create_writer("nyc/flights").write_event(b"3", "k")
write()
"""
IN_A_THREAD = """
import threading, time
writer = manager.create_writer("nyc/flights")
def work():
    threading.main_thread().join()
    for n in range(50):
        writer.write_event(b"%d" % n, f"key-{n}")
        if n % 20 == 0:
            writer.flush()
threading.Thread(target=work).start()
"""
IN_A_POOL = """
from concurrent.futures import ThreadPoolExecutor
writer = manager.create_writer("nyc/flights")
pool = ThreadPoolExecutor(2)
for n in range(200):
    pool.submit(writer.write_event, b"%d" % n, f"key-{n}")
"""
IN_A_FORK = """
import multiprocessing
def work():
    writer = StreamManager(sys.argv[1]).create_writer("nyc/flights")
    writer.write_event(b"child", "k")
    globals()["kept"] = writer
parent = manager.create_writer("nyc/flights")
parent.write_event(b"parent", "k").result()
child = multiprocessing.get_context("fork").Process(target=work)
child.start()
child.join()
"""


@pytest.mark.parametrize(
    ("writes", "count"),
    [
        (IN_MAIN, 5_000),
        (COLLECTED, 3),
        (IN_A_THREAD, 50),
        (IN_A_POOL, 200),
        pytest.param(
            IN_A_FORK, 2, marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
        ),
    ],
)
def test_process_that_ends_without_close_has_written_every_event(
    tmp_path: Path, writes: str, count: int
) -> None:
    root = str(tmp_path / "root")
    manager = StreamManager(root)
    manager.create_scope("nyc")
    manager.create_stream("nyc/flights", StreamConfiguration(scaling=ScalingPolicy.fixed(4)))
    script = UNCLOSED.format(writes=writes)
    done = subprocess.run(
        [sys.executable, "-c", script, root], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(1 for _ in manager.read("nyc/flights")) == count


STUCK = """
import sys, threading
from pravega_spark.engine.writing import writer_exit
from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.event_writer import EventStreamWriter
from tests.harness.small_streams import make_stream
from tests.harness.spy_store import Spy
writer_exit.WRITER_EXIT_SECONDS = {bound}
store = Spy()
stream = make_stream(store, SYSTEM)
written = threading.Event()
def hook(operation, key):
    if operation == "put_if_absent":
        written.wait()
        {action}
writer = EventStreamWriter(stream, "w")
store.hook = hook
for n in range(3):
    writer.write_event(b"%d" % n, "k")
written.set()
"""


@pytest.mark.parametrize(
    ("bound", "action", "reported"),
    [
        (0.05, "threading.Event().wait()", "has not committed up to 3 writes within 0.05 s"),
        (30.0, "raise MemoryError('memory')", "was not closed and lost 3 writes: .*memory"),
    ],
)
def test_writes_that_an_ending_process_loses_are_logged(
    bound: float, action: str, reported: str
) -> None:
    command = [sys.executable, "-c", STUCK.format(bound=bound, action=action)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert re.search(f"writer w of stream s/t {reported}", done.stderr)
    assert len(done.stderr.splitlines()) == 1


CALLING_BACK = """
import threading
from pravega_spark.engine.writing import writer_exit
from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.event_writer import EventStreamWriter
from tests.harness.small_streams import make_stream
writer_exit.WRITER_EXIT_SECONDS = 0.05
writer = EventStreamWriter(make_stream(runtime=SYSTEM))
called = threading.Event()
def call_back(future):
    called.set()
    threading.Event().wait()
writer.write_event(b"durable").add_done_callback(call_back)
called.wait()
"""


def test_process_that_ends_in_a_callback_reports_no_lost_write() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLING_BACK],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def wait_until_ended(queue: WriteQueue) -> None:
    until = time.monotonic() + 30
    while queue in writer_exit._open and time.monotonic() < until:
        time.sleep(0.001)
    assert queue not in writer_exit._open


def test_collected_writer_commits_its_events_and_ends() -> None:
    stream = make_stream(runtime=SYSTEM)
    writer = EventStreamWriter(stream)
    futures = [writer.write_event(b"%d" % n, "k") for n in range(100)]
    queue = writer._queue
    del writer
    gc.collect()
    assert [future.result(30).offset for future in futures] == list(range(100))
    wait_until_ended(queue)


def test_failure_of_a_collected_writer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = Spy()
    stream = make_stream(store, SYSTEM)
    store.rules.add(Rule(StoreFull("disk full"), "put", "*/data/*"))
    writer = EventStreamWriter(stream, "w")
    writer.write_event(b"1", "k")
    queue = writer._queue
    del writer
    gc.collect()
    wait_until_ended(queue)
    (record,) = caplog.records
    assert "writer w of stream s/t was not closed and lost 1 writes" in record.getMessage()
    assert "disk full" in record.getMessage()


def test_writes_of_a_thread_after_the_last_flush_are_logged_with_the_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, written = Spy(), threading.Event()
    writer = EventStreamWriter(make_stream(store, SYSTEM), "w")

    def wait_until_written(operation: str, key: str) -> None:
        written.wait(30)

    store.hook = wait_until_written
    writer.write_event(b"1", "k")
    writer._queue.begin_exit(close=True)
    writer.write_event(b"2", "k")
    written.set()
    wait_until_ended(writer._queue)
    writer._queue.report_exit(30.0)
    (record,) = caplog.records
    expected = "lost 1 writes: a thread wrote them after the process had begun to end"
    assert expected in record.getMessage()
