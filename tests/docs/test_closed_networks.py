"""The page of closed networks has the jars and the Java that the code takes."""

from __future__ import annotations

import re

import pytest

from pravega_spark.spark.jars import (
    PLATFORMS,
    delta_package,
    kafka_package,
    numbers,
    with_versions,
)
from pravega_spark.spark.jvm_start import ivy_folder
from tests.harness.page_examples import REPOSITORY
from tests.harness.spark_environments import SPARKS

PAGE = (REPOSITORY / "docs/closed-networks.md").read_text(encoding="utf-8")
PINNED = re.findall(r"^pyspark==(\S+)", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
RELEASES = {name: PINNED[0] if name == "4.2" else SPARKS[name].pyspark for name in PLATFORMS}
"""The release of each minor version that the project tests."""


@pytest.mark.parametrize("name", PLATFORMS)
def test_page_names_the_jars_of_each_spark(name: str) -> None:
    spark = RELEASES[name]
    delta = delta_package(spark)
    shown = f"`{delta}`" if delta else "none yet"
    hadoop = with_versions("org.apache.hadoop:hadoop-aws", spark)
    assert f"| {name} | {shown} | `{kafka_package(spark)}` | `{hadoop}` |" in PAGE


def test_page_names_the_java_of_each_spark() -> None:
    _, _, table = PAGE.partition("| Spark | Java |\n| --- | --- |\n")
    rows = [row.strip("| ").split(" | ") for row in table.partition("\n\n")[0].splitlines()]
    shown = {name: java for names, java in rows for name in names.split(", ")}
    assert shown == {name: "{} to {}".format(*known.java) for name, known in PLATFORMS.items()}


def test_page_names_the_folders_of_fetched_jars() -> None:
    folders = {
        str(ivy_folder({}, spark)).removeprefix(str(ivy_folder({}, spark).parents[1]))
        for spark in RELEASES.values()
    }
    assert all(f"`~{folder}`" in PAGE for folder in folders)
    newest = max((name for name, known in PLATFORMS.items() if known.delta), key=numbers)
    package = delta_package(RELEASES[newest]) or ""
    jar = f"{package.replace(':', '_', 1).replace(':', '-')}.jar"
    assert f"\n{jar}\n" in PAGE
