"""The jars and the Java that go with each release of Spark; this module needs no PySpark.

A jar of Delta is built for one minor version of Spark; those of Kafka and of Hadoop's clients are
of the release itself. Delta's jar has the version of the Python package delta-spark, where that is
installed: the two are one release. No module here imports delta-spark.

These functions are told the release of Spark, and stand apart from ``versions.py``, which imports
PySpark: ``doctor`` asks them where there is none, or one that does not start.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Platform:
    """What a minor version of Spark runs with.

    ``java`` are the oldest and the newest Java that it names, ``oldest_delta`` and ``delta`` the
    oldest release of Delta that has a jar for it, and the one that is taken; "" if there is none.
    """

    scala: str
    hadoop: str
    java: tuple[int, int]
    oldest_delta: str
    delta: str


PLATFORMS: Final = {
    "3.5": Platform("2.12", "3.3.4", (8, 17), "3.0", "3.3.2"),
    "4.0": Platform("2.13", "3.4.1", (17, 21), "4.0", "4.4.0"),
    "4.1": Platform("2.13", "3.4.2", (17, 21), "4.1", "4.4.0"),
    "4.2": Platform("2.13", "3.5.0", (17, 25), "4.4", "4.4.0"),
    "4.3": Platform("2.13", "3.5.0", (17, 25), "", ""),
}
PACKAGES: Final = "spark.jars.packages"
JARS: Final = "spark.jars"
"""The settings by which Spark gets jars: packages that it fetches, and files."""
_DELTA = "io.delta:delta-spark"
_KAFKA = "org.apache.spark:spark-sql-kafka-0-10"


def minor(release: str) -> str:
    """Return the first two numbers of a release, such as ``4.2`` of ``4.2.0``."""
    return ".".join(release.split(".")[:2])


def platform(spark: str) -> Platform:
    """Return what a release of Spark runs with; an unknown one has the newest, without Delta."""
    newest = list(PLATFORMS.values())[-1]
    return PLATFORMS.get(minor(spark), replace(newest, oldest_delta="", delta=""))


def installed_delta() -> str | None:
    """Return the version of the installed Python package delta-spark."""
    try:
        return importlib.metadata.version("delta-spark")
    except importlib.metadata.PackageNotFoundError:
        return None


def delta_fits(spark: str, delta: str) -> bool:
    """Return whether a release of Delta has a jar for a release of Spark."""
    oldest = platform(spark).oldest_delta
    return bool(oldest) and numbers(oldest) <= numbers(delta) < (int(oldest[0]) + 1,)


def delta_package(spark: str) -> str | None:
    """Return the package of Delta's jar for a release of Spark; None if there is none.

    Its version is that of the installed delta-spark, if that has a jar for this Spark.
    """
    known, installed = platform(spark), installed_delta()
    if not known.delta:
        return None
    delta = installed if installed and delta_fits(spark, installed) else known.delta
    suffix = f"_{minor(spark)}" if numbers(delta) >= (4, 1) else ""
    return f"{_DELTA}{suffix}_{known.scala}:{delta}"


def kafka_package(spark: str) -> str:
    """Return the package of the format ``kafka`` for a release of Spark."""
    return f"{_KAFKA}_{platform(spark).scala}:{_release(spark)}"


def with_versions(packages: str, spark: str) -> str:
    """Return a list of packages in which Spark's and Hadoop's have the versions of this Spark.

    ``org.apache.hadoop:hadoop-aws`` becomes ``org.apache.hadoop:hadoop-aws:3.5.0``, and
    ``org.apache.spark:spark-sql-kafka-0-10`` likewise, with the version of Scala in its name.
    """
    known = platform(spark)
    ends = {
        "org.apache.hadoop": f":{known.hadoop}",
        "org.apache.spark": f"_{known.scala}:{_release(spark)}",
    }
    items = [item.strip() for item in packages.split(",") if item.strip()]
    return ",".join(
        item + (ends.get(item.partition(":")[0], "") if item.count(":") == 1 else "")
        for item in items
    )


def start_with_delta(spark: str) -> str:
    """Return how a Spark gets Delta, as the words of an error."""
    package = delta_package(spark)
    if package is not None:
        return f"start Spark with --packages {package}"
    newest = [name for name, known in PLATFORMS.items() if known.delta][-1]
    return f"Delta Lake has no jar for Spark {minor(spark)}: take Spark {newest}"


def numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release, at most three, for comparisons."""
    return tuple(int(number) for number in re.findall(r"\d+", release)[:3])


def _release(spark: str) -> str:
    """Return a release without what vendors and builds append to it."""
    return ".".join(spark.split(".")[:2] + re.findall(r"\d+", spark)[2:3])
