"""Waiting for a later write in a callback of its own writer is refused, by every way to wait."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.engine.runtime.system import SYSTEM
from pravega_spark.errors import IllegalState
from pravega_spark.event_writer import EventStreamWriter
from tests.harness.small_streams import make_stream
from tests.harness.spy_store import Spy

WAITS: dict[str, Callable[[Any], object]] = {
    "result": lambda future: future.result(),
    "exception": lambda future: future.exception(),
    "wait": lambda future: concurrent.futures.wait([future]),
    "as_completed": lambda future: list(concurrent.futures.as_completed([future])),
}


def call_back(store: Spy, writer: EventStreamWriter, callback: Callable[[Any], object]) -> None:
    """Add a callback to a write that is not done yet: else the thread that adds it calls it."""
    is_added = threading.Event()

    def hold(operation: str, _: str) -> None:
        if operation == "put_if_absent":
            is_added.wait(30)

    store.hook = hold
    writer.write_event(b"first").add_done_callback(callback)
    is_added.set()


@pytest.mark.parametrize("name", WAITS)
def test_waiting_for_a_later_write_in_a_callback_raises(name: str) -> None:
    store = Spy()
    writer = EventStreamWriter(make_stream(store, SYSTEM))
    found: list[BaseException] = []
    called = threading.Event()

    def wait(_: object) -> None:
        try:
            WAITS[name](writer.write_event(b"later"))
        except BaseException as error:
            found.append(error)
        called.set()

    call_back(store, writer, wait)
    assert called.wait(30)
    assert [type(error) for error in found] == [IllegalState]
    writer.close()


@pytest.mark.parametrize("name", ["wait", "as_completed"])
def test_it_raises_also_if_another_thread_waits_for_that_write(name: str) -> None:
    store = Spy()
    writer = EventStreamWriter(make_stream(store, SYSTEM))
    found: list[BaseException] = []
    called, waits = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        later = writer.write_event(b"later")
        other = threading.Thread(target=concurrent.futures.wait, args=([later],))
        other.start()
        while not later._waiters:
            waits.wait(0.001)
        try:
            WAITS[name](later)
        except BaseException as error:
            found.append(error)
        called.set()

    call_back(store, writer, wait)
    assert called.wait(30)
    assert [type(error) for error in found] == [IllegalState]
    writer.close()


def test_the_other_writes_that_were_to_be_waited_for_go_on() -> None:
    store = Spy()
    stream = make_stream(store, SYSTEM)
    writer, other = EventStreamWriter(stream), EventStreamWriter(stream)
    others = [other.write_event(b"other") for _ in range(20)]
    for future in others:
        future.result()
    found: list[BaseException] = []
    called = threading.Event()

    def wait(_: object) -> None:
        later = max((writer.write_event(b"later") for _ in range(20)), key=id)
        try:
            concurrent.futures.wait([*others, later])  # which takes their locks by their ids
        except BaseException as error:
            found.append(error)
        called.set()

    call_back(store, writer, wait)
    assert called.wait(30)
    assert [type(error) for error in found] == [IllegalState]
    writer.close()
    for future in others:
        assert future._condition.acquire(timeout=30), "a lock of it stayed taken"
        future._condition.release()
    other.close()


def test_a_write_of_the_same_commit_is_waited_for_although_its_waiters_are_told_later() -> None:
    store = Spy()
    writer = EventStreamWriter(make_stream(store, SYSTEM))
    called, go = threading.Event(), threading.Event()
    found: list[object] = []

    def hold(operation: str, key: str) -> None:
        assert "_delta_log" not in key or go.wait(30)

    store.hook = hold
    writer.write_event(b"first")
    one, two = writer.write_event(b"one"), writer.write_event(b"two")

    def wait(_: object) -> None:
        found.append(concurrent.futures.wait([two], timeout=30).done)
        called.set()

    one.add_done_callback(wait)
    others = threading.Thread(target=concurrent.futures.wait, args=([two],))
    others.start()
    while not two._waiters:
        called.wait(0.001)
    go.set()
    assert called.wait(30)
    assert found == [{two}]
    others.join(30)
    writer.close()
