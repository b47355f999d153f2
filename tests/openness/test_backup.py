"""Every reader reads the same events of a backup and of a restored copy."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pravega_spark import StreamManager
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import root_of
from tests.harness import delta_engines
from tests.harness.story import Row

pytestmark = pytest.mark.spark


def grown(root: Path, commits: int) -> StreamManager:
    manager = StreamManager(root)
    manager.create_scope("s")
    manager.create_stream("s/t")
    for n in range(commits):
        with manager.create_writer("s/t") as writer:
            writer.write_events([b"%d" % n, b"%d!" % n], routing_key=f"k{n % 5}")
        if n == commits // 2:
            manager.scale_stream("s/t", ["0#0"], [(0, 0.5), (0.5, 1)])
    return manager


def package_rows(manager: StreamManager) -> Counter[Row]:
    return Counter(
        (e.segment_id, e.offset, e.routing_key, e.timestamp_us, e.data) for e in manager.read("s/t")
    )


def assert_all_agree(manager: StreamManager, root: Path, spark: SparkSession) -> Counter[Row]:
    table, version = f"{root}/s/t/events", manager.stream_info("s/t").version
    rows = package_rows(manager)
    assert delta_engines.deltalake_rows(table, version) == rows
    assert delta_engines.duckdb_rows(table, version) == rows
    assert delta_engines.spark_rows(spark, table, version) == rows
    return rows


def test_backup_and_a_restored_copy_read_the_same_for_every_reader(
    spark: SparkSession, tmp_path: Path
) -> None:
    manager = grown(tmp_path / "root", 30)
    reader = StreamLog(root_of(manager).store, "s/t").log.reader
    for version in (10, 20):
        maintain(reader, version, checkpoint=True)
    manager.backup(tmp_path / "copy")
    copy = StreamManager(tmp_path / "copy")
    assert len(assert_all_agree(copy, tmp_path / "copy", spark)) == 60

    with manager.create_writer("s/t") as writer:
        writer.write_events([b"dropped", b"lost"])
    log = tmp_path / "root" / "s" / "t" / "events"
    newest = max((log / "data").rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    manager.backup(tmp_path / "broken")
    (tmp_path / "broken" / newest.relative_to(tmp_path / "root")).unlink()
    broken = StreamManager(tmp_path / "broken")
    done = broken.restore().streams["s/t"]
    assert 1 <= done.dropped_events <= 2
    with broken.create_writer("s/t") as writer:
        writer.write_event(b"new")
    rows = assert_all_agree(broken, tmp_path / "broken", spark)
    assert len(rows) == 60 + 2 - done.dropped_events + 1
