"""The Spark session of a run, and settings changed for part of it."""

from __future__ import annotations

import compileall
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pravega_spark
from pravega_spark import session

SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"


def start_session(folder: Path) -> Any:
    """Return a session with two cores and Delta; Python's processes find the package compiled.

    An installer compiles a package. A checkout is compiled by each process that imports it, if the
    environment says so.
    """
    compileall.compile_dir(str(Path(pravega_spark.__file__).parent), quiet=2)
    return session(**spark_settings(folder))


def spark_settings(folder: Path) -> dict[str, str]:
    """Return the settings of a session of a run, but those of Delta."""
    return {
        "spark.master": "local[2]",
        "spark.app.name": "pravega-bench",
        "spark.driver.memory": "4g",
        "spark.local.dir": str(folder / "spark"),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        SNAPSHOT_PARTITIONS: "2",
        "spark.python.daemon.module": "bench.harness.counted_daemon",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextmanager
def spark_setting(spark: Any, key: str, value: str | None) -> Iterator[None]:
    """Change one setting of the session inside a ``with`` block. None changes nothing."""
    if value is None:
        yield
        return
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)
