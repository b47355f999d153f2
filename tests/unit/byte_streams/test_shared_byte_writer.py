"""A byte writer in the hands of several threads: writes, flushes and closes side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pravega_spark import ScalingPolicy, StreamConfiguration
from pravega_spark.byte_streams.writer import ByteStreamWriter
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.manager import manager_over
from tests.harness.line_interrupts import AtLine, interrupt, lines_in
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized

WAIT = 30.0
STEP = sized(11, 1)
pytestmark = pytest.mark.long


class Bytes:
    """A byte stream whose commits can be held."""

    def __init__(self) -> None:
        self.store = Spy(MemoryStore())
        self.manager = manager_over(self.store, SYSTEM)
        self.manager.create_scope("s")
        self.manager.create_stream("s/b", StreamConfiguration(ScalingPolicy.fixed(1)))
        self.go, self.waits = threading.Event(), threading.Event()

    def writer(self) -> ByteStreamWriter:
        return self.manager.create_byte_writer("s/b")

    def hold(self) -> None:
        """Let the next commit wait until ``go``."""

        def hook(operation: str, key: str) -> None:
            if operation == "put_if_absent" and "_delta_log" in key:
                self.waits.set()
                assert self.go.wait(WAIT)

        self.store.hook = hook

    def stored(self) -> bytes:
        with self.manager.create_byte_reader("s/b") as reader:
            left, found = reader.fetch_tail_offset(), b""
            while len(found) < left:
                found += reader.read(left - len(found))
            return found


@pytest.fixture
def stream() -> Bytes:
    return Bytes()


def started(call: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """Run a call in another thread; the list gets its result or its exception."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_a_long_write_that_waits_for_room_ends_when_the_writer_is_closed(stream: Bytes) -> None:
    writer = stream.writer()
    stream.hold()
    writer.write(b"first")
    assert stream.waits.wait(WAIT)
    writing, written = started(lambda: writer.write(b"x" * (80 << 20)))
    queue = writer._queue
    while not queue.pending.condition._waiters:
        threading.Event().wait(0.001)
    closing, closed = started(writer.close)
    writing.join(WAIT)
    assert isinstance(written[0], ValueError), "it did not claim what was not accepted"
    assert closing.is_alive()
    stream.go.set()
    closing.join(WAIT)
    assert closed == [None]
    assert len(stream.stored()) == queue.accepted
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"late")


@pytest.mark.parametrize("name", ["flush", "close"])
def test_who_ends_it_beside_a_close_waits_until_all_is_durable(stream: Bytes, name: str) -> None:
    writer = stream.writer()
    stream.hold()
    writer.write(b"first")
    assert stream.waits.wait(WAIT)
    writer.write(b"second")
    closing, _ = started(writer.close)
    while not writer._queue.is_closing:
        threading.Event().wait(0.001)
    second, found = started(getattr(writer, name))
    second.join(0.1)
    assert second.is_alive()
    stream.go.set()
    second.join(WAIT)
    closing.join(WAIT)
    assert found == [None]
    assert stream.stored() == b"firstsecond"


def test_a_flush_that_a_close_overtakes_returns_when_all_is_durable(stream: Bytes) -> None:
    writer = stream.writer()
    writer.write(b"first")
    queue = writer._queue
    check = queue.check_usable

    def close_first() -> None:
        queue.check_usable = check  # type: ignore[method-assign]
        started(writer.close)[0].join(WAIT)
        check()

    queue.check_usable = close_first  # type: ignore[method-assign]
    writer.flush()
    assert stream.stored() == b"first"


def test_what_a_write_beside_a_close_returned_is_stored(stream: Bytes) -> None:
    for _ in range(sized(10, 1_000)):
        before = len(stream.stored())
        writer = stream.writer()
        done: list[int] = []

        def write(writer: ByteStreamWriter = writer, done: list[int] = done) -> None:
            with suppress(ValueError):
                while True:
                    done.append(writer.write(b"x" * 999))

        threads = [threading.Thread(target=write) for _ in range(2)]
        for thread in threads:
            thread.start()
        writer.close()
        for thread in threads:
            thread.join(WAIT)
        found = len(stream.stored()) - before
        # a write that waits for room when the writer closes raises, and its first bytes are stored
        assert sum(done) <= found < sum(done) + len(threads) * 999
        assert writer.acknowledged_bytes == found


CALLS: dict[str, Callable[[ByteStreamWriter], object]] = {
    "write": lambda writer: writer.write(b"inside"),
    "long write": lambda writer: writer.write(b"x" * 300_000),
    "flush": lambda writer: writer.flush(),
    "close": lambda writer: writer.close(),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_line_loses_and_doubles_no_byte(name: str) -> None:
    call = CALLS[name]
    for number in range(0, lines_in(lambda: call(Bytes().writer())) + 40, STEP):
        stream = Bytes()
        writer = stream.writer()
        writer.write(b"before")
        with suppress(KeyboardInterrupt), AtLine(number, interrupt):
            call(writer)
        if name == "close":
            writer.close()
            assert stream.stored() == b"before"
            continue
        told = writer.tell()
        writer.write(b"after")
        writer.close()
        found = stream.stored()
        assert found[:6] == b"before"
        assert found[-5:] == b"after"
        inside = found[6:-5]
        whole = b"" if name == "flush" else b"inside" if name == "write" else b"x" * 300_000
        assert whole.startswith(inside), number
        assert told == 6 + len(inside), number
