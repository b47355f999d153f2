"""Spark starts with the jars that are there, and says in a sentence why it does not start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from pravega_spark import KeyValueTableConfiguration, StreamManager
from pravega_spark.key_value.fold import fold
from pravega_spark.key_value.folded_table import folded_table
from pravega_spark.spark.jars import delta_package, minor, start_with_delta
from pravega_spark.spark.jvm_start import ivy_folder
from pravega_spark.spark.versions import spark_release
from tests.harness.jvm import clean_environment

pytestmark = pytest.mark.extended

_DEAD = """
<ivysettings>
  <settings defaultResolver="mirror"/>
  <resolvers><ibiblio name="mirror" m2compatible="true" root="http://127.0.0.1:9/"/></resolvers>
</ivysettings>
"""
"""Ivy's settings with a mirror where nobody listens."""
_WITH_IT = ("delta-storage", "delta-kernel-*")
"""What Delta's jar needs that is not among Spark's own."""
_LOCAL = """
conf = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""
_REFUSED = """
try:
    pravega_spark.session(**conf, **given)
except pravega_spark.errors.IllegalState as error:
    print(error)
"""
_PLAIN = """
spark = pravega_spark.session(delta=False, **conf)
frame = spark.range(3).selectExpr("'k' AS routing_key", "cast(id AS string) AS event")
frame.write.format("pravega").mode("append").option("root", given["root"]).save("s/in")
print(spark.read.format("pravega").option("root", given["root"]).load("s/in").count())
try:
    pravega_spark.key_value_frame(spark, "s/stock", root=given["root"])
except pravega_spark.errors.IllegalState as error:
    print(error)
print(spark.conf.get("spark.jars.packages", "no packages"), spark.conf.get("spark.sql.extensions"))
logging.basicConfig(stream=sys.stdout, format="%(message)s")
print(pravega_spark.session(delta=False, **conf) is spark)
print(pravega_spark.session(**conf) is spark)
"""
_WITH_DELTA = """
table = given.pop("table")
spark = pravega_spark.session(**conf, **given)
spark.range(10).write.format("delta").save(table)
spark.sql(f"DELETE FROM delta.`{table}` WHERE id < 3")
options = {"checkpointLocation": table + "-checkpoint"}
query = spark.readStream.format("delta").option("ignoreDeletes", "true").load(table)
query = query.writeStream.format("delta").options(**options).trigger(availableNow=True)
query.start(table + "-copy").awaitTermination()
print(spark.read.format("delta").load(table + "-copy").count())
print(spark.conf.get("spark.jars.packages", "no packages"))
def seen(_):
    import pyspark
    return sys.executable, pyspark.__file__
print(*spark.sparkContext.parallelize([0], 1).map(seen).first())
"""


def run(code: str, given: dict[str, str], **environment: str) -> list[str]:
    """Run code in a process of its own, and return the lines that it printed."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import logging, sys, pravega_spark\ngiven = {given}\n{_LOCAL}{code}",
        ],
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if not line.startswith(":: ")]


@pytest.fixture
def dead_ivy(tmp_path: Path) -> dict[str, str]:
    """The settings of an Ivy that has fetched nothing, and whose mirror does not answer."""
    (tmp_path / "ivy.xml").write_text(_DEAD)
    file, folder = str(tmp_path / "ivy.xml"), str(tmp_path / "ivy")
    return {"spark.jars.ivySettings": file, "spark.jars.ivy": folder}


def test_jar_that_cannot_be_had_is_one_sentence_and_the_process_goes_on_without(
    tmp_path: Path, dead_ivy: dict[str, str]
) -> None:
    root = {"root": str(tmp_path / "root")}
    manager = StreamManager(tmp_path / "root")
    manager.create_scope("s")
    manager.create_key_value_table("s/stock", KeyValueTableConfiguration(key_type="string"))
    stock = manager.key_value_table("s/stock")
    stock.put("k", b"v").result()
    fold(stock._stream, folded_table(stock._stream, stock.configuration))
    given = {**dead_ivy, **root}
    said, rows, folded, settings, quiet, warning, same = run(_REFUSED + _PLAIN, given)
    assert said.startswith(
        f"Spark did not start: {delta_package(spark_release())} could not be fetched into "
        f"{tmp_path}/ivy/jars, as the lines above say: name a mirror by "
    )
    assert said.endswith("; session(delta=False) needs none, and format('pravega') works with it.")
    assert (rows, settings) == ("3", "no packages None")
    assert folded.startswith("this session has no Delta Lake, which holds the folded entries of ")
    assert (quiet, same) == ("True", "True")
    assert warning.startswith("this Spark has no Delta Lake: format('pravega') works, format(")
    assert warning.endswith(f"; {start_with_delta(spark_release())}.")


def test_named_jars_of_delta_are_taken_and_workers_import_the_installed_pyspark(
    tmp_path: Path, dead_ivy: dict[str, str]
) -> None:
    package = delta_package(spark_release()) or ""
    release = package.rpartition(":")[2]
    folder = ivy_folder({}, spark_release())
    jars = [folder / f"{package.replace(':', '_', 1).replace(':', '-')}.jar"]
    jars += [path for name in _WITH_IT for path in folder.glob(f"io.delta_{name}-{release}.jar")]
    named = ",".join(map(str, jars))
    given = {**dead_ivy, "spark.jars": named, "table": str(tmp_path / "table")}
    rows, packages, workers = run(_WITH_DELTA, given)
    assert (rows, packages) == ("7", "no packages")
    assert workers == f"{sys.executable} {pyspark.__file__}"


def test_missing_java_is_one_sentence() -> None:
    spark = minor(spark_release())
    needs = (
        f"and Spark {spark} needs Java 17 to 25: install a JDK, and set JAVA_HOME to its folder."
    )
    (said,) = run(_REFUSED, {}, JAVA_HOME="/no/such")
    assert said == f"Spark did not start: /no/such/bin/java does not run, {needs}"


def test_job_without_java_ends_with_the_sentence(tmp_path: Path) -> None:
    StreamManager(tmp_path).create_scope("s")
    done = subprocess.run(
        [sys.executable, "-m", "pravega_spark.jobs.maintenance", "--root", str(tmp_path)],
        env=clean_environment(JAVA_HOME="/no/such"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Spark did not start: /no/such/bin/java does not run, and Spark" in done.stderr
