"""Threads of writers: few, none for an idle writer, and no writer waits for one that hangs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.writing import threads as writing_threads
from pravega_spark.engine.writing.threads import WRITER_POOL, WriterThreads
from pravega_spark.errors import IllegalState
from pravega_spark.event_writer import EventStreamWriter
from pravega_spark.values.limits import WRITER_STREAM_THREADS
from tests.harness.small_streams import all_events, make_stream
from tests.harness.spy_store import Spy

WAIT = 30.0


class Stream:
    """What the writers of a stream share."""


class Work:
    """A writer whose pieces of work are functions."""

    def __init__(self, threads: WriterThreads, stream: object, name: str = "") -> None:
        self.name = name
        self.is_idle = True
        self.stream_key = stream
        self.pieces: list[Callable[[], object]] = []
        self.done = 0
        self.running = 0
        self.wake = threads.waker(self)

    @property
    def has_work(self) -> bool:
        return bool(self.pieces)

    def work(self) -> bool:
        self.running += 1
        assert self.running == 1
        if self.pieces:
            self.pieces.pop(0)()
            self.done += 1
        self.running -= 1
        return True

    def add(self, piece: Callable[[], object]) -> None:
        self.pieces.append(piece)
        if self.is_idle:
            self.wake()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing_threads, "WRITER_THREADS", 4)
    monkeypatch.setattr(writing_threads, "MOST_WRITER_THREADS", 8)
    monkeypatch.setattr(writing_threads, "WRITER_STREAM_THREADS", 2)
    monkeypatch.setattr(writing_threads, "WRITER_STUCK_SECONDS", 0.01)
    monkeypatch.setattr(writing_threads, "_IDLE_SECONDS", 0.02)


def test_many_idle_writers_use_a_few_threads_and_no_storage_call() -> None:
    store = Spy()
    stream = make_stream(store, SYSTEM)
    calls = list[str]()
    before = threading.active_count()
    writers = [EventStreamWriter(stream) for _ in range(300)]
    assert threading.active_count() - before <= 8
    store.hook = lambda operation, key: calls.append(operation)
    time.sleep(0.05)
    for writer in writers:
        writer.close()
    assert calls == []


@pytest.mark.medium
def test_many_writers_with_a_few_events_use_as_many_threads_as_one_stream_may() -> None:
    stream = make_stream(runtime=SYSTEM)
    writers = [EventStreamWriter(stream) for _ in range(300)]
    futures = [
        writer.write_event(b"%d %d" % (number, turn), f"k{number}")
        for turn in range(3)
        for number, writer in enumerate(writers)
    ]
    most = WRITER_POOL.count
    for future in futures:
        future.result(WAIT)
        most = max(most, WRITER_POOL.count)
    assert most <= WRITER_STREAM_THREADS + 8
    found = [event for _, event in all_events(stream)]
    for number in range(300):
        assert [e for e in found if e.startswith(b"%d " % number)] == [
            b"%d %d" % (number, turn) for turn in range(3)
        ]
    for writer in writers:
        writer.close()


@pytest.mark.usefixtures("few")
def test_stream_that_hangs_takes_no_thread_of_other_streams() -> None:
    threads, gate = WriterThreads(), threading.Event()
    stuck = Stream()
    hanging = [Work(threads, stuck) for _ in range(6)]
    for work in hanging:
        work.add(gate.wait)
    until(lambda: sum(work.running for work in hanging) == 2)
    other = Work(threads, Stream())
    for _ in range(10):
        other.add(lambda: None)
    until(lambda: other.done == 10)
    assert sum(work.running for work in hanging) == 2
    assert threads.count <= 4
    gate.set()
    until(lambda: all(work.done == 1 for work in hanging))


@pytest.mark.usefixtures("few")
def test_threads_grow_up_to_the_second_limit_while_all_hang_and_end_when_idle() -> None:
    threads, gate = WriterThreads(), threading.Event()
    hanging = [Work(threads, Stream()) for _ in range(20)]
    for work in hanging:
        work.add(gate.wait)
    until(lambda: sum(work.running for work in hanging) == 7)
    time.sleep(0.1)
    assert threads.count == 8
    assert sum(work.running for work in hanging) == 7
    gate.set()
    until(lambda: all(work.done == 1 for work in hanging))
    until(lambda: threads.count == 1)
    hanging[0].add(lambda: None)
    until(lambda: hanging[0].done == 2)


@pytest.mark.medium
@pytest.mark.usefixtures("few")
def test_one_thread_guards_while_all_others_hang_whenever_threads_switch() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(25):
            hang_once()
    finally:
        sys.setswitchinterval(interval)


def hang_once() -> None:
    threads, gate = WriterThreads(), threading.Event()
    hanging = [Work(threads, Stream()) for _ in range(20)]
    for work in hanging:
        work.add(gate.wait)
    until(lambda: sum(work.running for work in hanging) == 7)
    gate.set()
    until(lambda: all(work.done == 1 for work in hanging))


@pytest.mark.usefixtures("few")
def test_busy_writers_let_others_of_their_stream_go_on() -> None:
    threads, stream, is_over = WriterThreads(), Stream(), threading.Event()
    busy = [Work(threads, stream) for _ in range(4)]

    def go_on(work: Work) -> None:
        if not is_over.is_set():
            work.pieces.append(lambda: go_on(work))

    for work in busy:
        work.add(partial(go_on, work))
    late = [Work(threads, stream) for _ in range(4)]
    for work in late:
        work.add(lambda: None)
    until(lambda: all(work.done == 1 for work in late))
    until(lambda: all(work.done > 10 for work in busy))
    is_over.set()


def test_work_that_is_added_at_any_moment_is_done_once_and_in_order() -> None:
    threads = WriterThreads()
    works = [Work(threads, Stream()) for _ in range(4)]
    found: list[list[int]] = [[] for _ in works]
    count = 2_000

    def add(number: int) -> None:
        for turn in range(count):
            works[number].add(partial(found[number].append, turn))
            while turn % 7 == 0 and works[number].done <= turn:
                time.sleep(0)

    adders = [threading.Thread(target=add, args=(number,)) for number in range(len(works))]
    for adder in adders:
        adder.start()
    for adder in adders:
        adder.join()
    until(lambda: all(work.done == count for work in works))
    assert found == [list(range(count))] * len(works)


def test_callbacks_that_wait_for_more_writers_of_the_stream_than_have_threads_get_them() -> None:
    stream = make_stream(runtime=SYSTEM)
    count = 2 * WRITER_STREAM_THREADS + 8
    waited = list[int]()
    others = [EventStreamWriter(stream) for _ in range(count)]
    writers = [EventStreamWriter(stream) for _ in range(count)]
    all_wait = threading.Barrier(count)

    def wait_for(other: EventStreamWriter, future: object) -> None:
        all_wait.wait(WAIT)
        waited.append(other.write_event(b"in a callback", "k").result(WAIT).offset)

    for writer, other in zip(writers, others, strict=True):
        writer.write_event(b"x", "k").add_done_callback(partial(wait_for, other))
    until(lambda: len(waited) == count)
    for writer in [*writers, *others]:
        writer.close()
    assert len(all_events(stream)) == 2 * count


@pytest.mark.usefixtures("few")
def test_thread_that_comes_back_from_callbacks_leaves_its_share_to_those_that_have_it() -> None:
    threads, stream = WriterThreads(), Stream()
    call, gate = threading.Event(), threading.Event()

    def call_back() -> None:
        with threads.uncounted(stream):
            call.wait(WAIT)

    callers = [Work(threads, stream) for _ in range(20)]
    for work in callers:
        work.add(call_back)
    until(lambda: sum(work.running for work in callers) == 20)
    assert threads.count <= 4
    hanging = [Work(threads, stream) for _ in range(2)]
    for work in hanging:
        work.add(gate.wait)
    until(lambda: all(work.running for work in hanging))
    for work in callers:
        work.add(lambda: None)
    call.set()
    until(lambda: all(work.done == 1 for work in callers))
    time.sleep(0.05)
    assert all(work.done == 1 for work in callers)  # the stream has no thread for the second piece
    gate.set()
    until(lambda: all(work.done == 2 for work in callers))
    until(lambda: threads.count == 1)


def test_piece_that_fails_costs_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    threads = WriterThreads()
    work = Work(threads, Stream())
    for _ in range(WRITER_STREAM_THREADS + 1):
        Work(threads, work.stream_key).add(lambda: 1 / 0)
    until(lambda: len(caplog.records) == WRITER_STREAM_THREADS + 1)
    work.add(lambda: None)
    until(lambda: work.done == 1)


class WorkInTheLastMoment(Work):
    """Work that gets a piece just after its thread looked, before the thread says it is idle."""

    has_added = False

    @property
    def has_work(self) -> bool:
        found = bool(self.pieces)
        if not found and not self.is_idle and not self.has_added:
            self.has_added = True
            self.add(lambda: None)
        return found


def test_work_that_is_added_just_before_a_thread_rests_is_done() -> None:
    work = WorkInTheLastMoment(WriterThreads(), Stream())
    work.add(lambda: None)
    until(lambda: work.done == 2)


def test_first_writer_of_a_process_that_can_start_no_thread_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    threads = WriterThreads()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(IllegalState, match="the thread that commits cannot be started"):
            Work(threads, Stream())
    Work(threads, Stream())
