"""A meter counts every call of its stores, and refuses the one that would pass a bound."""

from __future__ import annotations

import contextlib
import threading

import pytest

from pravega_spark.benchmark.meter import BoundReached, Bounds, Meter, MeteredStore
from pravega_spark.engine.log.checkpoint import maintain_in_background
from pravega_spark.engine.store.memory import MemoryStore
from tests.harness.fake_runtime import FakeRuntime
from tests.harness.small_tables import put, table_log

BOUNDS = Bounds(seconds=60.0, calls=200, size_bytes=10_000)


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def meter(runtime: FakeRuntime) -> Meter:
    return Meter(BOUNDS, runtime)


@pytest.fixture
def store(meter: Meter) -> MeteredStore:
    return MeteredStore(MemoryStore(), meter)


def test_each_request_counts_by_its_kind(meter: Meter, store: MeteredStore) -> None:
    store.put("a/1", b"12")
    store.put_if_absent("a/2", b"345")
    store.put_if_absent("a/2", b"lost")
    store.put_many([("a/3", b"6"), ("a/4", b"7")])
    store.stage([("a/5", b"8")])
    with store.writer("a/6") as file:
        file.write(b"9" * 100)
    assert store.get("a/1") + store.get_range("a/2", 1, 2) == b"124"
    assert store.get_many(["a/1", "none"]) == [b"12", None]
    assert store.exists("a/1")
    assert store.open("a/6").read() == b"9" * 100
    assert (len(store.list("a")), store.folders("")) == (6, ["a"])
    store.delete(["a/1", "a/2"])
    use = meter.use()
    assert dict(use.calls) == {"PUT": 7, "GET": 6, "LIST": 2, "DELETE": 2}
    assert (use.written_bytes, use.read_bytes) == (112, 105)


def test_a_list_of_many_objects_is_as_many_requests_as_s3_needs(store: MeteredStore) -> None:
    for number in range(2_001):
        store.inner.put(f"a/{number}", b"")
    store.list("a")
    assert store._meter.use().calls["LIST"] == 3


def test_calls_stop_where_what_was_put_can_still_be_deleted(
    meter: Meter, store: MeteredStore
) -> None:
    share, written = meter.share(1, 60.0), 0
    while share.is_left():
        store.put(f"a/{written}", b"")
        written += 1
    assert meter.stopped_by is None  # what is kept back for the proof may still be used
    while meter.stopped_by is None:
        with contextlib.suppress(BoundReached):
            store.put(f"a/{written}", b"")
            written += 1
    assert meter.stopped_by == "calls"
    assert meter.use().calls.total() == written
    store.inner.delete(f"a/{number}" for number in range(written))
    cleaning = MeteredStore(store.inner, meter, is_free=True)
    cleaning.delete(f"a/{number}" for number in range(written))
    cleaning.list("")
    assert written < meter.use().calls.total() <= BOUNDS.calls


def test_bytes_that_would_pass_their_bound_are_not_written(
    meter: Meter, store: MeteredStore
) -> None:
    store.put("a", b"x" * 6_000)
    with pytest.raises(BoundReached, match="the bound of bytes"):
        store.put("b", b"x" * 4_001)
    assert not store.inner.exists("b")
    assert meter.use().written_bytes == 6_000
    assert meter.stopped_by == "bytes"


def test_no_call_begins_after_the_time(runtime: FakeRuntime, store: MeteredStore) -> None:
    store.put("a", b"")
    runtime.sleep(60.0)
    with pytest.raises(BoundReached, match="the bound of seconds"):
        store.get("a")


def test_a_share_ends_by_what_is_used_up_first(runtime: FakeRuntime, meter: Meter) -> None:
    store = MeteredStore(MemoryStore(), meter)
    calls = meter.share(5, 50.0)
    while calls.is_left():
        store.get_many(["none"])
    assert (calls.ended_by, meter.use().calls["GET"]) == ("calls", 13)  # an append takes eight
    size = meter.share(4, 50.0)
    assert size.is_left(800)
    assert not size.is_left(900)
    assert size.ended_by == "bytes"
    time = meter.share(4, 50.0)
    runtime.sleep(12.4)
    assert time.is_left()
    runtime.sleep(0.2)
    assert not time.is_left()
    assert time.ended_by == "seconds"


def test_the_end_waits_for_calls_under_way_and_refuses_others(meter: Meter) -> None:
    is_under_way, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    class Slow(MemoryStore):
        def put(self, *arguments: object, **more: object) -> None:
            is_under_way.set()
            assert may_end.wait(60)
            super().put(*arguments, **more)  # type: ignore[arg-type]
            order.append("put")

    def end() -> None:
        meter.end()
        order.append("end")

    store = MeteredStore(Slow(), meter)
    writing, ending = (
        threading.Thread(target=store.put, args=("a", b"")),
        threading.Thread(target=end),
    )
    writing.start()
    assert is_under_way.wait(60)
    ending.start()
    may_end.set()
    writing.join()
    ending.join()
    assert order == ["put", "end"]
    with pytest.raises(BoundReached, match="no call any more"):
        store.get("a")
    assert MeteredStore(store.inner, meter, is_free=True).get("a") == b""


def test_maintenance_in_the_background_that_comes_too_late_is_no_news(
    meter: Meter, store: MeteredStore, caplog: pytest.LogCaptureFixture
) -> None:
    log = table_log(store)
    put(log, "a")
    meter.end()
    late = maintain_in_background(log, 1)
    assert late is not None
    late.result(60)
    assert caplog.records == []
