"""Streams in a Hive metastore, over two sessions of its own process. Arguments: root, folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from pravega_spark import StreamConfiguration, StreamManager, register, session


def hive_session(folder: Path) -> SparkSession:
    """Return a session whose catalog is a metastore in a folder."""
    url = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": url,
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={folder}",
    }
    return session(**settings)


def main(root: str, folder: str) -> dict[str, Any]:
    """Register streams, and find them in another session; create one of them again, with columns.

    Return what the test checks.
    """
    manager, place = StreamManager(root), Path(folder)

    def rows(query: str) -> list[list[Any]]:
        return [list(row) for row in spark.sql(query).collect()]

    spark = hive_session(place)
    found: dict[str, Any] = {"names": register(spark, "s/*", root=root, metadata=False)}
    spark.stop()

    spark = hive_session(place)
    count = "SELECT count(*), max(`offset`) FROM s.a_events"
    found["tables"] = rows("SHOW TABLES IN s")
    found["events"] = rows(count)
    manager.seal_stream("s/a")
    manager.delete_stream("s/a")
    found["deleted"] = rows(count)
    columns = pa.schema([("delay", pa.int32())])
    manager.create_stream("s/a", StreamConfiguration(schema=columns))
    with manager.create_writer("s/a") as writer:
        writer.write_event({"delay": 7}, routing_key="k").result()
    register(spark, "s/a", root=root, metadata=False)
    found["created again"] = rows("SELECT `offset`, routing_key, delay FROM s.a_events")
    for statement in ("DROP VIEW s.a_events", "DROP TABLE s.a"):
        spark.sql(statement)
    found["left"] = rows("SHOW TABLES IN s")
    found["files"] = [event.data for event in manager.read("s/a")]
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
