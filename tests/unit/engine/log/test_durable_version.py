"""No power cut takes back what a reader at the tail has handed out, and its wait overlaps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pravega_spark.engine.log.commit import DurableVersion
from pravega_spark.engine.log.tail import LogTail
from pravega_spark.engine.runtime.folder_watch import FolderWatch
from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.stream import lifecycle
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.errors import StoreError
from pravega_spark.event_reader import EventReader
from pravega_spark.manager import StreamManager, root_of
from pravega_spark.values.segments import StreamCut
from tests.harness.fault_plans import Rule
from tests.harness.small_streams import make_stream, reopen, scale, write
from tests.harness.spy_store import Spy

LOG = "_delta_log"


class _Disk(Spy):
    """A disk that makes the log durable only when the test lets it."""

    def __init__(self, inner: object = None) -> None:
        super().__init__(inner)  # type: ignore[arg-type]
        self.answers = threading.Semaphore(0)
        self.waits = False
        self.synced: list[int] = []
        """The number of calls that had been made before each wait for the disk."""

    def make_durable(self, prefix: str) -> None:
        self.synced.append(len(self.calls))
        if self.waits:
            assert self.answers.acquire(timeout=30)
        super().make_durable(prefix)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def followed() -> tuple[EventReader, StreamLog, _Disk]:
    """Return a reader that knows the newest commit durably, another process, and the disk."""
    other = make_stream(MemoryStore(), SYSTEM)
    disk = _Disk(other.store)
    stream = reopen(other, disk)
    stream.view()
    disk.waits = True
    disk.calls.clear()
    disk.synced.clear()
    return EventReader(stream), other, disk


def put(stream: StreamLog, number: int) -> None:
    write(stream, [("key", b"%d" % number)])


def test_event_is_read_during_the_wait_for_the_disk_and_handed_out_after_it() -> None:
    reader, other, disk = followed()
    events = reader.follow(StreamCut.EARLIEST, timeout=60)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(next, events)
        wait_until(lambda: reader.position is not None)
        put(other, 0)
        wait_until(lambda: disk.count("get_many", "/data/") > 0)
        wait_until(lambda: bool(disk.synced))  # a thread of its own waits for the disk
        time.sleep(0.05)
        assert not found.done()
        assert reader.position is not None
        assert dict(reader.position.positions) == {0: 0}
        disk.answers.release()
        assert found.result(timeout=30).data == b"0"
    assert len(disk.synced) == 1


def test_event_that_the_disk_fails_is_not_handed_out() -> None:
    reader, other, disk = followed()
    disk.waits = False
    disk.rules.add(Rule(StoreError("fsync failed"), "make_durable", nth=1))
    put(other, 0)
    with pytest.raises(StoreError, match="fsync failed"):
        next(reader.follow(StreamCut.EARLIEST, timeout=60))
    disk.rules.add(Rule(StoreError("failed again"), "make_durable", nth=1))
    with pytest.raises(StoreError, match="failed again"):
        next(reader.follow(StreamCut.EARLIEST, timeout=60))
    assert next(reader.follow(StreamCut.EARLIEST, timeout=60)).data == b"0"


def test_scale_moves_the_position_only_when_it_is_durable() -> None:
    reader, other, disk = followed()
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(list, reader.follow(StreamCut.EARLIEST, timeout=60))
        wait_until(lambda: reader.position is not None)
        before = reader.position
        scale(other, [0], [(0, 0.5), (0.5, 1)])
        wait_until(lambda: bool(disk.synced))
        time.sleep(0.05)
        assert reader.position == before
        disk.answers.release(99)
        wait_until(lambda: reader.position != before)
        lifecycle.seal(other)
        assert ended.result(timeout=30) == []


def test_followers_of_one_process_wait_for_the_disk_once() -> None:
    reader, other, disk = followed()
    readers = [EventReader(reader._stream) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = [pool.submit(next, one.follow(StreamCut.EARLIEST, timeout=60)) for one in readers]
        put(other, 0)
        wait_until(lambda: bool(disk.synced))
        disk.answers.release(9)
        assert {future.result(timeout=30).data for future in found} == {b"0"}
    assert len(disk.synced) == 1


def test_wait_covers_the_versions_that_were_visible_when_it_began() -> None:
    disk = _Disk()
    disk.waits = True
    durable = DurableVersion(disk, LOG, SYSTEM)
    durable.begin(5)
    wait_until(lambda: len(disk.synced) == 1)
    durable.begin(6)  # one is under way
    assert len(disk.synced) == 1
    with ThreadPoolExecutor(2) as pool:
        older, newer = pool.submit(durable.ensure, 4), pool.submit(durable.ensure, 6)
        wait_until(lambda: len(disk.synced) == 2)
        time.sleep(0.02)
        assert not older.done()
        assert not durable.covers(4)
        disk.answers.release(2)
        older.result(timeout=30)
        newer.result(timeout=30)
    assert durable.covers(6)
    assert not durable.covers(7)
    durable.begin(6)
    durable.ensure(5)
    assert len(disk.synced) == 2
    durable.forget()
    assert not durable.covers(0)


def test_own_commit_needs_no_wait_beside_its_own() -> None:
    stream, disk = make_stream(MemoryStore(), SYSTEM), _Disk()
    durable = DurableVersion(disk, LOG, SYSTEM)
    durable.sent(5)
    durable.begin(5)
    time.sleep(0.02)
    assert not disk.synced
    durable.ensure(5)
    assert len(disk.synced) == 1, "a race for it may have been lost"
    put(stream, 0)
    assert stream.log.durable.covers(stream.log.snapshot.version if stream.log.snapshot else 99)


def test_error_of_a_wait_counts_once() -> None:
    disk = _Disk()
    disk.rules.add(Rule(StoreError("fsync failed"), "make_durable", nth=1))
    durable = DurableVersion(disk, LOG, SYSTEM)
    durable.begin(5)
    with pytest.raises(StoreError, match="fsync failed"):
        durable.ensure(5)
    assert not durable.covers(5)
    durable.ensure(5)
    assert durable.covers(5)


def test_reported_commit_is_on_its_way_to_the_disk_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    other, disk = StreamLog(root_of(manager).store, "s/t", SYSTEM), _Disk(root_of(manager).store)
    stream = reopen(other, disk)
    tail: LogTail = stream.tail
    may_read = threading.Event()

    with ThreadPoolExecutor(1) as pool:
        events = EventReader(stream).follow(StreamCut.EARLIEST, timeout=60)
        found = pool.submit(next, events)
        wait_until(lambda: isinstance(tail._watch, FolderWatch) and bool(tail._waiters))
        put(other, 0)
        found.result(timeout=30)
        found = pool.submit(next, events)
        wait_until(lambda: bool(tail._waiters))
        original = LogTail.poll

        def poll(self: LogTail) -> None:
            assert may_read.wait(30)
            original(self)

        monkeypatch.setattr(LogTail, "poll", poll)
        disk.synced.clear()
        put(other, 1)
        wait_until(lambda: len(disk.synced) == 1)
        may_read.set()
        found.result(timeout=30)
    assert len(disk.synced) == 1
