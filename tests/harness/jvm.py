"""How tests start the JVMs of Spark, each of which lives for a minute or two.

Loading Spark's classes takes most of such a life. So ``make test`` records them once, by running
this module, in an archive that every later JVM maps into memory. A JVM that cannot use the archive
ignores it, as one of another Spark does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pravega_spark.spark.jars import delta_package
from pravega_spark.spark.versions import spark_release

_SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""What the optimizing compiler costs is never earned."""
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""The archive's warnings would go to the standard output."""
_LAUNCH = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def archive(environment: Path) -> Path:
    """Return where an environment has its archive: each has another Spark."""
    return environment / "spark-classes.jsa"


def variables(environment: Path) -> dict[str, str]:
    """Return variables by which Spark's scripts, and PySpark, pass the options of a JVM on."""
    options = f"{_SHORT_LIVED} -XX:SharedArchiveFile={archive(environment)} {_QUIET}"
    return {"SPARK_SUBMIT_OPTS": options, "SPARK_DAEMON_JAVA_OPTS": options}


VARIABLES = variables(Path(sys.prefix))


def clean_environment(**more: str) -> dict[str, str]:
    """Return an environment without Spark's variables, except how tests start JVMs."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    return {**kept, "SPARK_LOCAL_IP": "127.0.0.1", **VARIABLES, **more}


def record_classes() -> None:
    """Write the archive by a run of this module under spark-submit."""
    made = archive(Path(sys.prefix)).with_suffix(".new")
    options = f"{_SHORT_LIVED} -XX:ArchiveClassesAtExit={made} {_QUIET}"
    submit = [str(Path(sys.executable).parent / "spark-submit"), "--packages"]
    done = subprocess.run(
        [
            *submit,
            str(delta_package(spark_release())),
            "--driver-java-options",
            options,
            __file__,
            "typical",
        ],
        env=clean_environment(PYSPARK_PYTHON=sys.executable, SPARK_SUBMIT_OPTS=_SHORT_LIVED),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"the classes of Spark cannot be recorded:\n{done.stdout}{done.stderr}")
    made.replace(archive(Path(sys.prefix)))


def _run_typical_work() -> None:
    """Use what most tests use: Delta tables, the data source, and streaming queries."""
    from pravega_spark import StreamManager, session

    spark = session(**_LAUNCH)
    with tempfile.TemporaryDirectory() as folder:
        root, table = f"{folder}/root", f"{folder}/table"
        StreamManager(root).create_scope("s")
        frame = spark.range(100).selectExpr("cast(id AS string) AS routing_key", "'' AS event")
        frame.write.format("pravega").mode("append").option("root", root).save("s/a")
        frame.write.format("delta").save(table)
        spark.sql(f"DELETE FROM delta.`{table}` WHERE routing_key = '7'")
        options = {"root": root, "startingOffsets": "earliest"}
        assert spark.read.format("pravega").options(**options).load("s/a").count() == 100
        events = spark.read.format("delta").load(f"{root}/s/a/events")
        events.groupBy("segment_id").count().join(events, "segment_id").orderBy("event").collect()
        source = spark.readStream.format("pravega").options(**options).load("s/a")
        writer = source.select("routing_key", "event").writeStream.format("pravega")
        writer = writer.options(root=root, checkpointLocation=f"{folder}/checkpoint")
        writer.trigger(availableNow=True).start("s/b").awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:] == ["typical"]:
        _run_typical_work()
    else:
        record_classes()
