"""A version that is written in several files is the same in all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pravega_spark
from pravega_spark.engine.log.actions import ENGINE
from pravega_spark.values.limits import DELTA_PACKAGE

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
    assert _found("README.md", r"delta-spark ([\d.]+)") == {delta}
    spark = _found("pyproject.toml", r"pyspark(?:\[connect\])?==([\d.]+)")
    assert _found("constraints.txt", r"^pyspark==([\d.]+)") == spark
    assert _found("README.md", r"PySpark ([\d.]+\d)") == spark


def test_versions_that_the_readme_calls_tested_are_those_of_the_constraints() -> None:
    for package, name in (
        *(("pyarrow", "pyarrow"), ("deltalake", "delta-rs")),
        *(("duckdb", "DuckDB"), ("polars", "Polars")),
    ):
        pins = _found("constraints.txt", rf"^{package}==([\d.]+)")
        assert _found("README.md", rf"{name} (\d+\.[\d.]*\d)") <= pins, package


def test_readme_accepts_the_python_and_arrow_that_the_package_declares() -> None:
    (python,) = _found("pyproject.toml", r'^requires-python = ">=(.+)"$')
    (arrow,) = _found("pyproject.toml", r'"pyarrow>=(\d+)"')
    assert _found("README.md", r"Python (\S+) or newer") == {python}
    assert _found("README.md", r"pyarrow (\S+) or newer") == {arrow}
