"""Every metadata table, read by options and by SQL in one session."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pravega_spark.config.policies import StreamConfiguration
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.manager import StreamManager
from pravega_spark.spark.monitor.metadata.reader import TABLES
from tests.harness.small_streams import write


@pytest.mark.versions
def test_every_table_is_a_frame_and_sql_joins_them(
    spark: SparkSession, root: str, make: Callable[..., StreamLog]
) -> None:
    stream = make("s/a", segments=2)
    make("s/b")
    write(stream, [(f"k{i}", b"12345") for i in range(10)])
    manager = StreamManager(root)
    manager.create_reader_group("s/g", ["s/a"], retention="automatic")
    manager.create_transactional_writer("s/a").begin_transaction()
    with manager.create_writer("s/a", writer_id="noting") as noting:
        noting.note_time(1_700_000_000_000)
        noting.flush()
        manager.event_time("s/a").update()
    manager.create_key_value_table("s/k")
    columns = pa.schema([("carrier", pa.string())])
    manager.create_stream("s/typed", StreamConfiguration(schema=columns))
    manager.create_joint_writer(["s/b"]).begin_transaction()
    for name, table in TABLES.items():
        frame = spark.read.format("pravega").options(root=root, metadata=name).load()
        assert frame.schema == table.schema
        assert frame.collect(), name
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {name} USING pravega "
            f"OPTIONS (root '{root}', metadata '{name}')"
        )
    lag = spark.sql(
        "SELECT g.group, g.retention, sum(l.lag) AS events, sum(l.lag_bytes) AS bytes,"
        " sum(s.size_bytes) AS stored, max(t.status) AS status"
        " FROM ReaderGroups g JOIN Lag l USING (group) JOIN Segments s USING (stream, segment_id)"
        " CROSS JOIN Transactions t WHERE t.joint IS NULL GROUP BY ALL"
    ).collect()
    assert [tuple(row) for row in lag] == [("s/g", "automatic", 10, 50, 50, "OPEN")]
    held = spark.sql("SELECT cut FROM StreamCuts WHERE kind = 'subscriber'").collect()
    events = spark.read.format("pravega").options(root=root, startingStreamCut=held[0].cut)
    assert events.load("s/a").count() == 10
