"""A job whose first task dies once with its Python worker: Spark repeats it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from pravega_spark.jobs import maintenance, report
from pravega_spark.jobs.signals import StopSignal
from pravega_spark.jobs.stream_tasks import Task
from pravega_spark.maintenance.work import WorkOptions


def dying(root: str, task: Task, *, options: WorkOptions) -> Iterator[Mapping[str, str]]:
    """Die at the first stream, once; a worker's own module has the work as it is."""
    flag = Path(root.removeprefix("file://"), "died")
    if task.stream == "s/a" and not flag.exists():
        flag.touch()
        os._exit(1)
    return maintenance._do(root, task, options=options)


def main(root: str) -> int:
    """Do one round in a Spark that repeats tasks."""
    vars(report)["LINE_SECONDS"] = 0.05
    vars(maintenance)["_do"] = dying
    spark = (
        SparkSession.builder.master("local[1,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    arguments = maintenance.parse(["--root", root], "scaling")
    return maintenance.maintain(arguments, spark, StopSignal())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
