"""A stream's life on every kind of storage, through the public API alone."""

from __future__ import annotations

import pytest

from pravega_spark import StreamConfiguration, StreamCut, StreamManager
from pravega_spark.config.policies import ScalingPolicy
from tests.harness.store_backends import BackEnd


@pytest.mark.medium
def test_stream_lives_on_every_store(backend: BackEnd) -> None:
    manager = StreamManager(backend.url, storage_options=backend.options)
    assert manager.create_scope("nyc")
    assert manager.create_stream("nyc/flights", StreamConfiguration(ScalingPolicy.fixed(2)))
    with manager.create_writer("nyc/flights", writer_id="ingest") as writer:
        followed = manager.follow("nyc/flights", StreamCut.EARLIEST, timeout=60.0)
        for number in range(3):
            writer.write_event(b"%d" % number, "UA").result()
            assert next(followed).data == b"%d" % number
        writer.flush(note="row 3")
    with manager.create_writer("nyc/flights", writer_id="ingest") as writer:
        assert (writer.last_event_number, writer.last_note) == (3, "row 3")
    with (
        manager.create_transactional_writer("nyc/flights", writer_id="rebooking") as rebooking,
        rebooking.begin_transaction() as txn,
    ):
        txn.write_event(b"3", "UA")
        txn.write_event(bytes(3 << 20), "DL")
    cut = manager.tail("nyc/flights")
    manager.scale_stream("nyc/flights", seal=[0], key_ranges=[(0.0, 0.25), (0.25, 0.5)])
    with manager.create_writer("nyc/flights") as writer:
        writer.write_event(b"4", "UA").result()
    events = list(manager.read("nyc/flights"))
    assert [e.data for e in events if e.routing_key == "UA"] == [b"0", b"1", b"2", b"3", b"4"]
    manager.truncate_stream("nyc/flights", cut)
    assert [event.data for event in manager.read("nyc/flights")] == [b"4"]
    group = manager.create_reader_group("nyc/group", ["nyc/flights"])
    with group.create_reader("reader-1") as reader:
        read = reader.read_next_event(timeout=60.0)
        assert read.event is not None
        assert read.event.data == b"4"
    manager.sweep_stream("nyc/flights")
    assert manager.seal_stream("nyc/flights")
    assert manager.delete_stream("nyc/flights")
    assert manager.list_streams("nyc") == []
