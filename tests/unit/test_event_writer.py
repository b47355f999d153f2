from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.encode import json_serializer
from pravega_spark.errors import (
    CommitUnknown,
    EventTooLarge,
    ForkedProcess,
    IllegalState,
    InvalidInput,
    InvalidName,
    NoSuchStream,
    ObjectClosed,
    OutOfOrder,
    PravegaSparkError,
    StaleIdentity,
    StoreFull,
    StreamSealed,
    WriterFenced,
)
from pravega_spark.event_writer import EventStreamWriter, queue_of
from pravega_spark.values.limits import (
    MAX_ATOMIC_WRITE_BYTES,
    MAX_EVENT_BYTES,
    MAX_NOTE_LENGTH,
    WRITER_EVENT_BYTES,
)
from pravega_spark.values.segments import EventPointer
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import all_events, events_of, make_stream, reopen, scale
from tests.harness.spy_store import Spy

WAIT = 30.0


def stream_of(segments: int = 1) -> tuple[Spy, StreamLog]:
    store = Spy()
    return store, make_stream(store, SYSTEM, segments)


def payloads(stream: StreamLog) -> list[bytes]:
    return [event for _, event in all_events(reopen(stream))]


def at(stream: StreamLog, pointer: EventPointer) -> bytes:
    return events_of(stream, pointer.segment_id)[pointer.offset][1]


class Paused:
    """Pauses the commits of a store, so that later writes share the next one."""

    def __init__(self, store: Spy) -> None:
        self.store = store
        self.reached, self.go = threading.Event(), threading.Event()

    def __enter__(self) -> Paused:
        self.store.hook = self._hook
        return self

    def _hook(self, operation: str, key: str) -> None:
        if operation == "put_if_absent":
            self.reached.set()
            assert self.go.wait(WAIT)

    def release(self) -> None:
        self.store.hook = None
        self.go.set()

    def __exit__(self, *_: object) -> None:
        self.release()


# ---------------------------------------------------------------------------- writes and order


def test_future_is_done_once_durable_and_its_pointer_leads_to_the_event() -> None:
    _, stream = stream_of(segments=3)
    with EventStreamWriter(stream) as writer:
        futures = [writer.write_event(f"e{n}", f"k{n % 7}") for n in range(50)]
        pointers = [future.result(WAIT) for future in futures]
        for n, (future, pointer) in enumerate(zip(futures, pointers, strict=True)):
            assert future.done()
            assert not future.running()
            assert not future.cancel()
            assert not future.cancelled()
            assert future.exception() is None
            assert at(stream, pointer) == b"e%d" % n
    assert len(set(pointers)) == 50


def test_single_event_is_committed_immediately_and_many_share_a_commit() -> None:
    store, stream = stream_of()
    with EventStreamWriter(stream) as writer:
        writer.write_event(b"first").result(WAIT)
        with Paused(store) as pause:
            writer.write_event(b"second")
            assert pause.reached.wait(WAIT)
            rest = [writer.write_event(b"%d" % n, "k") for n in range(100)]
            pause.release()
            rest[-1].result(WAIT)
    assert stream.view().version == 3


def test_order_by_key_holds_with_many_threads_and_segments() -> None:
    _, stream = stream_of(segments=4)

    def produce(writer: EventStreamWriter, thread: int) -> None:
        source = random.Random(thread)
        for n in range(300):
            writer.write_event(b"%d:%d" % (thread, n), f"{thread}-{n % 3}")
            if source.random() < 0.01:
                time.sleep(0.001)

    with EventStreamWriter(stream) as writer:
        threads = [threading.Thread(target=produce, args=(writer, t)) for t in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.flush()

    by_key: dict[str | None, list[int]] = {}
    for key, event in all_events(stream):
        by_key.setdefault(key, []).append(int(event.split(b":")[1]))
    assert sum(map(len, by_key.values())) == 2_400
    for key, numbers in by_key.items():
        first = int(str(key).split("-")[1])
        assert numbers == list(range(first, 300, 3))


def test_concurrent_writers_lose_and_duplicate_no_event() -> None:
    _, stream = stream_of(segments=2)
    writers = [EventStreamWriter(reopen(stream)) for _ in range(3)]
    for n in range(60):
        writers[n % 3].write_event(b"%d" % n, f"k{n % 3}")
        if n % 9 == 0:
            time.sleep(0.002)
    for writer in writers:
        writer.close()
    assert sorted(map(int, payloads(stream))) == list(range(60))
    by_key: dict[str | None, list[int]] = {}
    for key, event in all_events(stream):
        by_key.setdefault(key, []).append(int(event))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


@pytest.mark.medium
@pytest.mark.parametrize("key", ["k", None])
def test_write_events_is_contiguous_in_one_segment_and_one_commit(key: str | None) -> None:
    store, stream = stream_of(segments=4)
    with EventStreamWriter(stream) as writer:
        with Paused(store) as pause:
            writer.write_event(b"x")
            assert pause.reached.wait(WAIT)
            groups = []
            for n in range(20):
                groups.append(writer.write_events([b"%d.%d" % (n, i) for i in range(5)], key))
                writer.write_event(b"between", key)
            pause.release()
        for n, group in enumerate(groups):
            pointers = group.result(WAIT)
            assert {p.segment_id for p in pointers} == {pointers[0].segment_id}
            assert [p.offset for p in pointers] == list(
                range(pointers[0].offset, pointers[0].offset + 5)
            )
            assert [at(stream, p) for p in pointers] == [b"%d.%d" % (n, i) for i in range(5)]


def test_atomic_write_that_fails_writes_none_of_its_events() -> None:
    store, stream = stream_of(segments=4)
    store.rules.add(Rule(StoreFull("full"), "put", "*/data/*", nth=2))
    writer = EventStreamWriter(stream)
    future = writer.write_events([b"a", b"b"], "k")
    assert future.result(WAIT)
    failed = writer.write_events([b"c", b"d"], "k")
    assert isinstance(failed.exception(WAIT), StoreFull)
    writer.close()
    assert payloads(stream) == [b"a", b"b"]


# ------------------------------------------------------------------------------ sizes and types


@pytest.mark.medium
def test_event_of_8_mib_is_written_and_one_byte_more_is_refused() -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream) as writer:
        big = os.urandom(1 << 20) * 8
        pointer = writer.write_event(big).result(WAIT)
        with pytest.raises(EventTooLarge, match=r"8388609 bytes for stream s/t.*8388608.*split it"):
            writer.write_event(big + b"x")
        with pytest.raises(EventTooLarge, match=r"an event of 8388609 bytes"):
            writer.write_events([b"a", big + b"x"], "k")
        with pytest.raises(EventTooLarge, match=rf"at most\s{MAX_ATOMIC_WRITE_BYTES} bytes"):
            writer.write_events([big, big, b"x"], "k")
        assert len(writer.write_events([big, big, b""], "k").result(WAIT)) == 3
        assert at(stream, pointer) == big
    assert stream.view().segment(0).next_offset == 4
    assert len(big) == MAX_EVENT_BYTES


@pytest.mark.parametrize("event", [7, None, {"a": 1}, ["x"], 1.5])
def test_event_that_is_not_bytes_needs_a_serializer(event: Any) -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream) as writer:
        with pytest.raises(InvalidInput, match=r"s/t must be bytes or str, not .*json_serializer"):
            writer.write_event(event)
        with pytest.raises(InvalidInput, match="give the writer a serializer"):
            writer.write_events([b"a", event])
    assert payloads(stream) == []


def test_bytes_like_objects_and_text_are_written_unchanged() -> None:
    _, stream = stream_of()
    events = [b"a", bytearray(b"b"), memoryview(b"c"), "dä", ""]
    with EventStreamWriter(stream) as writer:
        for event in events:
            writer.write_event(event, "k")
    assert payloads(stream) == [b"a", b"b", b"c", "dä".encode(), b""]


def test_serializer_receives_every_event_even_bytes() -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream, serializer=json_serializer) as writer:
        writer.write_event({"ä": [1]}, "k")
        writer.write_event("text", "k")
        with pytest.raises(TypeError):
            writer.write_event(b"bytes are no JSON", "k")
    with EventStreamWriter(stream, serializer=lambda event: event[::-1]) as writer:
        writer.write_event(b"abc", "k")
        writer.write_events([b"abc", b"de"], "k")
    assert payloads(stream) == ['{"ä":[1]}'.encode(), b'"text"', b"cba", b"cba", b"ed"]


def test_serializer_that_returns_no_bytes_fails_only_its_own_event() -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream, serializer=lambda event: event) as writer:
        writer.write_event(b"good", "k")
        with pytest.raises(InvalidInput, match=r"serializer of the writer of s/t returned int"):
            writer.write_event(7)
        writer.write_event(b"better", "k")
    assert payloads(stream) == [b"good", b"better"]


@pytest.mark.parametrize("key", [7, b"k", "\ud800", ("k",), "k" * 65_537, "ß" * 65_537])
def test_bad_routing_key_fails_only_its_own_event(key: Any) -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream) as writer:
        writer.write_event(b"good", "schlüssel")
        for call in (writer.write_event, lambda e, k: writer.write_events([e], k)):
            with pytest.raises(InvalidInput, match="routing key"):
                call(b"bad", key)
        with pytest.raises(InvalidInput, match=r"an event for stream s/t has no UTF-8 form"):
            writer.write_event("\ud800")
        writer.write_event(b"better", "schlüssel")
    assert payloads(stream) == [b"good", b"better"]


def test_routing_key_of_65536_characters_is_stored_with_the_largest_event() -> None:
    _, stream = stream_of()
    keys = ["k" * 65_536, "ß" * 65_536]
    with EventStreamWriter(stream) as writer:
        for key in keys:
            writer.write_event(b"x" * MAX_EVENT_BYTES, key)
    assert [key for key, _ in all_events(stream)] == keys


def test_empty_atomic_write_is_done_immediately_and_writes_nothing() -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream) as writer:
        future = writer.write_events([], "k")
        assert (future.done(), future.result(), future.exception()) == (True, (), None)
        with pytest.raises(InvalidInput, match="routing key"):
            writer.write_events([], 7)  # type: ignore[arg-type]
    assert payloads(stream) == []
    with pytest.raises(ObjectClosed):
        writer.write_events([])


@pytest.mark.parametrize("timeout", ["abc", float("nan"), b"1", True])
def test_flush_refuses_a_timeout_that_is_not_a_number(timeout: Any) -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream, "w") as writer:
        writer.write_event(b"1")
        with pytest.raises(
            InvalidInput, match=r"timeout of flush must be a number of seconds"
        ) as raised:
            writer.flush(None, timeout)
        assert repr(timeout) in str(raised.value)
        with pytest.raises(InvalidInput, match=r"a note must be a str .* got 5"):
            writer.flush(5)  # type: ignore[arg-type]
    assert payloads(stream) == [b"1"]


def test_error_of_a_serializer_is_raised_unchanged_and_nothing_is_written() -> None:
    _, stream = stream_of()

    def refuse(event: Any) -> bytes:
        raise KeyError(event)

    with EventStreamWriter(stream, serializer=refuse) as writer:
        with pytest.raises(KeyError, match="bad"):
            writer.write_event("bad")
        with pytest.raises(KeyError, match="bad"):
            writer.write_events(["bad"])
    assert payloads(stream) == []


@pytest.mark.parametrize("name", ["a_b", "", "a/b", 7, "x" * 251])
def test_bad_writer_id_is_refused_before_anything_is_committed(name: Any) -> None:
    _, stream = stream_of()
    with pytest.raises(InvalidName, match="writer name"):
        EventStreamWriter(stream, name)
    assert stream.view().version == 0


# ------------------------------------------------------------------------- back-pressure, flush


@pytest.mark.parametrize(
    ("event", "buffer_bytes", "most"),
    [(b"x" * 100, 1_000, 10), (b"", 16 * WRITER_EVENT_BYTES, 16)],
    ids=["by bytes", "empty events"],
)
def test_full_buffer_blocks_writers_and_bounds_memory(
    event: bytes, buffer_bytes: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pravega_spark.engine.writing.batch.WRITER_BATCH_EVENTS", 4)
    store, stream = stream_of()
    writer = EventStreamWriter(stream, buffer_bytes=buffer_bytes)
    written: list[int] = []

    def produce() -> None:
        for n in range(100):
            writer.write_event(event, "k")
            written.append(n)

    with Paused(store) as pause:
        thread = threading.Thread(target=produce)
        thread.start()
        assert pause.reached.wait(WAIT)
        time.sleep(0.1)
        assert len(written) <= most
        pause.release()
        thread.join(WAIT)
    writer.close()
    assert len(payloads(stream)) == 100


def test_event_larger_than_the_buffer_is_written_alone() -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream, buffer_bytes=10) as writer:
        for _ in range(3):
            writer.write_event(b"x" * 100, "k")
    assert len(payloads(stream)) == 3


def test_flush_waits_for_every_earlier_write_and_can_time_out() -> None:
    store, stream = stream_of()
    with EventStreamWriter(stream) as writer:
        writer.flush()
        with Paused(store) as pause:
            writer.flush(timeout=0)
            future = writer.write_event(b"a")
            with pytest.raises(FutureTimeoutError, match=r"not durable after 0 s"):
                writer.flush(timeout=0)
            with pytest.raises(FutureTimeoutError, match=r"not durable after 0.01 s"):
                writer.flush(timeout=0.01)
            with pytest.raises(FutureTimeoutError):
                future.result(0.01)
            pause.release()
            writer.flush()
            assert future.done()
            writer.flush(timeout=0)


def test_closed_writer_accepts_no_events_and_a_second_close_does_nothing() -> None:
    _, stream = stream_of()
    writer = EventStreamWriter(stream)
    writer.write_event(b"a")
    writer.close()
    writer.close()
    calls: list[Callable[[], object]] = [
        lambda: writer.write_event(b""),
        lambda: writer.write_events([b"b"]),
        writer.flush,
    ]
    for call in calls:
        with pytest.raises(ObjectClosed, match="writer of stream s/t was closed; create a new one"):
            call()
    assert payloads(stream) == [b"a"]


def in_a_block(stream: StreamLog, then: Callable[[EventStreamWriter], None]) -> None:
    with EventStreamWriter(stream) as writer:
        writer.write_event(b"a")
        then(writer)


def fail_body(writer: EventStreamWriter) -> None:
    raise KeyError("body")


def wait_for_failure(writer: EventStreamWriter) -> None:
    while queue_of(writer).failure is None:
        time.sleep(0.001)


def test_with_block_flushes_events_written_before_an_exception() -> None:
    _, stream = stream_of()
    with pytest.raises(KeyError, match="body"):
        in_a_block(stream, fail_body)
    assert payloads(stream) == [b"a"]


def test_unreported_failure_is_raised_at_the_end_of_a_with_block() -> None:
    store, stream = stream_of()
    store.rules.add(Rule(StoreFull("full"), "put", "*/data/*"))
    with pytest.raises(StoreFull, match="full"):
        in_a_block(stream, wait_for_failure)


def test_close_does_not_raise_a_failure_that_a_future_reported() -> None:
    store, stream = stream_of()
    store.rules.add(Rule(StoreFull("full"), "put", "*/data/*"))
    writer = EventStreamWriter(stream)
    assert isinstance(writer.write_event(b"a").exception(WAIT), StoreFull)
    writer.close()


def test_exception_of_a_with_block_hides_the_writers_own() -> None:
    store, stream = stream_of()
    store.rules.add(Rule(StoreFull("full"), "put", "*/data/*"))
    with pytest.raises(KeyError, match="body"):
        in_a_block(stream, fail_body)


def test_callback_that_fails_or_writes_does_not_stop_the_writer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, stream = stream_of()
    seen: list[Any] = []
    with Paused(store) as paused, EventStreamWriter(stream, buffer_bytes=10) as writer:

        def fail(future: Any) -> None:
            raise ValueError("in a callback")

        def write_and_flush(future: Any) -> None:
            seen.append(future.result())
            writer.write_event(b"from a callback, more than the buffer", "k")
            with pytest.raises(IllegalState, match="in a callback of one of its futures"):
                writer.flush()
            seen.append("flushed")

        future = writer.write_event(b"a", "k")
        future.add_done_callback(fail)
        future.add_done_callback(write_and_flush)
        paused.release()
        future.result(WAIT)
        while len(seen) < 2:
            time.sleep(0.001)
        writer.write_event(b"b", "k").result(WAIT)
        future.add_done_callback(fail)
    assert payloads(stream) == [b"a", b"from a callback, more than the buffer", b"b"]
    assert caplog.text.count("in a callback") >= 2


# ------------------------------------------------------------------------------- exactly once


def test_writer_resumes_after_its_last_number_and_note() -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream, "w") as writer:
        assert (writer.writer_id, writer.last_event_number, writer.last_note) == ("w", 0, None)
        for n in range(3):
            writer.write_event(b"%d" % n, "k")
        writer.flush("line 3")
        writer.write_event(b"3", "k")
        writer.flush()
        assert (writer.last_event_number, writer.last_note_event_number) == (4, 3)

    with EventStreamWriter(reopen(stream), "w") as writer:
        assert (writer.last_event_number, writer.last_note) == (4, "line 3")
        assert writer.last_note_event_number == 3
        writer.flush("a note alone")
        writer.write_event(b"4", "k").result(WAIT)
        assert (writer.last_event_number, writer.last_note_event_number) == (5, 4)
    assert payloads(stream) == [b"%d" % n for n in range(5)]


def test_note_is_stored_atomically_with_the_events_before_it() -> None:
    store, stream = stream_of()
    writer = EventStreamWriter(stream, "w")
    writer.write_event(b"a", "k")
    writer.flush("one")
    store.rules.add(Rule(StoreFull("full"), "put_if_absent"))
    writer.write_event(b"b", "k")
    with pytest.raises(StoreFull):
        writer.flush("two")
    writer.close()
    store.rules.clear()
    with EventStreamWriter(reopen(stream), "w") as writer:
        assert (writer.last_event_number, writer.last_note) == (1, "one")


def test_note_needs_a_writer_id_and_has_a_maximum_length() -> None:
    _, stream = stream_of()
    with EventStreamWriter(stream) as writer:
        with pytest.raises(InvalidInput, match=r"needs a writer with a writer_id"):
            writer.flush("note")
        assert writer.writer_id.startswith("_0.")
    with EventStreamWriter(stream, "w") as writer:
        for note in ("x" * (MAX_NOTE_LENGTH + 1), 7):
            with pytest.raises(InvalidInput, match=f"at most {MAX_NOTE_LENGTH} characters"):
                writer.flush(note)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="a note for stream s/t has no UTF-8 form"):
            writer.flush("\ud800")
        writer.write_event(b"a")
        writer.flush("the writer continues")
        assert writer.last_note == "the writer continues"


def test_older_writer_of_an_id_is_fenced_and_keeps_its_acknowledged_events() -> None:
    _, stream = stream_of()
    zombie = EventStreamWriter(stream, "w")
    zombie.write_event(b"0", "k").result(WAIT)
    with EventStreamWriter(reopen(stream), "w") as writer:
        assert writer.last_event_number == 1
        late = zombie.write_event(b"zombie", "k")
        writer.write_event(b"1", "k")
        error = late.exception(WAIT)
        assert isinstance(error, WriterFenced)
        assert "session 1 was fenced by session 2; this writer must stop" in str(error)
        for call in (zombie.flush, lambda: zombie.write_event(b"more")):
            with pytest.raises(WriterFenced):
                call()
        zombie.close()
    assert payloads(stream) == [b"0", b"1"]


def test_gap_in_the_log_fails_the_writer_and_its_later_batches() -> None:
    _, stream = stream_of()
    writer = EventStreamWriter(stream, "w")
    writer._committer.last = writer._committer._previous = 5
    first = writer.write_event(b"a", "k")
    assert isinstance(first.exception(WAIT), OutOfOrder)
    with pytest.raises(OutOfOrder, match="continue after its last_event_number"):
        writer.write_event(b"b", "k")
    writer.close()
    assert payloads(stream) == []


def test_unknown_outcome_fails_the_writer_and_reopening_decides_it() -> None:
    for landed in (True, False):
        store = Spy()
        runtime = FakeRuntime()
        stream = make_stream(store, runtime)
        writer = EventStreamWriter(stream, "w")
        writer.write_event(b"0", "k").result(WAIT)
        fault = Fault.LOSE_ANSWER if landed else Fault.LOSE_REQUEST
        store.rules.add(Rule(fault, "put_if_absent"), Rule(StoreFull("x"), "get", "*/_delta_log/*"))
        futures = [writer.write_event(b"%d" % n, "k") for n in (1, 2)]
        assert isinstance(futures[0].exception(WAIT), CommitUnknown)
        assert isinstance(futures[1].exception(WAIT), CommitUnknown)
        with pytest.raises(CommitUnknown):
            writer.write_event(b"9", "k")
        writer.close()
        store.rules.clear()

        with EventStreamWriter(reopen(stream), "w") as reopened:
            done = reopened.last_event_number
            assert 1 < done <= 3 if landed else done == 1
            for n in range(done, 3):
                reopened.write_event(b"%d" % n, "k")
        assert payloads(stream) == [b"0", b"1", b"2"]


def test_full_disk_fails_the_futures_and_a_new_writer_resumes() -> None:
    for where in ("*/data/*", "*/_delta_log/*"):
        store, stream = stream_of()
        writer = EventStreamWriter(stream, "w")
        writer.write_event(b"0", "k").result(WAIT)
        store.rules.add(Rule(StoreFull("no space left on device"), "put*", where))
        future = writer.write_event(b"1", "k")
        with pytest.raises(StoreFull, match="no space left"):
            future.result(WAIT)
        with pytest.raises(StoreFull):
            writer.write_event(b"2", "k")
        writer.close()
        assert payloads(stream) == [b"0"]
        store.rules.clear()
        with EventStreamWriter(reopen(stream), "w") as reopened:
            assert reopened.last_event_number == 1
            reopened.write_event(b"1", "k")
        assert payloads(stream) == [b"0", b"1"]


def test_unexpected_error_fails_the_writer_and_is_its_cause() -> None:
    store, stream = stream_of()
    store.rules.add(Rule(MemoryError("out of memory"), "put", "*/data/*"))
    writer = EventStreamWriter(stream)
    error = writer.write_event(b"a").exception(WAIT)
    assert type(error) is PravegaSparkError
    assert "writer of stream s/t stopped: MemoryError: out of memory" in str(error)
    assert isinstance(error.__cause__, MemoryError)
    writer.close()


# ------------------------------------------------------------------------ seal, delete, scale


def test_sealed_stream_fails_pending_and_later_writes_and_new_writers() -> None:
    store, stream = stream_of()
    writer = EventStreamWriter(stream)
    writer.write_event(b"0", "k").result(WAIT)
    lifecycle.seal(reopen(stream, store.inner))
    assert isinstance(writer.write_event(b"1", "k").exception(WAIT), StreamSealed)
    with pytest.raises(StreamSealed, match="s/t was sealed"):
        writer.write_event(b"2", "k")
    writer.close()
    when = r"s/t was sealed at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC \(seen at version 2\)"
    for name in (None, "w"):
        with pytest.raises(StreamSealed, match=when):
            EventStreamWriter(stream, name)
    assert payloads(stream) == [b"0"]


@pytest.mark.parametrize("writer_id", [None, "w"])
@pytest.mark.parametrize("created_again", [False, True])
def test_deleted_stream_fails_the_writer_and_its_next_life_gets_no_event(
    writer_id: str | None, created_again: bool
) -> None:
    store, stream = stream_of()
    writer = EventStreamWriter(stream, writer_id)
    writer.write_event(b"0", "k").result(WAIT)
    other = reopen(stream, store.inner)
    with Paused(store) as pause:
        late = writer.write_event(b"staged before, committed after", "k")
        assert pause.reached.wait(WAIT)
        lifecycle.seal(other)
        configuration = other.view().record.configuration
        lifecycle.delete(other)
        if created_again:
            lifecycle.create(other, 2, configuration)
        pause.release()
    error = late.exception(WAIT)
    assert isinstance(error, StaleIdentity if created_again else NoSuchStream)
    with pytest.raises(type(error)):
        writer.write_event(b"2", "k")
    if not created_again:
        lifecycle.create(other, 2, configuration)
    for call in (
        lambda: writer.write_event(b"3"),
        lambda: writer.write_events([b"4"]),
        writer.flush,
    ):
        with pytest.raises(StaleIdentity, match=r"life 2, .*belongs to life 1"):
            call()
    writer.close()
    assert payloads(stream) == []


def test_scale_moves_unacknowledged_events_to_the_successors_in_order() -> None:
    store, stream = stream_of()
    other = reopen(stream, store.inner)
    with EventStreamWriter(stream, "w") as writer:
        with Paused(store) as pause:
            futures = [writer.write_event(b"%d" % n, f"k{n % 5}") for n in range(10)]
            assert pause.reached.wait(WAIT)
            futures += [writer.write_event(b"%d" % n, f"k{n % 5}") for n in range(10, 50)]
            scale(other, [0], [(0, 0.5), (0.5, 1)])
            pause.release()
        for n, future in enumerate(futures):
            pointer = future.result(WAIT)
            assert at(reopen(stream), pointer) == b"%d" % n
        merged = scale(other, other.view().active.segment_ids, [(0, 1)]).active.segment_ids
        for n in range(50, 60):
            assert writer.write_event(b"%d" % n, f"k{n % 5}").result(WAIT).segment_id == merged[0]

    by_key: dict[str | None, list[int]] = {}
    for key, event in all_events(reopen(stream)):
        by_key.setdefault(key, []).append(int(event))
    assert by_key == {f"k{k}": list(range(k, 60, 5)) for k in range(5)}


# ----------------------------------------------------------------------------- fork and pickle


def _in_child(writer: EventStreamWriter, future: Any, results: Any) -> None:
    calls: dict[str, Callable[[], object]] = {
        "write_event": lambda: writer.write_event(b"child"),
        "write_events": lambda: writer.write_events([b"child"]),
        "flush": writer.flush,
        "close": writer.close,
        "result": future.result,
    }
    for name, call in calls.items():
        try:
            call()
            results.put((name, "no error"))
        except Exception as error:
            results.put((name, type(error).__name__))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_is_refused_promptly_and_the_parent_continues() -> None:
    store, stream = stream_of()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with EventStreamWriter(stream) as writer:
        with Paused(store) as pause:
            future = writer.write_event(b"parent")
            assert pause.reached.wait(WAIT)
            child = context.Process(target=_in_child, args=(writer, future, results))
            child.start()
            found = dict(results.get(timeout=WAIT) for _ in range(5))
            child.join(WAIT)
            pause.release()
        assert set(found.values()) == {ForkedProcess.__name__}
        future.result(WAIT)
        writer.write_event(b"still").result(WAIT)
    assert payloads(stream) == [b"parent", b"still"]


def test_writer_is_not_pickled() -> None:
    _, stream = stream_of()
    refused = pytest.raises(TypeError, match="cannot be pickled; create it where it is used")
    with EventStreamWriter(stream) as writer, refused:
        pickle.dumps(writer)
