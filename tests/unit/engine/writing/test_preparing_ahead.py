"""Chunks of the next batch are stored while a commit is in flight, and nothing is reordered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from pravega_spark.engine.log.retained import raise_horizon
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream.records import WRITER_PREFIX
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing import queue
from pravega_spark.engine.writing.batch import WriteBatch
from pravega_spark.errors import StoreFull, WriterFenced
from pravega_spark.event_writer import EventStreamWriter, queue_of
from pravega_spark.values.segments import EventPointer
from tests.harness.fault_plans import Rule
from tests.harness.faulty_store import Fault
from tests.harness.small_streams import all_events, events_of, make_stream, reopen, scale
from tests.harness.spy_store import Spy

WAIT = 30.0


class RemoteMemory(MemoryStore):
    """Memory that writers take for a store whose calls take long."""

    is_local = False


def wait_until_prepared(writer: EventStreamWriter) -> None:
    until = time.monotonic() + WAIT
    while not queue_of(writer)._prepared:
        assert time.monotonic() < until
        time.sleep(0.001)


class HeldCommit:
    """Holds the next commit of a writer until the test goes on."""

    def __init__(self, store: Spy) -> None:
        self.begun, self.go_on, self.staged = (threading.Event() for _ in range(3))
        self.store = store
        store.hook = self

    def __call__(self, operation: str, key: str) -> None:
        if operation == "put_if_absent" and "/_delta_log/" in key and not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(WAIT)
        elif operation == "put" and "/data/" in key and self.begun.is_set():
            self.staged.set()


def remote(segments: int = 2) -> tuple[Spy, StreamLog]:
    store = Spy(RemoteMemory())
    return store, make_stream(store, SYSTEM, segments=segments)


@contextmanager
def one_ahead(store: Spy, writer: EventStreamWriter) -> Iterator[list[Callable[[], EventPointer]]]:
    """Write 0 to 9, and 10 to 19 while the commit of the first is held and the chunk is stored."""
    held = HeldCommit(store)
    futures = [writer.write_event(b"0", "k0")]
    assert held.begun.wait(WAIT)
    futures += [writer.write_event(b"%d" % n, f"k{n % 3}") for n in range(1, 20)]
    assert held.staged.wait(WAIT)
    wait_until_prepared(writer)
    assert not any(future.done() for future in futures)
    store.hook = None
    yield [future.result for future in futures]
    held.go_on.set()


def check_order(stream: StreamLog, count: int = 20) -> None:
    found: dict[str | None, list[int]] = {}
    for key, event in all_events(stream):
        found.setdefault(key, []).append(int(event))
    assert sorted(n for numbers in found.values() for n in numbers) == list(range(count))
    assert all(numbers == sorted(numbers) for numbers in found.values())


def test_next_batch_is_stored_during_a_commit_and_pointers_are_right() -> None:
    store, stream = remote()
    with EventStreamWriter(stream, "w") as writer:
        with one_ahead(store, writer) as results:
            pass
        for number, result in enumerate(results):
            pointer = result()
            assert events_of(stream, pointer.segment_id)[pointer.offset][1] == b"%d" % number
        assert writer.last_event_number == 20
    check_order(stream)


def test_at_most_one_batch_waits_for_a_commit() -> None:
    store, stream = remote()
    with EventStreamWriter(stream, "w") as writer:
        puts = list[str]()
        with one_ahead(store, writer):
            store.hook = lambda operation, key: puts.append(operation)
            for n in range(20, 40):
                writer.write_event(b"%d" % n, f"k{n % 3}")
            time.sleep(0.05)
            assert "put" not in puts
    check_order(stream, 40)


def test_scale_between_two_batches_in_flight_reroutes_both() -> None:
    store, stream = remote(segments=1)
    with EventStreamWriter(stream, "w") as writer:
        with one_ahead(store, writer) as results:
            scale(reopen(stream), [0], [(0, 0.5), (0.5, 1)])
        assert len({result().segment_id for result in results}) == 2
    check_order(stream)
    assert not events_of(stream, 0)


def test_failure_of_a_commit_fails_the_batch_behind_it() -> None:
    store, stream = remote()
    writer = EventStreamWriter(stream, "w")
    with one_ahead(store, writer) as results:
        store.rules.add(Rule(StoreFull("full"), "put_if_absent"))
    for result in results:
        with pytest.raises(StoreFull):
            result()
    store.rules.clear()
    with pytest.raises(StoreFull):
        writer.write_event(b"late")
    assert all_events(stream) == []
    with EventStreamWriter(stream, "w") as other:
        assert other.last_event_number == 0


def test_failure_to_store_the_next_batch_does_not_fail_the_one_before() -> None:
    store, stream = remote()
    writer = EventStreamWriter(stream, "w")
    held = HeldCommit(store)
    first = writer.write_event(b"0", "k0")
    assert held.begun.wait(WAIT)
    store.rules.add(Rule(StoreFull("full"), "put", "*/data/*"))
    second = writer.write_event(b"1", "k0")
    wait_until_prepared(writer)
    assert not second.done()
    held.go_on.set()
    assert first.result(WAIT).offset == 0
    assert isinstance(second.exception(WAIT), StoreFull)
    assert [event for _, event in all_events(stream)] == [b"0"]


def test_fenced_writer_fails_with_both_batches() -> None:
    store, stream = remote()
    writer = EventStreamWriter(stream, "w")
    with one_ahead(store, writer) as results:
        other = EventStreamWriter(reopen(stream), "w")
    for result in results:
        with pytest.raises(WriterFenced):
            result()
    other.write_event(b"0", "k").result(WAIT)
    other.close()
    check_order(stream, 1)


def test_commit_without_an_answer_that_landed_keeps_the_batch_behind_it() -> None:
    store, stream = remote()
    with EventStreamWriter(stream, "w") as writer:
        with one_ahead(store, writer) as results:
            store.rules.add(Rule(Fault.LOSE_ANSWER, "put_if_absent", nth=1))
        for result in results:
            result()
    check_order(stream)


def test_notes_belong_to_their_events_also_ahead() -> None:
    store, stream = remote()
    with EventStreamWriter(stream, "w") as writer:
        held = HeldCommit(store)
        writer.write_event(b"0", "k0")
        assert held.begun.wait(WAIT)
        flushing = threading.Thread(target=writer.flush, args=("after 0",))
        flushing.start()
        wait_until_prepared(writer)
        writer.write_event(b"1", "k0")
        held.go_on.set()
        flushing.join()
        assert (writer.last_note, writer.last_note_event_number) == ("after 0", 1)
    with EventStreamWriter(stream, "w") as again:
        assert (again.last_note, again.last_note_event_number) == ("after 0", 1)
        assert again.last_event_number == 2


def test_forgotten_writer_without_an_id_renews_both_batches() -> None:
    store, stream = remote()
    with EventStreamWriter(stream) as writer:
        writer.write_event(b"before", "k").result(WAIT)
        old = writer.writer_id
        with one_ahead(store, writer) as results:
            forget(reopen(stream), old)
        for result in results:
            result()
        assert writer.writer_id != old
        assert stream.view().writer(writer.writer_id).last == 20  # type: ignore[union-attr]
    found = [event for _, event in all_events(stream)]
    assert sorted(found) == sorted([b"before", *(b"%d" % n for n in range(20))])


def forget(stream: StreamLog, writer_id: str) -> None:
    version = stream.view().version
    raise_horizon(stream.log, version, drop=lambda snapshot: [f"{WRITER_PREFIX}{writer_id}"])


def test_local_writer_prepares_ahead_only_if_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Spy()
    stream = make_stream(store, SYSTEM)
    with EventStreamWriter(stream, "w") as writer:
        held = HeldCommit(store)
        writer.write_event(b"0", "k0")
        assert held.begun.wait(WAIT)
        writer.write_event(b"1", "k0")
        time.sleep(0.02)
        assert not held.staged.is_set()
        held.go_on.set()
        writer.flush()
        monkeypatch.setattr(queue, "PREPARE_AHEAD_BYTES", 1)
        gate = threading.Event()

        def wait_in_the_first_put(operation: str, key: str) -> None:
            if operation == "put" and "/data/" in key:
                store.hook = None
                gate.wait(WAIT)
                HeldCommit.__init__(held, store)

        store.hook = wait_in_the_first_put
        writer.write_event(b"2", "k0")
        while not queue_of(writer)._batches:
            time.sleep(0.001)
        writer.write_event(b"3", "k0")
        gate.set()
        assert held.begun.wait(WAIT)
        wait_until_prepared(writer)
        held.go_on.set()
    check_order(stream, 4)


def test_error_while_a_batch_is_made_waits_for_the_commit_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, stream = remote()
    writer = EventStreamWriter(stream, "w")
    held = HeldCommit(store)
    first = writer.write_event(b"0", "k0")
    assert held.begun.wait(WAIT)

    def no_memory(items: object) -> WriteBatch:
        raise MemoryError("memory")

    monkeypatch.setattr(WriteBatch, "of", no_memory)
    second = writer.write_event(b"1", "k0")
    wait_until_prepared(writer)
    assert not second.done()
    held.go_on.set()
    assert first.result(WAIT).offset == 0
    assert "memory" in str(second.exception(WAIT))
    assert [event for _, event in all_events(stream)] == [b"0"]
