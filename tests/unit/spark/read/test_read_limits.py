"""The limits of a micro-batch: the wait for a minimum, and the shares of a maximum."""

from __future__ import annotations

from typing import Any

from pravega_spark.spark.read.offsets import ReadLimits, StreamLimit, events_within
from pravega_spark.spark.settings import ReadSettings
from tests.harness.small_streams import created, write


def limits(now: list[float] | None = None, **settings: Any) -> ReadLimits:
    times = now or [0.0]
    return ReadLimits(ReadSettings("/r", streams=("s/a",), **settings), lambda: times[0])


def test_without_a_minimum_no_batch_waits() -> None:
    assert not limits().must_wait({"s/a": 0})


def test_batch_waits_for_the_minimum_over_all_streams_until_the_delay_is_over() -> None:
    now = [0.0]
    waiting = limits(now, min_events=10, max_trigger_delay_ms=5_000)
    assert not waiting.must_wait({"s/a": 1}), "the first batch does not wait"
    assert waiting.must_wait({"s/a": 5, "s/b": 4})
    assert not waiting.must_wait({"s/a": 5, "s/b": 5})
    now[0] = 4.9
    assert waiting.must_wait({"s/a": 1})
    now[0] = 5.0
    assert not waiting.must_wait({"s/a": 1})


def test_maximum_is_shared_by_backlog_and_every_stream_with_events_has_a_share() -> None:
    assert limits().shares({"s/a": 10}) == {}
    backlog = {"s/a": 300, "s/b": 100, "s/c": 0}
    assert limits(max_events=40, max_bytes=1_000).shares(backlog) == {
        "s/a": StreamLimit(30, 750),
        "s/b": StreamLimit(10, 250),
    }
    assert limits(max_bytes=1).shares({"s/a": 9, "s/b": 1}) == {
        "s/a": StreamLimit(None, 1),
        "s/b": StreamLimit(None, 1),
    }


def test_bytes_become_offsets_over_many_chunks(root: str) -> None:
    stream = created(root)
    for size in (10, 20, 30):
        write(stream, [(f"k{i}", b"x" * size) for i in range(10)])
    view = stream.view()
    found = [events_within(stream, view, 0, start, 250) for start in (0, 5, 12, 25)]
    assert found == [17, 20, 23, 30]
