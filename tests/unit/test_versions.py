"""A version that is written in several files is the same in all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pravega_spark
from pravega_spark.engine.log.actions import ENGINE
from pravega_spark.limits import DELTA_PACKAGE

ROOT = Path(__file__).parents[2]


def _found(file: str, pattern: str) -> set[str]:
    found = set(re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE))
    assert found, f"{file} has nothing like {pattern}"
    return found


def test_package_has_one_version() -> None:
    assert _found("pyproject.toml", r'^version = "(.+)"$') == {pravega_spark.__version__}
    assert f"pravega_spark/{pravega_spark.__version__}" == ENGINE


def test_delta_and_spark_have_one_version_each() -> None:
    assert _found("Makefile", r"io\.delta:[\w.:-]+") == {DELTA_PACKAGE}
    delta = DELTA_PACKAGE.rpartition(":")[2]
    assert _found("pyproject.toml", r"delta-spark==([\d.]+)") == {delta}
    assert _found("constraints.txt", r"^delta-spark==([\d.]+)") == {delta}
    spark = _found("pyproject.toml", r"pyspark(?:\[connect\])?==([\d.]+)")
    assert _found("constraints.txt", r"^pyspark==([\d.]+)") == spark
