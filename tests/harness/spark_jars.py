"""Jars of a real Kafka broker, of Spark's Kafka source, and of Hadoop's client for S3.

``make test`` fetches them once. They lie in the environment beside Spark's archive of classes.
Without them the tests that need them are skipped: no other test does, and fetching them must not
fail a run of the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pravega_spark.spark.jars import kafka_package, with_versions
from pravega_spark.spark.versions import spark_release

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKER_PACKAGE = "org.apache.kafka:kafka_2.13:4.1.0"
KAFKA = ("connector", "broker")
_SDK = ("s3-transfer-manager", "apache-client", "netty-nio-client", "sts")
S3A_PACKAGES = (
    with_versions("org.apache.hadoop:hadoop-aws", spark_release()),
    *(f"software.amazon.awssdk:{module}:2.35.5" for module in _SDK),
)
"""Hadoop's client, and what it needs of the SDK; that in place of its bundle, which has 650 MB.

The SDK is that of Hadoop 3.5.0, of Spark 4.2 and 4.3.
"""
PACKAGES = {
    "connector": (kafka_package(spark_release()),),
    "broker": (BROKER_PACKAGE,),
    "s3a": S3A_PACKAGES,
}
_EXCLUDED = "software.amazon.awssdk:bundle"
_DONE = "complete"
_SECONDS = 400
_RESOLVE = """
import sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.jars.packages", sys.argv[1]).config("spark.jars.ivy", sys.argv[2])
builder = builder.config("spark.jars.excludes", sys.argv[3])
builder.getOrCreate().stop()
"""


def jars(name: str) -> list[Path]:
    """Return the jars of ``connector``, ``broker`` or ``s3a``; none if they were not fetched."""
    folder = _folder(name)
    return sorted((folder / "jars").glob("*.jar")) if (folder / _DONE).exists() else []


def has_kafka() -> bool:
    """Return whether a broker and the connector are there."""
    return all(jars(name) for name in KAFKA)


def _folder(name: str) -> Path:
    return Path(sys.prefix) / ("kafka" if name in KAFKA else "hadoop") / name


def add_connector(spark: SparkSession) -> None:
    """Let a running session, whose JVM other tests share, find the format ``kafka``."""
    own = ("kafka", "commons-pool", "lz4")  # the others are Spark's, too
    for jar in jars("connector"):
        if any(word in jar.name for word in own):
            spark.sql(f"ADD JAR '{jar}'")


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a resolver that does not look into ``~/.m2``.

    Maven often has the description of a jar there without the jar, for which Ivy then fails.
    """
    kept = {k: v for k, v in os.environ.items() if k != "PYSPARK_SUBMIT_ARGS"}
    options = f"{kept.get('JAVA_TOOL_OPTIONS', '')} -Duser.home={folder}".strip()
    return {**kept, "JAVA_TOOL_OPTIONS": options}


def fetch() -> None:
    """Fetch what is missing by Spark's own resolver; each in a process of its own."""
    for name, packages in PACKAGES.items():
        if jars(name):
            continue
        folder = _folder(name)
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-c", _RESOLVE, ",".join(packages), str(folder), _EXCLUDED],
            env=_environment(folder),
            check=True,
            timeout=_SECONDS,
        )
        (folder / _DONE).touch()


if __name__ == "__main__":
    fetch()
