"""Each Spark gets the jars that were built for it, Delta's of the version that is installed."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from pravega_spark.spark.jars import (
    PLATFORMS,
    delta_fits,
    delta_package,
    kafka_package,
    platform,
    start_with_delta,
    with_versions,
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The Python packages that are installed: none."""
    found: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return found


@pytest.mark.parametrize(
    ("spark", "delta"),
    [
        ("3.5.9", "io.delta:delta-spark_2.12:3.3.2"),
        ("3.5.5-amzn-0", "io.delta:delta-spark_2.12:3.3.2"),
        ("4.0.5", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        ("4.1.4", "io.delta:delta-spark_4.1_2.13:4.4.0"),
        ("4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.2.1", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("4.3.0", None),
        ("5.0.0", None),
    ],
)
def test_delta_is_the_jar_for_the_minor_version(
    spark: str, delta: str | None, installed: dict[str, str]
) -> None:
    assert delta_package(spark) == delta


@pytest.mark.parametrize(
    ("spark", "python", "delta"),
    [
        ("4.2.0", "4.4.1", "io.delta:delta-spark_4.2_2.13:4.4.1"),
        ("4.1.4", "4.3.1", "io.delta:delta-spark_4.1_2.13:4.3.1"),
        ("4.0.5", "4.0.1", "io.delta:delta-spark_2.13:4.0.1"),
        ("3.5.9", "3.2.1", "io.delta:delta-spark_2.12:3.2.1"),
        # no such jars were built
        ("4.2.0", "4.3.1", "io.delta:delta-spark_4.2_2.13:4.4.0"),
        ("3.5.9", "4.4.0", "io.delta:delta-spark_2.12:3.3.2"),
        ("4.3.0", "4.4.0", None),
    ],
)
def test_installed_delta_spark_chooses_the_version_if_it_has_a_jar_for_the_spark(
    spark: str, python: str, delta: str | None, installed: dict[str, str]
) -> None:
    installed["delta-spark"] = python
    assert delta_package(spark) == delta
    assert delta_fits(spark, python) == (delta is not None and delta.endswith(f":{python}"))


def test_other_jars_are_those_of_the_release() -> None:
    assert kafka_package("3.5.9") == "org.apache.spark:spark-sql-kafka-0-10_2.12:3.5.9"
    assert kafka_package("4.3.0.dev1") == "org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"
    listed = "org.apache.hadoop:hadoop-aws, org.apache.spark:spark-avro,org.example:x:1,a:b"
    assert with_versions(listed, "4.1.4") == (
        "org.apache.hadoop:hadoop-aws:3.4.2,org.apache.spark:spark-avro_2.13:4.1.4,"
        "org.example:x:1,a:b"
    )
    assert with_versions("", "4.1.4") == ""


def test_words_say_how_a_spark_gets_delta(installed: dict[str, str]) -> None:
    assert start_with_delta("4.1.4") == (
        "start Spark with --packages io.delta:delta-spark_4.1_2.13:4.4.0"
    )
    assert start_with_delta("4.3.0") == ("Delta Lake has no jar for Spark 4.3: take Spark 4.2")


def test_installed_spark_has_the_scala_and_the_hadoop_of_the_table() -> None:
    pyspark = pytest.importorskip("pyspark")
    names = {path.name for path in Path(pyspark.__file__).parent.joinpath("jars").glob("*.jar")}
    known = platform(pyspark.__version__)
    assert f"hadoop-client-api-{known.hadoop}.jar" in names
    assert f"spark-core_{known.scala}-{pyspark.__version__}.jar" in names
    assert pyspark.__version__.rpartition(".")[0] in PLATFORMS


def test_table_needs_no_pyspark() -> None:
    code = "import sys, pravega_spark.spark.jvm_start; sys.exit('pyspark' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
