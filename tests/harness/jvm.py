"""How tests start the JVMs of Spark, each of which lives for a minute or two.

Loading Spark's classes takes most of such a life. So ``make test`` records them, by running this
module, in an archive that every later JVM maps into memory. A JVM without a word ignores an archive
of another Java, of other jars, or of jars at another place, as in an environment that was copied or
moved: this module then records the classes again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pravega_spark.spark.jars import delta_package
from pravega_spark.spark.versions import spark_release

_SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:MetaspaceSize=256m"
"""What the optimizing compiler costs is never earned. By default each few classes that are loaded
cost a collection of all garbage."""
_IN_PLACE = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
"""Maps an archive to the address that its pointers have; by default a JVM changes all of them."""
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
    options = f"{_SHORT_LIVED} {_IN_PLACE} -XX:SharedArchiveFile={archive(environment)} {_QUIET}"
    return {"SPARK_SUBMIT_OPTS": options, "SPARK_DAEMON_JAVA_OPTS": options}


VARIABLES = variables(Path(sys.prefix))


def clean_environment(**more: str) -> dict[str, str]:
    """Return an environment without Spark's variables, except how tests start JVMs."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    return {**kept, "SPARK_LOCAL_IP": "127.0.0.1", **VARIABLES, **more}


def _submit(*words: str, options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "spark-submit"), *words],
        env=clean_environment(PYSPARK_PYTHON=sys.executable, SPARK_SUBMIT_OPTS=options),
        capture_output=True,
        text=True,
        check=False,
    )


def is_recorded() -> bool:
    """Return whether a JVM of this environment maps the archive."""
    if not archive(Path(sys.prefix)).exists():  # of that the JVM would say nothing
        return False
    options = f"{VARIABLES['SPARK_SUBMIT_OPTS']} -Xlog:cds*=warning:stderr"
    done = _submit("--version", options=options)
    return done.returncode == 0 and "shared archive" not in done.stderr


def record_classes() -> None:
    """Write the archive by a run of this module under spark-submit."""
    made = archive(Path(sys.prefix)).with_suffix(".new")
    options = f"{_SHORT_LIVED} -XX:ArchiveClassesAtExit={made} {_QUIET}"
    packages = ("--packages", str(delta_package(spark_release())))
    words = (*packages, "--driver-java-options", options, __file__, "typical")
    done = _submit(*words, options=_SHORT_LIVED)
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
    elif not is_recorded():
        record_classes()
