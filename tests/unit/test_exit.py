"""Process exit: open writers flush first, and the exit status is the process's own.

A writer that was collected has no public face any more: its queue tells when it has ended. The
last seconds of a process are shortened, or lengthened for a slow machine, in the process itself.
"""

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
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.writing import process_exit
from pravega_spark.engine.writing.queue import WriteQueue
from pravega_spark.errors import StoreFull
from pravega_spark.event_writer import EventStreamWriter, queue_of
from tests.harness.fault_plans import Rule
from tests.harness.small_streams import make_stream
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized

SHORT = """
import sys
from pravega_spark import StreamManager
manager = StreamManager(sys.argv[1])
manager.create_scope("nyc")
manager.create_stream("nyc/flights")
"""


@pytest.mark.medium
@pytest.mark.long(slow=False)
def test_process_that_only_opens_an_existing_stream_ends_with_status_0(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    for _ in range(sized(2, 20)):
        done = subprocess.run(
            [sys.executable, "-c", SHORT, root], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


UNCLOSED = """
import sys
from pravega_spark import StreamManager
from pravega_spark.engine.writing import process_exit
process_exit.WRITER_EXIT_SECONDS = 200.0  # however slow the machine is
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


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("writes", "count"),
    [
        (IN_MAIN, 5_000),
        (COLLECTED, 3),
        (IN_A_THREAD, 50),
        (IN_A_POOL, 200),
        pytest.param(IN_A_FORK, 2, marks=needs_fork),
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


ENDING = """
import multiprocessing, os, sys, threading, time
from pravega_spark import StreamManager
from pravega_spark.engine.writing import process_exit
process_exit.WRITER_EXIT_SECONDS = float(sys.argv[3])
def late(root):
    "Threads write after the main function, and each callback writes the next event."
    manager = StreamManager(root)
    writers = [manager.create_writer("nyc/flights") for _ in range(2)]
    def work(before):
        before.join()
        time.sleep(0.05)
        for n in range(20):
            writers[0].write_event(b"%d" % n, f"key-{n}")
        if threads[-1] is threading.current_thread():
            write(0)
    threads = [threading.main_thread()]
    for _ in range(4):  # since Python 3.12 a process that ends starts no more threads
        threads.append(threading.Thread(target=work, args=(threads[-1],)))
    for thread in threads[1:]:
        thread.start()
    def write(n):
        if n < 80:
            future = writers[n % 2].write_event(b"%d" % n, "k")
            future.add_done_callback(lambda _: (time.sleep(0.001), write(n + 1)))
    def never_stop():
        writer = manager.create_writer("nyc/other")
        while True:
            writer.write_event(b"1").add_done_callback(lambda _: None)
            time.sleep(0.01)
    threading.Thread(target=never_stop, daemon=True).start()
def endless(root):
    "No callback is the last one."
    writer = StreamManager(root).create_writer("nyc/flights")
    def write(*_):
        writer.write_event(b"1", "k").add_done_callback(write)
    write()
if __name__ == "__main__":
    method, ended = sys.argv[2], globals()[sys.argv[4]]
    if method == "plain":
        ended(sys.argv[1])
    elif method == "os.fork":
        if not os.fork():
            ended(sys.argv[1])
        else:
            sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
    else:
        child = multiprocessing.get_context(method).Process(target=ended, args=(sys.argv[1],))
        child.start()
        child.join()
        sys.exit(child.exitcode)
"""
METHODS = [
    "plain",
    "spawn",
    *[pytest.param(method, marks=needs_fork) for method in ("fork", "forkserver", "os.fork")],
]


def end(folder: Path, method: str, function: str, *, bound: float) -> tuple[int, str, float]:
    """Run a function of ENDING; return how many events were committed, the log, and seconds."""
    root, script = str(folder / "root"), folder / "ending.py"
    manager = StreamManager(root)
    manager.create_scope("nyc")
    for stream in ("nyc/flights", "nyc/other"):
        manager.create_stream(stream)
    script.write_text(ENDING)
    command = [sys.executable, str(script), root, method, str(bound), function]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    taken = time.monotonic() - began
    return sum(1 for _ in manager.read("nyc/flights")), done.stderr, taken


@pytest.mark.medium
@pytest.mark.parametrize("method", METHODS)
def test_process_commits_what_its_threads_and_callbacks_write_after_its_main_function(
    tmp_path: Path, method: str
) -> None:
    count, log, taken = end(tmp_path, method, "late", bound=60.0)
    assert count == 160
    assert "callbacks" not in log  # the daemon's last writes may be lost, which the log says
    assert taken < 60


FIRST = """
import multiprocessing, sys, threading
from pravega_spark import StreamManager
def first(root):
    "A thread opens the first writer of the process after the main function."
    def work():
        threading.main_thread().join()
        writer = StreamManager(root).create_writer("nyc/flights")
        for n in range(20):
            writer.write_event(b"%d" % n, f"key-{n}")
    threading.Thread(target=work).start()
if __name__ == "__main__":
    if sys.argv[2] == "plain":
        first(sys.argv[1])
    else:
        context = multiprocessing.get_context(sys.argv[2])
        child = context.Process(target=first, args=(sys.argv[1],))
        child.start()
        child.join()
        sys.exit(child.exitcode)
"""


@pytest.mark.medium
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="an ending process starts no thread")
@pytest.mark.parametrize("method", METHODS[:-1])
def test_first_writer_of_a_process_may_be_that_of_its_last_thread(
    tmp_path: Path, method: str
) -> None:
    root, script = str(tmp_path / "root"), tmp_path / "first.py"
    manager = StreamManager(root)
    manager.create_scope("nyc")
    manager.create_stream("nyc/flights")
    script.write_text(FIRST)
    command = [sys.executable, str(script), root, method]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(1 for _ in manager.read("nyc/flights")) == 20


@pytest.mark.medium
@pytest.mark.parametrize("method", ["plain", pytest.param("fork", marks=needs_fork)])
def test_process_says_that_callbacks_had_not_ended(tmp_path: Path, method: str) -> None:
    count, log, taken = end(tmp_path, method, "endless", bound=0.2)
    assert count
    assert "the process ends although 1 callbacks of writes have not returned within 0.2 s" in log
    assert taken < 60


STUCK = """
import sys, threading
from pravega_spark.engine.writing import process_exit
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.event_writer import EventStreamWriter
from tests.harness.small_streams import make_stream
from tests.harness.spy_store import Spy
process_exit.WRITER_EXIT_SECONDS = {bound}
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


@pytest.mark.medium
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
from pravega_spark.engine.writing import process_exit
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.event_writer import EventStreamWriter
from tests.harness.small_streams import make_stream
process_exit.WRITER_EXIT_SECONDS = 0.05
writer = EventStreamWriter(make_stream(runtime=SYSTEM))
called = threading.Event()
def call_back(future):
    called.set()
    threading.Event().wait()
writer.write_event(b"durable").add_done_callback(call_back)
called.wait()
"""


@pytest.mark.medium
def test_process_that_ends_in_a_callback_reports_it_and_no_lost_write() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLING_BACK],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("the process ends although 1 callbacks of writes have not returned")


def wait_until_ended(queue: WriteQueue) -> None:
    until = time.monotonic() + 30
    while queue in process_exit._open and time.monotonic() < until:
        time.sleep(0.001)
    assert queue not in process_exit._open


@pytest.mark.medium
def test_collected_writer_commits_its_events_and_ends() -> None:
    stream = make_stream(runtime=SYSTEM)
    writer = EventStreamWriter(stream)
    futures = [writer.write_event(b"%d" % n, "k") for n in range(100)]
    queue = queue_of(writer)
    del writer
    gc.collect()
    assert [future.result(30).offset for future in futures] == list(range(100))
    wait_until_ended(queue)


@pytest.mark.medium
def test_failure_of_a_collected_writer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = Spy()
    stream = make_stream(store, SYSTEM)
    store.rules.add(Rule(StoreFull("disk full"), "put", "*/data/*"))
    writer = EventStreamWriter(stream, "w")
    writer.write_event(b"1", "k")
    queue = queue_of(writer)
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
    queue_of(writer).begin_exit(close=True)
    writer.write_event(b"2", "k")
    written.set()
    wait_until_ended(queue_of(writer))
    queue_of(writer).report_exit(30.0)
    (record,) = caplog.records
    expected = "lost 1 writes: a thread wrote them after the process had begun to end"
    assert expected in record.getMessage()
