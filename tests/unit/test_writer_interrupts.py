"""An interrupt at any line of a writer's calls, and signal handlers that use the writer."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import pravega_spark
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.event_writer import EventStreamWriter
from tests.harness.line_interrupts import AtLine, interrupt, lines_in
from tests.harness.small_streams import all_events, make_stream

WAIT = 30.0


CALLS: dict[str, Callable[[EventStreamWriter], Any]] = {
    "write_event": lambda writer: writer.write_event(b"interrupted", "k"),
    "write_events": lambda writer: writer.write_events([b"interrupted", b"too"], "k"),
    "flush": lambda writer: writer.flush(),
    "flush with a note": lambda writer: writer.flush("note"),
    "close": lambda writer: writer.close(),
    "result": lambda writer: writer.write_event(b"interrupted", "k").result(WAIT),
}


def lines_of(call: Callable[[EventStreamWriter], Any]) -> int:
    with EventStreamWriter(make_stream(runtime=SYSTEM), "w") as writer:
        writer.write_event(b"before", "k")
        return lines_in(lambda: call(writer))


def stored(stream: StreamLog) -> list[bytes]:
    return [event for _, event in all_events(stream)]


@pytest.mark.medium
@pytest.mark.parametrize("name", CALLS)
def test_interrupt_at_any_line_loses_no_event_and_blocks_no_thread(name: str) -> None:
    call = CALLS[name]
    lines = lines_of(call)
    assert lines > 4
    for number in range(lines):
        stream = make_stream(runtime=SYSTEM)
        writer = EventStreamWriter(stream, "w")
        before = writer.write_event(b"before", "k")
        with suppress(KeyboardInterrupt), AtLine(number, interrupt):
            call(writer)
        if name != "close":
            after = writer.write_event(b"after", "k")
            writer.flush(timeout=WAIT)
            assert before.done()
            assert after.done()
        writer.close()
        assert before.exception(0) is None
        found = stored(stream)
        assert found[0] == b"before"
        assert name == "close" or found[-1] == b"after"
        inside = found[1:] if name == "close" else found[1:-1]
        assert inside in ([], [b"interrupted"], [b"interrupted", b"too"])


def use(writer: EventStreamWriter) -> None:
    """Use the writer as a handler of SIGTERM may."""
    writer.write_event(b"handler", "k").result(WAIT)
    writer.flush("by the handler", timeout=WAIT)


@pytest.mark.parametrize(
    ("name", "action"),
    [
        *((name, action) for name in ("write_event", "write_events", "flush")
          for action in ("use", "close")),
        ("close", "close"),
    ],
)  # fmt: skip
def test_handler_that_uses_the_writer_at_any_line_of_a_call_does_not_deadlock(
    name: str, action: str
) -> None:
    call = CALLS[name]
    for number in range(lines_of(call)):
        stream = make_stream(runtime=SYSTEM)
        writer = EventStreamWriter(stream, "w")
        before = writer.write_event(b"before", "k")
        failures: list[Exception] = []

        def handle(writer: EventStreamWriter = writer) -> None:
            writer.close() if action == "close" else use(writer)

        future = None
        with AtLine(number, handle):
            try:
                future = call(writer)
            except Exception as error:
                failures.append(error)
        writer.close()
        assert before.exception(0) is None
        found = stored(stream)
        assert [type(error).__name__ for error in failures] in ([], ["ObjectClosed"])
        assert action == "close" or not failures
        if future is not None:
            durable = future.exception(0) is None
            assert durable == (b"interrupted" in found)
            assert durable or action == "close"
            if durable:
                results = future.result(0)
                first = results[0] if isinstance(results, tuple) else results
                assert found[first.offset] == b"interrupted"


def test_interrupt_while_the_buffer_is_full_leaves_the_writer_usable() -> None:
    stream = make_stream(runtime=SYSTEM)
    writer = EventStreamWriter(stream, buffer_bytes=200)
    for number in range(60):
        with suppress(KeyboardInterrupt), AtLine(number, interrupt):
            for _ in range(4):
                writer.write_event(b"x" * 90, "k")
    last = writer.write_event(b"last", "k")
    writer.close()
    assert last.exception(0) is None
    assert stored(stream)[-1] == b"last"


HANDLER = """
import signal, sys, threading, time, os
from pravega_spark import StreamManager
manager = StreamManager(sys.argv[1])
writer = manager.create_writer("s/a", "w")
written = 0
def handle(number, frame):
    before = written
    getattr(writer, sys.argv[2])()
    print(before, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, handle)
signal.signal(signal.SIGINT, handle)
print("ready", flush=True)
while True:
    writer.write_event(b"%d" % written, "k")
    written += 1
"""


@pytest.mark.medium
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("action", ["close", "flush"])
def test_handler_of_a_real_process_flushes_while_the_main_thread_writes(
    tmp_path: Path, number: signal.Signals, action: str
) -> None:
    root = str(tmp_path / "root")
    manager = pravega_spark.StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/a")
    command = [sys.executable, "-c", HANDLER, root, action]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        threading.Event().wait(0.05)
        process.send_signal(number)
        try:
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0
    numbers = [int(event.data) for event in manager.read("s/a")]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= int(output)
