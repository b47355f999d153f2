"""Other readers open a table again whose torn newest checkpoint a sweep has written again."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder

from pravega_spark import StreamManager
from pravega_spark.engine.log.checkpoint import maintain
from pravega_spark.manager import root_of
from tests.harness import delta_engines


def test_delta_rs_and_duckdb_open_a_table_whose_checkpoint_was_healed(tmp_path: Path) -> None:
    manager = StreamManager(tmp_path)
    manager.create_scope("s")
    manager.create_stream("s/t")
    with manager.create_writer("s/t") as writer:
        for number in range(5):
            writer.write_event(b"%d" % number).result()
    log = root_of(manager).stream("s/t").log
    newest = log.refresh()
    assert newest is not None
    maintain(log.reader, newest.version, checkpoint=True)
    table = tmp_path / "s/t/events"
    (checkpoint,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    with pytest.raises(Exception, match=r"(?i)parquet|footer|checkpoint"):
        DeltaTable(table).to_pyarrow_table()
    manager.sweep_stream("s/t", grace=0)
    opened = QueryBuilder().register("t", DeltaTable(table))
    events = opened.execute("SELECT event FROM t").read_all()
    assert sorted(map(bytes, events["event"].to_pylist())) == [b"%d" % n for n in range(5)]
    with delta_engines.connect_duckdb() as connection:
        rows = connection.execute(f"SELECT event FROM delta_scan('{table}')").fetchall()
    assert sorted(bytes(event) for (event,) in rows) == [b"%d" % n for n in range(5)]
