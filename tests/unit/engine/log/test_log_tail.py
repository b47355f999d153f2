"""Readers that wait at the end of a log share polls, and are told of commits that are near.

The polls that are counted, and the meetings of threads that are forced, are fields of the tail:
what a reader returns does not show which of many threads has asked the storage.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.engine.log import tail as log_tail
from pravega_spark.engine.log.tail import ArrivalTimes, LogTail, wait_for_commits
from pravega_spark.engine.runtime.folder_watch import FolderWatch
from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import CorruptLog, ForkedProcess, NoSuchStream, RootChanged, StoreError
from pravega_spark.event_reader import EventReader
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.values.events import Event
from pravega_spark.values.limits import POLL_WATCHED_SECONDS
from pravega_spark.values.segments import StreamCut
from tests.harness.fake_runtime import FakeRuntime, SkippingRuntime
from tests.harness.fault_plans import Rule
from tests.harness.small_streams import make_stream, reopen, write
from tests.harness.spy_store import Spy
from tests.harness.tiers import sized

FOLLOWERS = 50


class Remote(Spy):
    """Records its calls, each of which would cost a request."""

    is_local = False


def put(stream: StreamLog, first: int, last: int) -> None:
    write(stream, [("key", b"%d" % n) for n in range(first, last)])


class WakingRuntime(SkippingRuntime):
    """Ends waits when a test has moved its clock past their end."""

    def wait(self, event: threading.Event, seconds: float | None) -> None:
        until = math.inf if seconds is None else self.monotonic() + seconds
        while not event.is_set() and self.monotonic() < until:
            event.wait(0.002)


def spied(kind: type[Spy] = Spy, runtime: Runtime = SYSTEM) -> tuple[StreamLog, StreamLog, Spy]:
    """Return a stream whose polls are recorded, the same stream of another process, and a spy."""
    inner = MemoryStore()
    other = make_stream(inner, runtime)
    spy = kind(inner)
    stream = reopen(other, spy)
    stream.view()
    spy.calls.clear()
    return stream, other, spy


def commit_reads(spy: Spy) -> int:
    return sum("_delta_log" in key for _, key in spy.calls)


@contextmanager
def followers(stream: StreamLog, count: int, number: int) -> Iterator[list[Future[list[bytes]]]]:
    """Start threads that each follow the stream until they have so many events."""

    def follow() -> list[bytes]:
        found: list[bytes] = []
        for event in EventReader(stream).follow(StreamCut.EARLIEST, timeout=60):
            found.append(event.data)
            if len(found) == number:
                break
        return found

    with ThreadPoolExecutor(count) as pool:
        yield [pool.submit(follow) for _ in range(count)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def waiting(stream: StreamLog) -> int:
    return len(stream.tail._waiters)


@pytest.mark.medium
@pytest.mark.parametrize("kind", [Spy, Remote])
def test_followers_of_one_process_make_the_calls_of_one(kind: type[Spy]) -> None:
    stream, other, spy = spied(kind)
    before = threading.active_count()
    with followers(stream, FOLLOWERS, 3) as found:
        wait_until(lambda: waiting(stream) == FOLLOWERS)
        assert threading.active_count() <= before + FOLLOWERS  # some of before may have ended
        spy.calls.clear()
        polls, began = stream.tail._polls, time.monotonic()
        time.sleep(0.3)
        calls, made = len(spy.calls), stream.tail._polls - polls
        assert calls - 2 <= made <= (time.monotonic() - began) / 0.001
        for n in range(3):
            put(other, n, n + 1)
            wait_until(lambda: stream.tail.version == other.tail.version)
    assert [future.result() for future in found] == [[b"0", b"1", b"2"]] * FOLLOWERS
    polls = stream.tail._polls
    assert commit_reads(spy) <= FOLLOWERS + 3 * polls
    spy.calls.clear()
    time.sleep(0.1)
    assert not spy.calls
    assert not waiting(stream)


def test_poll_of_a_remote_log_is_one_call_that_misses_or_returns_the_commit() -> None:
    stream, other, spy = spied(Remote)
    known = [(stream.tail, stream.tail.version)]
    assert not wait_for_commits(SYSTEM, known, SYSTEM.monotonic())
    assert [operation for operation, _ in spy.calls] == ["get"]
    spy.calls.clear()
    put(other, 0, 1)
    assert wait_for_commits(SYSTEM, known, SYSTEM.monotonic() + 60)
    assert [operation for operation, _ in spy.calls] == ["get"]


def test_follower_that_is_behind_on_a_remote_log_reads_many_commits_by_one_listing() -> None:
    stream, other, spy = spied(Remote)
    put(stream, 0, 1)
    events = EventReader(stream).follow(StreamCut.EARLIEST, timeout=1)
    assert next(events).data == b"0"  # the files of the log are known now
    for n in range(1, 40):
        put(other, n, n + 1)
    spy.calls.clear()
    assert [int(next(events).data) for _ in range(39)] == list(range(1, 40))
    assert spy.count("list", "_delta_log") == 1
    assert spy.count("get", "_delta_log") <= 4


def test_commit_of_this_process_wakes_followers_that_do_not_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ArrivalTimes, "pause", lambda self, now: 1_000.0)
    stream, _, _ = spied(Remote)
    with followers(stream, 3, 1) as found:
        wait_until(lambda: waiting(stream) == 3 and stream.tail._polls > 0)
        polls = stream.tail._polls
        put(stream, 0, 1)
        assert [future.result(timeout=30) for future in found] == [[b"0"]] * 3
    assert stream.tail._polls == polls


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_wait_polls_at_least_once_and_ends_at_its_deadline(timeout: float) -> None:
    stream, other, spy = spied(Remote)
    began = SYSTEM.monotonic()
    assert not wait_for_commits(SYSTEM, [(stream.tail, stream.tail.version)], began + timeout)
    assert timeout <= SYSTEM.monotonic() - began < timeout + 20
    assert spy.calls
    with followers(stream, 1, 1) as first:  # which polls for others
        wait_until(lambda: waiting(stream) == 1)
        put(other, 0, 1)
        began, known = SYSTEM.monotonic(), stream.tail.version
        wait_for_commits(SYSTEM, [(stream.tail, known)], began + timeout)
        assert stream.tail.version == other.tail.version
        assert first[0].result() == [b"0"]


@pytest.mark.parametrize("kind", [Spy, Remote])
def test_event_that_came_between_the_last_poll_and_the_deadline_is_found(
    kind: type[Spy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ArrivalTimes, "pause", lambda self, now: 1_000.0)
    clock = WakingRuntime()
    stream, other, spy = spied(kind, clock)
    with ThreadPoolExecutor(2) as pool:
        events = [EventReader(stream).follow(StreamCut.EARLIEST, timeout=900) for _ in range(2)]
        found = [pool.submit(next, one) for one in events]
        wait_until(lambda: waiting(stream) == 2 and stream.tail._looked.number > 0)
        spy.calls.clear()
        put(other, 0, 1)
        assert spy.calls == [], "no poll before the timeout"
        clock.skip(900)
        assert [future.result(timeout=60).data for future in found] == [b"0"] * 2


@pytest.mark.parametrize("kind", [Spy, Remote])
def test_log_that_must_be_opened_again_ends_no_wait(kind: type[Spy]) -> None:
    stream, _, _ = spied(kind)
    known = stream.tail.version
    stream.log.forget()
    began = SYSTEM.monotonic()
    assert not wait_for_commits(SYSTEM, [(stream.tail, known)], began + 0.3)
    assert SYSTEM.monotonic() >= began + 0.3
    assert stream.tail.version == known


def test_next_thread_polls_when_the_one_that_polled_leaves() -> None:
    stream, other, _ = spied()
    with followers(stream, 1, 1) as patient:
        wait_until(lambda: waiting(stream) == 1)
        (leader,) = stream.tail._waiters
        with followers(stream, 1, 1) as second:
            wait_until(lambda: waiting(stream) == 2)
            stream.tail.leave(leader)
            stream.tail.join(leader, stream.tail.version)  # now the last one
            put(other, 0, 1)
            assert second[0].result(timeout=30) == [b"0"]
        assert patient[0].result(timeout=30) == [b"0"]


def test_error_of_a_poll_reaches_each_thread_that_waits() -> None:
    stream, _, spy = spied()
    with followers(stream, 5, 1) as found:
        wait_until(lambda: waiting(stream) == 5)
        spy.rules.add(Rule(StoreError("the disk is gone"), "get", nth=1))
        errors = [future.exception(timeout=30) for future in found]
    assert [str(error) for error in errors] == ["the disk is gone"] * 5
    assert len({id(error) for error in errors}) == 5
    assert not waiting(stream)
    put(stream, 0, 1)
    assert next(EventReader(stream).follow(StreamCut.EARLIEST, timeout=5)).data == b"0"


def test_deleted_stream_ends_all_followers() -> None:
    stream, other, spy = spied()
    with followers(stream, 4, 1) as found:
        wait_until(lambda: waiting(stream) == 4)
        blocked = threading.Event()

        def block(operation: str, key: str) -> None:
            blocked.wait(30)

        spy.hook = block
        lifecycle.seal(other)
        lifecycle.delete(other)
        blocked.set()
        errors = [future.exception(timeout=30) for future in found]
    assert [type(error) for error in errors] == [NoSuchStream] * 4


def test_sealed_stream_ends_all_followers() -> None:
    stream, other, _ = spied()
    with followers(stream, 4, 1) as found:
        wait_until(lambda: waiting(stream) == 4)
        lifecycle.seal(other)
        assert [future.result(timeout=30) for future in found] == [[]] * 4


def test_wait_for_many_logs_ends_with_the_first_commit() -> None:
    inner = MemoryStore()
    others = [make_stream(inner, SYSTEM, name=f"s/t{n}") for n in range(20)]
    streams = [reopen(other) for other in others]
    known = [(stream.tail, stream.view().version) for stream in streams]
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(wait_for_commits, SYSTEM, known, SYSTEM.monotonic() + 60)
        wait_until(lambda: all(waiting(stream) for stream in streams))
        put(others[13], 0, 1)
        assert ended.result(timeout=30)
    changed = [n for n, (tail, version) in enumerate(known) if tail.version != version]
    assert changed == [13]
    assert not any(waiting(stream) for stream in streams)


def test_wait_ends_early_if_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArrivalTimes, "pause", lambda self, now: 1_000.0)
    stream, _, _ = spied()
    known = [(stream.tail, stream.tail.version)]
    interrupt: Future[Any] = Future()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(wait_for_commits, SYSTEM, known, None, interrupt=interrupt)
        wait_until(lambda: waiting(stream) == 1 and stream.tail._looked.number > 0)
        assert not ended.done()
        interrupt.set_result(None)
        assert ended.result(timeout=60)
    at = SYSTEM.monotonic() + 0.05
    assert wait_for_commits(SYSTEM, known, None, interrupt_at=at)
    assert SYSTEM.monotonic() >= at
    assert not waiting(stream)


def test_interrupt_of_the_polling_thread_ends_its_wait_alone() -> None:
    stream, other, _ = spied()
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    with followers(stream, 2, 1) as found:
        wait_until(lambda: waiting(stream) == 2)
        main = threading.get_ident()

        def interrupt() -> None:
            wait_until(lambda: waiting(stream) == 3)
            time.sleep(0.05)
            signal.pthread_kill(main, signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            wait_for_commits(SYSTEM, [(stream.tail, stream.tail.version)], None)
        interrupting.join()
        signal.signal(signal.SIGINT, inherited)
        wait_until(lambda: waiting(stream) == 2)  # the interrupt may have come within a poll
        put(other, 0, 1)
    assert [future.result() for future in found] == [[b"0"]] * 2


def test_forked_child_is_refused_while_a_thread_of_its_parent_waits() -> None:
    stream, other, _ = spied()
    with followers(stream, 1, 1) as found:
        wait_until(lambda: waiting(stream) == 1)
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                wait_for_commits(SYSTEM, [(stream.tail, stream.tail.version)], None)
            except ForkedProcess:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        put(other, 0, 1)
    assert found[0].result() == [b"0"]


def test_tail_of_a_stream_that_nobody_uses_is_collected() -> None:
    stream, _, _ = spied()
    assert list(EventReader(stream).follow(timeout=0.01)) == []
    tail = weakref.ref(stream.tail)
    del stream
    gc.collect()
    assert tail() is None


def test_follower_that_stops_between_two_events_leaves_no_thread_waiting() -> None:
    stream, other, spy = spied()
    events: Iterator[Event] = EventReader(stream).follow(StreamCut.EARLIEST)
    put(other, 0, 2)
    assert next(events).data == b"0"
    assert not waiting(stream)
    spy.calls.clear()
    time.sleep(0.05)
    assert not spy.calls


def test_simulated_time_passes_while_a_thread_waits() -> None:
    runtime = FakeRuntime()
    stream = make_stream(runtime=runtime)
    began = runtime.monotonic()
    assert not wait_for_commits(runtime, [(stream.tail, stream.tail.version)], began + 100)
    assert runtime.monotonic() == pytest.approx(began + 100)


def test_log_reports_its_changes_to_its_tail_alone() -> None:
    stream, other, _ = spied()
    assert isinstance(stream.tail, LogTail)
    put(other, 0, 1)
    assert stream.tail.version < other.tail.version
    stream.view()
    assert stream.tail.version == other.tail.version


# ------------------------------------------------------------------------------- on a local disk


def is_reported(stream: StreamLog) -> bool:
    """Whether the last poll has ended, and a rare one follows."""
    tail = stream.tail
    with tail._lock:
        has_ended = tail._looked.number == tail._polls and not tail._is_reported
        return has_ended and tail._trusts_reports


def on_disk(path: Path) -> tuple[StreamLog, StreamLog, Spy]:
    manager = StreamManager(path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    other = StreamLog(root_of(manager).store, "s/t", SYSTEM)
    spy = Spy(root_of(manager).store)
    stream = reopen(other, spy)
    stream.view()
    return stream, other, spy


@pytest.mark.medium
def test_file_system_wakes_followers_so_that_polls_are_rare(tmp_path: Path) -> None:
    stream, other, spy = on_disk(tmp_path)
    with followers(stream, 1, 6) as found:
        for n in range(5):
            wait_until(lambda: waiting(stream) == 1)
            put(other, n, n + 1)
            wait_until(lambda: stream.tail.version == other.tail.version)
        wait_until(lambda: is_reported(stream))
        spy.calls.clear()
        began = time.monotonic()
        time.sleep(1.0)
        reads = commit_reads(spy)
        assert reads <= (time.monotonic() - began) / POLL_WATCHED_SECONDS[0] + 1
        put(other, 5, 6)
    assert found[0].result() == [b"%d" % n for n in range(6)]


def test_commits_are_found_by_polls_if_the_file_system_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, other, _ = on_disk(tmp_path)
    silent = FolderWatch(lambda: None, lambda: True)
    monkeypatch.setattr(type(SYSTEM), "watch_folder", lambda *_: silent)
    monkeypatch.setattr(log_tail, "_REPORTING", frozenset())  # as on a network file system
    monkeypatch.setattr(log_tail, "POLL_WATCHED_SECONDS", (1_000.0, 1_000.0))
    events = EventReader(stream).follow(StreamCut.EARLIEST, timeout=900)
    with ThreadPoolExecutor(1) as pool:
        for n in range(10):
            found = pool.submit(next, events)
            wait_until(lambda: waiting(stream) == 1)
            put(other, n, n + 1)
            assert found.result(timeout=60).data == b"%d" % n, "no commit waits for a rare poll"
    assert not stream.tail._trusts_reports


@pytest.mark.medium
def test_follower_of_a_disk_polls_rarely_from_the_start_and_ever_more_rarely(
    tmp_path: Path,
) -> None:
    stream, other, _ = on_disk(tmp_path)
    with followers(stream, 1, 1) as found:
        wait_until(lambda: waiting(stream) == 1 and stream.tail._watch is not None)
        wait_until(lambda: stream.tail._due > SYSTEM.monotonic() + 0.06)
        polls, began = stream.tail._polls, time.monotonic()
        time.sleep(0.6)
        made = stream.tail._polls - polls
        most = (time.monotonic() - began) / POLL_WATCHED_SECONDS[0] + 1
        assert made <= most, "although no commit was reported yet"
        put(other, 0, 1)
        assert found[0].result(timeout=30) == [b"0"]


def test_report_that_is_missed_once_delays_one_commit_by_one_pause(tmp_path: Path) -> None:
    stream, other, _ = on_disk(tmp_path)
    with followers(stream, 1, 2) as found:
        wait_until(lambda: waiting(stream) == 1 and stream.tail._watch is not None)
        put(other, 0, 1)
        wait_until(lambda: stream.tail.version == other.tail.version and is_reported(stream))
        watch, earlier = stream.tail._watch, threading.Event()
        assert watch is not None
        watch.changed = earlier.set
        (tmp_path / "s/t/events/_delta_log/last").touch()
        assert earlier.wait(60), "each report of the first commit has been handled before"
        wait_until(lambda: waiting(stream) == 1 and is_reported(stream))
        put(other, 1, 2)
        assert found[0].result(timeout=30) == [b"0", b"1"]
    assert not stream.tail._trusts_reports


def test_root_that_vanishes_ends_followers_with_an_error(tmp_path: Path) -> None:
    root = tmp_path / "root"
    stream, _, _ = on_disk(root)
    with followers(stream, 3, 1) as found:
        wait_until(lambda: waiting(stream) == 3)
        root.rename(tmp_path / "elsewhere")
        errors = [future.exception(timeout=30) for future in found]
    assert [type(error) for error in errors] == [RootChanged] * 3


def test_root_that_is_replaced_ends_followers_with_an_error(tmp_path: Path) -> None:
    root = tmp_path / "root"
    stream, _, _ = on_disk(root)
    with followers(stream, 1, 1) as found:
        wait_until(lambda: waiting(stream) == 1)
        root.rename(tmp_path / "elsewhere")
        assert isinstance(found[0].exception(timeout=30), RootChanged)
    on_disk(root)
    with pytest.raises(RootChanged):
        next(EventReader(stream).follow(timeout=5))


def test_log_that_is_removed_ends_followers_with_an_error(tmp_path: Path) -> None:
    stream, other, _ = on_disk(tmp_path)
    put(other, 0, 1)
    with followers(stream, 3, 2) as found:
        wait_until(lambda: waiting(stream) == 3)
        shutil.rmtree(tmp_path / "s/t/events/_delta_log")
        errors = [future.exception(timeout=30) for future in found]
    assert [type(error) for error in errors] == [CorruptLog] * 3
    assert stream.log.snapshot is None, "later calls do not read on as if nothing had happened"


def test_log_that_is_replaced_by_one_of_the_same_version_is_noticed(tmp_path: Path) -> None:
    stream, other, _ = on_disk(tmp_path / "one")
    _, another, _ = on_disk(tmp_path / "two")
    put(other, 0, 1)
    put(another, 7, 8)
    assert [e.data for e in EventReader(stream).follow(StreamCut.EARLIEST, timeout=0)] == [b"0"]
    known = [(stream.tail, stream.tail.version)]
    (tmp_path / "one/s/t").rename(tmp_path / "elsewhere")
    (tmp_path / "two/s/t").rename(tmp_path / "one/s/t")
    put(StreamLog(other.store, "s/t", SYSTEM), 8, 9)
    with pytest.raises(RootChanged, match="removed and created again"):
        wait_for_commits(SYSTEM, known, SYSTEM.monotonic())
    events = EventReader(stream).follow(StreamCut.EARLIEST, timeout=0)
    assert [e.data for e in events] == [b"7", b"8"]


def test_log_that_is_copied_back_is_the_same(tmp_path: Path) -> None:
    stream, other, _ = on_disk(tmp_path)
    put(other, 0, 1)
    events = EventReader(stream).follow(StreamCut.EARLIEST, timeout=30)
    assert next(events).data == b"0"
    (tmp_path / "s/t").rename(tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "s/t")
    put(other, 1, 2)
    assert next(events).data == b"1"


def test_look_for_a_lost_log_costs_a_waiting_follower_no_read(tmp_path: Path) -> None:
    stream, _, spy = on_disk(tmp_path)
    known = [(stream.tail, stream.tail.version)]
    wait_for_commits(SYSTEM, known, SYSTEM.monotonic())
    spy.calls.clear()
    wait_for_commits(SYSTEM, known, SYSTEM.monotonic())
    assert [operation for operation, _ in spy.calls] == ["get"], "of the next commit"


@pytest.mark.long
def test_many_followers_of_many_streams_share_one_thread_and_few_polls(tmp_path: Path) -> None:
    count, streams = sized(200, 1_000), sized(20, 100)
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    names = [f"s/t{n}" for n in range(streams)]
    for name in names:
        manager.create_stream(name)
    spies = [Spy(root_of(manager).store) for _ in names]
    opened = [StreamLog(spy, name, SYSTEM) for spy, name in zip(spies, names, strict=True)]
    before = threading.active_count()
    with ThreadPoolExecutor(count) as pool:
        found = [
            pool.submit(next, EventReader(opened[n % streams]).follow(timeout=120))
            for n in range(count)
        ]
        wait_until(lambda: sum(map(waiting, opened)) == count)
        assert threading.active_count() <= before + count + 1
        for name in names:
            with manager.create_writer(name) as writer:
                writer.write_event(b"event").result()
        assert {future.result(timeout=60).data for future in found} == {b"event"}
    polls = sum(stream.tail._polls for stream in opened)
    assert sum(map(commit_reads, spies)) <= 2 * polls + 8 * count
    assert polls <= 100 * streams
