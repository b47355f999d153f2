"""Native frames and tables on S3, read by Hadoop's client, in its own process.

Arguments: root, folder. The environment names the server and its credentials, for Python and Spark.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pravega_spark import frame, register, session, stream_frame
from tests.harness.spark_jars import jars


def main(root: str, folder: str) -> dict[str, Any]:
    """Read a stream in each way that the JVM has; return what the test checks."""
    spark = session(
        **{
            "spark.master": "local[2]",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.jars": ",".join(map(str, jars("s3a"))),
        }
    )
    batch = frame(spark, "s/a", root=root)
    source = stream_frame(spark, "s/a", root=root, startingOffsets="earliest")
    writer = source.writeStream.format("memory").queryName("followed")
    query = writer.option("checkpointLocation", f"{folder}/c").trigger(availableNow=True).start()
    query.awaitTermination()
    register(spark, "s/a", root=root, metadata=False)
    view = spark.table("s.a_events")
    ((where,),) = (
        spark.sql("DESCRIBE EXTENDED s.a")
        .where("col_name = 'Location'")
        .select("data_type")
        .collect()
    )
    delta = spark.read.format("delta").load(where)
    plans = [
        spark._jvm.PythonSQLUtils.explainString(f._jdf.queryExecution(), "extended")
        for f in (batch, view, delta)
    ]
    settings = spark.sparkContext.getConf().toDebugString()
    found = {
        "batch": sorted(int(row.event) for row in batch.where("routing_key = 'k1'").collect()),
        "followed": spark.table("followed").count(),
        "view": [list(row) for row in view.selectExpr("count(*)", "max(`offset`)").collect()],
        "delta": delta.count(),
        "location": where,
        "has secret": os.environ["AWS_SECRET_ACCESS_KEY"] in "".join([*plans, settings]),
    }
    spark.stop()
    return found


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
