"""What the listener does with the events of queries in groups, in Spark's form."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from pravega_spark.errors import StoreUnavailable
from pravega_spark.manager import StreamManager
from pravega_spark.reader_groups.lifecycle import open_group
from pravega_spark.reader_groups.query_member import QueryMember
from pravega_spark.spark.groups import group_listener
from pravega_spark.spark.groups.group_listener import GroupListener
from pravega_spark.spark.jvm import run_listener
from pravega_spark.spark.source_offsets import OffsetOwner, StreamOffset, encode
from pravega_spark.values.segments import StreamCut
from tests.harness.small_streams import created, write

LAST = "reader-group sync --checkpoint FOLDER"


class Query:
    """A query that reads s/a in a group of its own, and the events that Spark sends of it."""

    def __init__(self, root: str, number: int) -> None:
        self.root, self.name = root, f"s/g{number}"
        self.run = f"00000000-0000-0000-0000-00000000000{number}"
        StreamManager(root).create_reader_group(self.name, ["s/a"])
        member = QueryMember(open_group(root, self.name))
        self.owner = OffsetOwner(root, self.name, member.generation, member.number)
        member.leave()

    def progress(self, offset: int, *, grouped: bool = True) -> QueryProgressEvent:
        """Return the report of a batch that ends at an offset."""
        cut = StreamCut("s/a", 1, {0: offset})
        owner = self.owner if grouped else OffsetOwner(self.root)
        source: dict[str, Any] = dict.fromkeys(("startOffset", "latestOffset"))
        source |= {"description": "", "numInputRows": 0, "inputRowsPerSecond": 0.0}
        source |= {"processedRowsPerSecond": 0.0}
        source["endOffset"] = encode({"s/a": StreamOffset("id", cut, cut)}, owner)
        record: dict[str, Any] = {
            "id": self.run,
            "runId": self.run,
            "name": None,
            "timestamp": "",
            "batchId": 0,
        }
        record |= {"batchDuration": 5, "durationMs": {}, "eventTime": {}, "stateOperators": []}
        record |= {"sources": [source], "sink": {"description": "", "numOutputRows": 0}}
        record |= {"numInputRows": 0, "inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
        return QueryProgressEvent(
            StreamingQueryProgress.fromJson({**record, "observedMetrics": {}})
        )

    @property
    def of_run(self) -> Any:
        """An event that names the run alone, as those of idle and ended queries do."""
        return SimpleNamespace(runId=self.run)

    @property
    def left(self) -> int:
        """The events that the group has still to read."""
        return StreamManager(self.root).reader_group(self.name).lag().events


@pytest.fixture
def query(root: str) -> Callable[[int], Query]:
    write(created(root), [("k", b"%d" % n) for n in range(10)])
    return lambda number: Query(root, number)


class Storage:
    """Stands before the groups: calls for some of them fail, or hang until the test ends."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.hung: set[str] = set()
        self.calls: list[str] = []
        self.released = threading.Event()

    def open(self, root: str, name: str) -> Any:
        self.calls.append(name)
        if name in self.hung:
            assert self.released.wait(60)
        if name in self.down:
            raise StoreUnavailable("no answer.", url=root)
        return open_group(root, name)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    found = Storage()
    monkeypatch.setattr(group_listener, "open_group", found.open)
    yield found
    found.released.set()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.005)


def threads() -> list[threading.Thread]:
    return [found for found in threading.enumerate() if found.name == "pravega-query-run"]


def test_each_run_has_a_thread_that_ends_with_it(query: Callable[[int], Query]) -> None:
    listener, one = GroupListener(), query(1)
    before = len(threads())
    listener.onQueryProgress(one.progress(3, grouped=False))
    assert len(threads()) == before, "a query without a group has none"
    listener.onQueryProgress(one.progress(3))
    assert len(threads()) == before + 1
    until(lambda: one.left == 7)
    listener.onQueryProgress(one.progress(5))
    listener.onQueryProgress(one.progress(8))
    listener.onQueryTerminated(one.of_run)
    until(lambda: one.left == 2)
    until(lambda: len(threads()) == before)
    listener.onQueryIdle(one.of_run)
    assert len(threads()) == before, "an event after the end starts none"


def test_thread_without_events_ends_and_the_next_event_starts_one(
    query: Callable[[int], Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_listener, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(group_listener, "GROUP_INTERVAL_MS", 0)
    listener, one, before = GroupListener(), query(1), len(threads())
    for offset in (3, 7):
        listener.onQueryProgress(one.progress(offset))
        left = 10 - offset
        until(partial(lambda left: one.left == left, left))
        until(lambda: len(threads()) == before)


def test_group_whose_store_hangs_holds_neither_spark_nor_other_groups(
    query: Callable[[int], Query], storage: Storage
) -> None:
    listener, one, other = GroupListener(), query(1), query(2)
    storage.hung = {"s/g1"}
    for offset in range(1, 9):
        listener.onQueryProgress(one.progress(offset))
    listener.onQueryIdle(one.of_run)
    listener.onQueryProgress(other.progress(4))
    listener.onQueryTerminated(other.of_run)
    until(lambda: other.left == 6)
    assert one.left == 10
    listener.onQueryTerminated(one.of_run)
    storage.released.set()
    until(lambda: one.left == 2)
    assert storage.calls.count("s/g1") <= 3, "batches that came meanwhile are one"


def test_batch_waits_for_the_interval_and_needs_no_further_event(
    query: Callable[[int], Query], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_listener, "GROUP_INTERVAL_MS", 300)
    listener, one = GroupListener(), query(1)
    listener.onQueryProgress(one.progress(2))
    until(lambda: one.left == 8)
    for offset in range(3, 8):
        listener.onQueryProgress(one.progress(offset))
    until(lambda: one.left == 3)
    assert len(storage.calls) == 2, "the batches between are in the last one"


def test_batch_that_the_store_did_not_take_is_tried_again(
    query: Callable[[int], Query],
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(group_listener, "GROUP_INTERVAL_MS", 50)
    listener, one = GroupListener(), query(1)
    storage.down = {"s/g1"}
    listener.onQueryProgress(one.progress(6))
    until(lambda: len(storage.calls) >= 3)
    said = "no answer. It is tried again as long as this process runs. A query that runs"
    assert f"run {one.run} to reader group s/g1: {said}" in caplog.text
    assert LAST in caplog.text
    storage.down = set()
    until(lambda: one.left == 4)
    listener.onQueryTerminated(one.of_run)


def test_run_that_ends_in_an_outage_is_acknowledged_after_it(
    query: Callable[[int], Query], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_listener, "GROUP_INTERVAL_MS", 50)
    listener, one, before = GroupListener(), query(1), len(threads())
    storage.down = {"s/g1"}
    listener.onQueryProgress(one.progress(6))
    listener.onQueryTerminated(one.of_run)
    until(lambda: len(storage.calls) >= 4)
    storage.down = set()
    until(lambda: one.left == 4)
    until(lambda: len(threads()) == before)


@pytest.mark.parametrize("is_back", [True, False])
def test_process_that_ends_after_such_a_run_tries_once_more(
    query: Callable[[int], Query],
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_back: bool,
) -> None:
    monkeypatch.setattr(GroupListener, "_exit_seconds", 60 if is_back else 0.2)
    listener, one = GroupListener(), query(1)
    storage.down = {"s/g1"}
    listener.onQueryProgress(one.progress(6))
    listener.onQueryTerminated(one.of_run)
    until(lambda: len(storage.calls) == 2)
    until(lambda: len(caplog.messages) == 2)
    if is_back:
        storage.down = set()
    listener._finish()
    until(lambda: len(storage.calls) == 3)
    assert one.left == (4 if is_back else 10)
    storage.down = set()
    assert ("the process ends, and has waited" in caplog.text) is not is_back


@pytest.mark.medium
def test_process_that_ends_acknowledges_what_is_pending_and_names_what_it_left(
    query: Callable[[int], Query],
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(GroupListener, "_exit_seconds", 0.5)
    listener, one, other = GroupListener(), query(1), query(2)
    for offset in (3, 7):
        listener.onQueryProgress(other.progress(offset))
    storage.hung = {"s/g1"}
    listener.onQueryProgress(one.progress(5))
    listener._finish()
    assert other.left == 3, "its interval is not over, but the process ends"
    (said,) = [message for message in caplog.messages if "s/g1" in message]
    assert "the process ends, and has waited" in said
    assert LAST in said


def test_process_that_ends_and_starts_no_more_threads_acknowledges_all_the_same(
    query: Callable[[int], Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    listener, one = GroupListener(), query(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        listener.onQueryProgress(one.progress(3))
        listener.onQueryProgress(one.progress(7))
        listener._finish()
    assert one.left == 3
