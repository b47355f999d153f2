"""Maintenance of a root on a real S3 server: by an open process, by a call, and by a sweep."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from pravega_spark import MaintenanceKind, RetentionPolicy, StreamConfiguration, StreamManager
from pravega_spark.compaction import plan
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.state.due_hints import DUE_FOLDER
from pravega_spark.maintenance.shares import MaintenanceShares, SharePace
from pravega_spark.manager import root_of
from tests.harness.s3_server import S3Server

pytestmark = pytest.mark.s3

STREAM, KEPT = "town/clicks", "town/kept"
KINDS = tuple(MaintenanceKind)


def chunks(manager: StreamManager) -> set[str]:
    return {entry.key for entry in root_of(manager).store.list(f"{STREAM}/events/data")}


@pytest.fixture
def manager(s3: S3Server) -> StreamManager:
    """A root with a stream of many chunks, and one whose first event may be truncated."""
    root = f"s3://{s3.bucket}/maintained"
    made = StreamManager(root, storage_options=s3.options)
    made.create_scope("town")
    made.create_stream(STREAM)
    made.create_stream(KEPT, StreamConfiguration(retention=RetentionPolicy.by_size(1)))
    for name, count in ((STREAM, 30), (KEPT, 2)):
        with made.create_writer(name) as writer:
            for number in range(count):
                writer.write_event(b"%02d" % number, routing_key="k").result()
    return made


def test_open_process_truncates_compacts_and_sweeps_on_an_object_store(
    s3: S3Server, manager: StreamManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No chunk is of the last minute, which is left to the readers at the tail.
    monkeypatch.setattr(plan, "COMPACT_SETTLE_MS", 0)
    store = root_of(manager).store
    before, events = chunks(manager), [event.data for event in manager.read(STREAM)]
    cut = manager.head(STREAM)
    shares = MaintenanceShares(store, Runtime(), SharePace())
    for _ in range(4 * len(KINDS)):
        shares.wake_up()
        infos = manager.maintenance()
        if {info.kind for info in infos if info.finished_ms is not None} == set(KINDS):
            break
    assert all(info.failed == 0 for info in infos), infos
    assert {info.kind: info.streams for info in infos} == dict.fromkeys(KINDS, 2)
    assert [event.data for event in manager.read(KEPT)] == [b"01"], "truncated"
    assert manager.stream_info(STREAM).files.files < 10, "compacted"
    assert before < chunks(manager), "younger than retain: swept later"
    assert [event.data for event in manager.read(STREAM, cut)] == events

    waiting = manager.sweep_stream(STREAM, grace=0, retain=0, dry_run=True)
    assert waiting.files > 20
    swept = manager.sweep_stream(STREAM, grace=0, retain=0)
    assert (swept.files, swept.size_bytes) == (waiting.files, waiting.size_bytes)
    assert len(before - chunks(manager)) == swept.files
    assert [event.data for event in manager.read(STREAM, cut)] == events
    url = f"{manager.root}/{STREAM}/events"
    table = DeltaTable(url, storage_options=s3.delta_rs_options).to_pyarrow_table(columns=["event"])
    assert sorted(table.column("event").to_pylist()) == sorted(events)

    assert store.list(DUE_FOLDER), "due hints are kept on the object store"
    manager.maintain()
    again = manager.maintain(kinds=["retention", "scaling"])
    assert (again.failures, again.idle) == ({}, 2)
