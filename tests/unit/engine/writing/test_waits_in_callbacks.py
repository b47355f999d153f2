"""Waiting for a later write in a callback of its own writer is refused, by every way to wait."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.errors import IllegalState
from pravega_spark.event_writer import EventStreamWriter
from tests.harness.small_streams import make_stream

WAITS: dict[str, Callable[[Any], object]] = {
    "result": lambda future: future.result(),
    "exception": lambda future: future.exception(),
    "wait": lambda future: concurrent.futures.wait([future]),
    "as_completed": lambda future: list(concurrent.futures.as_completed([future])),
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_for_a_later_write_in_a_callback_raises(name: str) -> None:
    writer = EventStreamWriter(make_stream(runtime=SYSTEM))
    found: list[BaseException] = []
    called = threading.Event()

    def wait(_: object) -> None:
        try:
            WAITS[name](writer.write_event(b"later"))
        except BaseException as error:
            found.append(error)
        called.set()

    writer.write_event(b"first").add_done_callback(wait)
    assert called.wait(30)
    assert [type(error) for error in found] == [IllegalState]
    writer.close()
