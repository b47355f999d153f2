"""A job whose first task dies once with its Python worker: Spark repeats it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from pravega_spark.jobs import job_runner, report, retention
from pravega_spark.jobs.stream_tasks import map_streams


def work(root: str, stream: str, folder: str) -> list[Mapping[str, Any]]:
    """Die at the first stream, once."""
    flag = Path(folder, "died")
    if stream == "s/a" and not flag.exists():
        flag.touch()
        os._exit(1)
    return [{"n": 1}]


def main(root: str) -> int:
    """Do one round in a Spark that repeats tasks."""
    vars(report)["LINE_SECONDS"] = 0.05
    spark = (
        SparkSession.builder.master("local[1,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )

    def one(spark: SparkSession, given: job_runner.RoundInput) -> job_runner.Report:
        done = partial(work, folder=root)
        schema = pa.schema([("n", pa.int64())])
        rows = map_streams(spark, given.root, given.streams, done, schema, given.told)
        assert all(row["n"] == 1 and row["error"] is None for row in rows), rows
        return job_runner.Report(None, {"streams": len(rows)})

    arguments = retention.parse(["--root", root])
    return job_runner.rounds("retention", arguments, spark, one, {"streams": 0})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
