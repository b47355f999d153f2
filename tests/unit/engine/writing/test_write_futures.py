"""Futures of writes, and callbacks that write, wait and close.

A slow step of the queue takes the place of its own: only there do two threads meet each time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.futures import SignalSafeCondition, WriteFuture
from pravega_spark.errors import IllegalState, ObjectClosed, StoreFull, TooBusy
from pravega_spark.event_writer import EventStreamWriter, queue_of
from pravega_spark.values.segments import EventPointer
from tests.harness.fault_plans import Rule
from tests.harness.small_streams import all_events, events_of, make_stream
from tests.harness.spy_store import Spy

WAIT = 30.0


def stream_of(segments: int = 1) -> tuple[Spy, StreamLog]:
    store = Spy()
    return store, make_stream(store, SYSTEM, segments)


class paused:
    """Pauses the commits of a store inside the block, or until ``go``."""

    def __init__(self, store: Spy) -> None:
        self.store, self.reached, self.free = store, threading.Event(), threading.Event()

    def __enter__(self) -> paused:
        self.store.hook = self._hook
        return self

    def _hook(self, operation: str, key: str) -> None:
        if operation == "put_if_absent":
            self.reached.set()
            assert self.free.wait(WAIT)

    def go(self) -> None:
        self.store.hook = None
        self.free.set()

    def __exit__(self, *_: object) -> None:
        self.go()


def test_write_future_is_a_standard_future_with_a_typed_result() -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream) as writer:
        one: WriteFuture[EventPointer] = writer.write_event(b"a", "k")
        several: WriteFuture[tuple[EventPointer, ...]] = writer.write_events([b"b", b"c"], "k")
        assert isinstance(one, concurrent.futures.Future)
        assert one.result(WAIT).offset == 0
        assert [pointer.offset for pointer in several.result(WAIT)] == [1, 2]
        assert "done" in repr(one)


@pytest.mark.parametrize("done_first", [False, True])
def test_wait_and_as_completed_accept_it_with_other_futures(done_first: bool) -> None:
    store, stream = stream_of()
    other: concurrent.futures.Future[Any] = concurrent.futures.Future()
    with EventStreamWriter(stream) as writer, paused(store) as pause:
        futures: list[Any] = [writer.write_event(b"%d" % n, "k") for n in range(5)]
        assert pause.reached.wait(WAIT)
        first = concurrent.futures.wait(futures, timeout=0.01)
        assert (len(first.done), len(first.not_done)) == (0, 5)
        if done_first:
            pause.go()
            writer.flush()
        else:
            threading.Timer(0.02, pause.go).start()
        seen = list(concurrent.futures.as_completed(futures, timeout=WAIT))
        assert set(seen) == set(futures)
        other.set_result(1)
        done, left = concurrent.futures.wait([*futures, other], timeout=WAIT)
        assert (done, left) == ({*futures, other}, set())


@pytest.mark.parametrize("ends", [1, 2])
def test_wait_ends_for_a_write_that_completes_while_its_state_is_read(
    ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stream = stream_of()
    read = 0
    state = WriteFuture._state.fget

    def read_state(future: WriteFuture[Any]) -> str:
        nonlocal read
        found: str = state(future)
        read += 1
        if read == ends:  # ``wait`` has the lock, so the writer's thread can tell it only later
            commit.go()
            deadline = time.monotonic() + WAIT
            while not future.done() and time.monotonic() < deadline:
                time.sleep(0.001)
        return found

    with EventStreamWriter(stream) as writer:
        with paused(store) as commit:
            futures: list[Any] = [writer.write_event(b"1", "k")]
            assert commit.reached.wait(WAIT)
            monkeypatch.setattr(WriteFuture, "_state", property(read_state))
            waiting = threading.Thread(target=concurrent.futures.wait, args=(futures,), daemon=True)
            waiting.start()
            waiting.join(WAIT)
            assert not waiting.is_alive()
        assert list(concurrent.futures.as_completed(futures, timeout=WAIT)) == futures


def test_wait_for_the_first_exception_ends_with_a_failed_write() -> None:
    store, stream = stream_of()
    other: concurrent.futures.Future[Any] = concurrent.futures.Future()
    store.rules.add(Rule(StoreFull("full"), "put", "*/data/*"))
    writer = EventStreamWriter(stream)
    with paused(store):
        future = writer.write_event(b"a")
        how = concurrent.futures.FIRST_EXCEPTION
        done, _ = concurrent.futures.wait([future, other], WAIT, return_when=how)
    assert done == {future}
    assert isinstance(future.exception(0), StoreFull)
    writer.close()


def test_coroutines_await_it() -> None:
    store, stream = stream_of()

    async def write(writer: EventStreamWriter) -> list[EventPointer]:
        first = await writer.write_event(b"a", "k")
        rest = await asyncio.gather(*(_awaited(writer.write_event(b"b", "k")) for _ in range(9)))
        wrapped = await asyncio.wrap_future(writer.write_event(b"c", "k"))
        store.rules.add(Rule(StoreFull("full"), "put", "*/data/*"))
        with pytest.raises(StoreFull):
            await writer.write_event(b"d", "k")
        return [first, *rest, wrapped]

    async def _awaited(future: WriteFuture[EventPointer]) -> EventPointer:
        return await future

    with EventStreamWriter(stream) as writer:
        pointers = asyncio.run(write(writer))
    assert [pointer.offset for pointer in pointers] == list(range(11))


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_callback_that_raises_an_exit_stops_neither_writer_nor_futures(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    store, stream = stream_of()

    def exits(future: Any) -> None:
        raise kind("from a callback")

    with EventStreamWriter(stream) as writer:
        with paused(store):
            future = writer.write_event(b"a", "k")
            future.add_done_callback(exits)
        future.result(WAIT)
        for n in range(3):
            writer.write_event(b"%d" % n, "k").result(WAIT)
    assert len(all_events(stream)) == 4
    assert "from a callback" in caplog.text


def test_callback_that_waits_for_a_later_write_of_its_writer_gets_an_error_at_once() -> None:
    store, stream = stream_of()
    seen: list[Any] = []
    with EventStreamWriter(stream) as writer:

        def wait(future: WriteFuture[EventPointer]) -> None:
            seen.append(future.result().offset)
            later = writer.write_event(b"later", "k")
            for call in (later.result, later.exception, partial(later.result, WAIT)):
                with pytest.raises(IllegalState, match="a callback of a writer waits"):
                    call()
            with pytest.raises(concurrent.futures.TimeoutError):
                later.result(0)
            seen.append(later)

        with paused(store):
            future = writer.write_event(b"first", "k")
            future.add_done_callback(wait)
        writer.flush()
        while len(seen) < 2:
            time.sleep(0.001)
        assert seen[1].result(WAIT).offset == 1


def test_every_callback_is_called_once_whenever_it_is_added() -> None:
    _, stream = stream_of()
    called: list[int] = []

    def called_with(number: int, future: object) -> None:
        called.append(number)

    with EventStreamWriter(stream) as writer:
        for n in range(300):
            future = writer.write_event(b"x", "k")
            future.add_done_callback(partial(called_with, n))
    until = time.monotonic() + WAIT
    while len(called) < 300 and time.monotonic() < until:
        time.sleep(0.001)
    assert sorted(called) == list(range(300))


@pytest.mark.medium
@pytest.mark.parametrize("segments", [1, 3])
def test_kept_future_keeps_neither_its_event_nor_its_batch(segments: int) -> None:
    store, stream = stream_of(segments)
    with EventStreamWriter(stream) as writer:
        with paused(store) as pause:
            writer.write_event(b"first")
            assert pause.reached.wait(WAIT)
            futures = [writer.write_event(b"x" * 100, f"k{n}") for n in range(2_000)]
            group = writer.write_events([b"y" * 100_000] * 20, "k")
        writer.flush()
        one = futures[7]
        kept = [one, group]
        del futures, group
        gc.collect()
        assert _reachable(kept) < 4_000
        assert one.result(0).offset >= 0


@pytest.mark.medium
def test_write_with_a_dropped_future_leaves_no_object_behind() -> None:
    store, stream = stream_of()
    with EventStreamWriter(stream) as writer, paused(store) as pause:
        writer.write_event(b"first")
        assert pause.reached.wait(WAIT)
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(1_000):
            writer.write_event(b"x", "k")
        gc.collect()
        assert len(gc.get_objects()) - before < 500  # other threads make some
    assert len(all_events(stream)) == 1_001


@pytest.mark.medium
def test_kept_future_is_one_object_for_the_garbage_collector() -> None:
    store, stream = stream_of(3)
    with EventStreamWriter(stream) as writer:
        # One batch: each commit leaves objects of its own, and a busy machine would make many.
        with paused(store) as pause:
            first = writer.write_event(b"first")
            assert pause.reached.wait(WAIT)
            gc.collect()
            before = len(gc.get_objects())
            futures = [writer.write_event(b"x", f"k{n}") for n in range(1_000)]
        writer.flush()
        gc.collect()
        assert len(gc.get_objects()) - before < 1_100
        assert first.done()
        assert all(future.done() for future in futures)


class SlowNumber:
    """Write numbers; between taking number 2 and returning it, ``action`` runs."""

    def __init__(self, writer: EventStreamWriter, action: Callable[[], object]) -> None:
        self.numbers, self.action = queue_of(writer).numbers, action

    def __iter__(self) -> SlowNumber:
        return self

    def __next__(self) -> int:
        number = next(self.numbers)
        if number == 2:
            self.action()
        return number


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("committed", [False, True])
def test_write_overtaken_by_others_is_completed_by_its_own_batch(
    segments: int, committed: bool
) -> None:
    store, stream = stream_of(segments)
    writer = EventStreamWriter(stream)
    others: list[WriteFuture[EventPointer]] = []

    def action() -> None:
        others.extend(writer.write_event(b"other %d" % n, f"k{n}") for n in range(3))
        if committed:
            writer.flush()
        assert [future.done() for future in others] == [committed] * 3

    with paused(store) as pause:
        first = writer.write_event(b"0", "k")
        assert pause.reached.wait(WAIT)
        if committed:
            pause.go()
        queue_of(writer).numbers = SlowNumber(writer, action)  # type: ignore[assignment]
        mine = [writer.write_event(b"%d" % n, f"k{n}") for n in (1, 2, 3)]
        events = dict(zip([first, *mine], [b"0", b"1", b"2", b"3"], strict=True))
        events |= {future: b"other %d" % n for n, future in enumerate(others)}
        pause.go()
    writer.flush()
    for future, event in events.items():
        at = future.result(0)
        assert events_of(stream, at.segment_id)[at.offset][1] == event
    writer.close()
    assert len(set(all_events(stream))) == 7


def test_write_that_finishes_after_the_close_fails_with_object_closed() -> None:
    _, stream = stream_of()
    writer = EventStreamWriter(stream)
    done = [writer.write_event(b"0", "k"), writer.write_event(b"1", "k")]
    queue_of(writer).numbers = SlowNumber(writer, writer.close)  # type: ignore[assignment]
    late = writer.write_event(b"2", "k")
    assert isinstance(late.exception(0), ObjectClosed)
    assert [future.result(0).offset for future in done] == [0, 1]
    assert len(all_events(stream)) == 2


@pytest.mark.parametrize("events", [[b"0"], [b"0", b"1"]])
def test_interrupt_right_after_the_events_are_queued_wakes_the_thread(events: list[bytes]) -> None:
    _, stream = stream_of()
    writer = EventStreamWriter(stream)
    queue, extend = queue_of(writer), queue_of(writer).extend

    def interrupted(entry: Any) -> None:
        while not queue.is_idle:
            time.sleep(0.001)
        extend(entry)
        raise KeyboardInterrupt

    queue.extend = interrupted
    with pytest.raises(KeyboardInterrupt):
        writer.write_events(events, "k") if len(events) > 1 else writer.write_event(events[0])
    until = time.monotonic() + WAIT
    while len(all_events(stream)) < len(events) and time.monotonic() < until:
        time.sleep(0.001)
    assert [event for _, event in all_events(stream)] == events
    queue.extend = extend
    writer.close()


def _reachable(found: list[Any]) -> int:
    """Return the bytes of all objects that these refer to, except types."""
    seen: dict[int, Any] = {}
    todo = list(found)
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type) or item is None:
            continue
        seen[id(item)] = item
        todo += gc.get_referents(item)
    return sum(map(sys.getsizeof, seen.values()))


@pytest.mark.medium
def test_thousands_of_kept_futures_keep_no_event_in_memory() -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream) as writer:
        writer.write_event(b"x" * 1_000).result(WAIT)
        tracemalloc.start()
        try:
            futures = [writer.write_event(bytes(1_000), "k") for _ in range(5_000)]
            writer.flush()
            gc.collect()
            stored = sum(len(event) for _, event in all_events(stream))
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert stored > 5_000_000
    assert futures[0].done()
    assert held < 3_000_000


@pytest.mark.parametrize("error", [TooBusy("nothing was done; try again."), StoreFull("full")])
def test_error_of_a_failed_writer_asks_for_a_new_writer(error: Exception) -> None:
    store, stream = stream_of()
    store.rules.add(Rule(error, "put", "*/data/*"))
    writer = EventStreamWriter(stream)
    future = writer.write_event(b"a")
    found = future.exception(WAIT)
    assert type(found) is type(error)
    for call in (lambda: writer.write_event(b"b"), writer.flush):
        with pytest.raises(type(error), match="open a new writer; this one accepts no more"):
            call()
    assert "open a new writer" in str(found)
    writer.close()


def test_two_threads_may_notify_the_same_waiting_threads() -> None:
    class TakenByAnother(list[threading.Lock]):
        """It looks as if a thread still waited, which another one has just woken."""

        def __bool__(self) -> bool:
            return True

    condition = SignalSafeCondition()
    condition._waiters = TakenByAnother()
    condition.notify_all()
