"""Retention by consumption on a real S3 server deletes consumed events and their files."""

from __future__ import annotations

import pickle

import pytest
from deltalake import DeltaTable

from pravega_spark import RetentionPolicy, ScalingPolicy, StreamConfiguration, StreamManager
from pravega_spark.errors import HeldBySubscriber
from pravega_spark.manager import root_of
from tests.harness.s3_server import S3Server

pytestmark = pytest.mark.s3

STREAM = "shop/orders"


def files(manager: StreamManager) -> set[str]:
    return {entry.key for entry in root_of(manager).store.list(f"{STREAM}/events/data")}


def test_consumed_events_and_their_files_are_deleted_and_the_rest_is_kept(s3: S3Server) -> None:
    manager = StreamManager(f"s3://{s3.bucket}/retained", storage_options=s3.options)
    manager.create_scope("shop")
    policy = RetentionPolicy.by_consumption()
    manager.create_stream(STREAM, StreamConfiguration(ScalingPolicy.fixed(2), policy))
    group = manager.create_reader_group("shop/billing", [STREAM], retention="manual")
    with manager.create_writer(STREAM) as writer:
        for batch in range(4):
            for number in range(10):
                writer.write_event(b"%03d" % (10 * batch + number), f"key {number}")
            writer.flush()

    other: StreamManager = pickle.loads(pickle.dumps(manager))  # as another process would open it
    assert other.retention(STREAM).run().explanation.held_by == "subscriber shop/billing"
    with group.create_reader("one") as reader:
        read = [reader.read_next_event(timeout=60).event for _ in range(25)]
    assert all(read)
    cut = group.stream_cuts()[STREAM]
    with pytest.raises(HeldBySubscriber, match="shop/billing is protected from"):
        other.truncate_stream(STREAM, cut)
    group.publish({STREAM: cut})

    before = files(manager)
    done = other.retention(STREAM).run(grace=0, retain=0)
    assert done.truncated is not None
    assert (done.truncated.head, done.truncated.events) == (cut, 25)
    assert done.truncated.chunks > 0
    assert done.swept is not None
    assert len(before - files(manager)) == done.truncated.chunks == done.swept.files
    again = other.retention(STREAM).run(grace=0, retain=0)
    assert (again.truncated, again.explanation.cut) == (None, None)

    left = [event.data for event in manager.read(STREAM)]
    assert len(left) == 15
    assert not {event.data for event in read if event} & set(left)
    assert [info.cut for info in manager.list_subscribers(STREAM)] == [cut]
    with group.create_reader("two") as reader:
        rest = [reader.read_next_event(timeout=60).event for _ in range(15)]
    assert sorted(event.data for event in rest if event) == sorted(left)
    url = f"{manager.root}/{STREAM}/events"
    table = DeltaTable(url, storage_options=s3.delta_rs_options)
    stored = table.to_pyarrow_table(columns=["event"]).column("event").to_pylist()
    assert set(left) <= set(stored)
    assert len(stored) < 40  # a chunk at the head may also hold truncated events
