"""A backup from a disk to a real S3 server, and a restore on that server."""

from __future__ import annotations

from pathlib import Path

import pytest

from pravega_spark import StreamManager
from pravega_spark.errors import StaleIdentity
from pravega_spark.manager import root_of
from tests.harness.s3_server import S3Server

pytestmark = pytest.mark.s3


def test_backup_to_s3_is_a_readable_root_and_can_be_restored(s3: S3Server, tmp_path: Path) -> None:
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_stream("s/t")
    for n in range(6):
        with manager.create_writer("s/t") as writer:
            writer.write_event(b"%d" % n)
    target = f"s3://{s3.bucket}/backup"
    done = manager.backup(target, storage_options=s3.options)
    assert done.versions == {"s/t": 6}

    copy = StreamManager(target, storage_options=s3.options)
    pointer = next(iter(copy.read("s/t"))).pointer
    assert [event.data for event in copy.read("s/t")] == [b"%d" % n for n in range(6)]
    newest = max(root_of(copy).store.list("s/t/events/data"), key=lambda entry: entry.key)
    root_of(copy).store.delete([newest.key])
    restored = copy.restore().streams["s/t"]
    assert restored.dropped_events == 1
    assert [event.data for event in copy.read("s/t")] == [b"%d" % n for n in range(5)]
    with pytest.raises(StaleIdentity, match="restored from a copy"):
        copy.fetch_event(pointer)
