"""The open streams of a process: as many stay open as fit into a number of bytes."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from pravega_spark import StreamManager
from pravega_spark.config.policies import ScalingPolicy, StreamConfiguration
from pravega_spark.engine.log.actions import Body
from pravega_spark.engine.store.memory import MemoryStore
from pravega_spark.engine.store.open_objects import OpenObjects
from pravega_spark.engine.stream import lifecycle, stream_log
from pravega_spark.engine.stream.stream_log import StreamLog, open_stream
from pravega_spark.values.limits import OPEN_STREAM_BYTES

MANY = 10_600
"""Streams of a process whose small ones all stay open."""


def opened_again(count: int, most_bytes: int, size: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the share of looks in five scans of so many streams that open a stream again."""
    opened = 0

    def open_one(store: Any, name: str) -> StreamLog:
        nonlocal opened
        opened += 1
        return StreamLog(store, name)

    monkeypatch.setattr(stream_log, "_open", OpenObjects(open_one, size, most_bytes))
    store, names = MemoryStore(), [f"s/{number}" for number in range(count)]
    for name in names:
        open_stream(store, name)
    opened = 0
    for _ in range(5):
        for name in names:
            assert open_stream(store, name).name == name
    assert len(stream_log._open.kept) <= most_bytes
    return opened / (5 * count)


@pytest.mark.medium
@pytest.mark.parametrize(("count", "most_share"), [(100, 0.0), (103, 0.3), (1_000, 1.0)])
def test_a_scan_of_somewhat_more_streams_than_are_kept_opens_few_again(
    count: int, most_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened_again(count, 100, lambda stream: 1, monkeypatch) <= most_share


def test_a_process_keeps_ten_thousand_small_streams_and_few_large_ones() -> None:
    small, large = StreamLog(MemoryStore(), "s/small"), StreamLog(MemoryStore(), "s/large")
    for stream in (small, large):
        stream.log.maintain = None
        lifecycle.create(stream, 1, StreamConfiguration(ScalingPolicy.fixed(1)))
    domains = {f"pravega.mark.{number}": '{"time":1}' for number in range(10_000)}
    large.commit(lambda view: (Body("TEST", domains=dict(domains)), None), life=1)
    assert MANY * small.log.held_bytes <= OPEN_STREAM_BYTES
    assert large.log.held_bytes >= 2 << 20


@pytest.mark.medium
def test_a_process_that_keeps_all_looks_with_one_call_each_and_a_dropped_one_is_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = OpenObjects(StreamLog, lambda stream: 1, 3)
    monkeypatch.setattr(stream_log, "_open", kept)
    store = MemoryStore()
    seen = [weakref.ref(open_stream(store, f"s/{number}")) for number in range(9)]
    gc.collect()
    assert sum(found() is not None for found in seen) == 3
    held = open_stream(store, "s/held")
    for number in range(20):
        open_stream(store, f"s/{number}")
    assert open_stream(store, "s/held") is held


@pytest.mark.medium
def test_a_dropped_stream_is_collected_whatever_was_done_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_log, "_open", OpenObjects(StreamLog, lambda stream: 1, 1))
    store = MemoryStore("dropped")
    manager = StreamManager(store.url)
    manager.create_scope("s")
    manager.create_stream("s/a", StreamConfiguration(ScalingPolicy.fixed(2)))
    stream = manager.stream("s/a")
    found = weakref.ref(open_stream(store, "s/a"))
    with stream.create_writer("writer") as writer:
        writer.write_event(b"event", "key").result()
    with stream.create_transactional_writer("producer") as producer:
        for _ in range(2):
            transaction = producer.begin_transaction()
            transaction.write_event(b"event", "key")
            transaction.commit()
        producer.begin_transaction().write_event(b"event")
    with manager.create_reader_group("s/g", ["s/a"]).create_reader("reader") as reader:
        assert reader.read_events(timeout=0).events.num_rows
    stream.subscribe("job")
    stream.publish("job", stream.tail())
    stream.scaling().run()
    stream.retention().run()
    stream.compact()
    stream.truncate(stream.tail())
    manager.maintain(parallelism=1)
    assert found() is not None
    del stream, writer, producer, transaction, reader
    open_stream(store, "s/other")
    gc.collect()
    assert found() is None
