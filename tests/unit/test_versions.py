"""A version that is written in several files is the same in all of them."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import pravega_spark
from pravega_spark.engine.log.actions import ENGINE
from pravega_spark.spark.jars import PLATFORMS, delta_package
from pravega_spark.values.package import install_extra

ROOT = Path(__file__).parents[2]


def _found(file: str, pattern: str) -> set[str]:
    found = set(re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE))
    assert found, f"{file} has nothing like {pattern}"
    return found


def test_package_has_its_version_in_one_place() -> None:
    (place,) = _found("pyproject.toml", r'^path = "(.+)"$')
    assert _found(place, r'^__version__ = "(.+)"$') == {pravega_spark.__version__}
    assert f"pravega_spark/{pravega_spark.__version__}" == ENGINE
    sources = [path for path in (ROOT / "pravega_spark").rglob("*.py") if path != ROOT / place]
    found = [str(path) for path in sources if pravega_spark.__version__ in path.read_text()]
    assert found == []


def test_images_of_deployments_have_the_version_of_the_package() -> None:
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file()]
    tags = {
        tag for path in files for tag in re.findall(r"\bpravega-spark:([\w.]+)", path.read_text())
    }
    assert tags == {pravega_spark.__version__}


def test_error_says_how_an_extra_is_installed_that_no_index_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert install_extra("s3") == "pip install 'pravega-spark[s3]'"

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert install_extra("s3") == "pip install '.[s3]' in a checkout of pravega_spark"


def test_errors_take_what_installs_an_extra_from_one_place() -> None:
    for path in (ROOT / "pravega_spark").rglob("*.py"):
        assert ("pip install" in path.read_text()) is (path.name == "package.py"), path


def test_delta_and_spark_have_one_version_each() -> None:
    (spark,) = _found("constraints.txt", r"^pyspark==([\d.]+)")
    assert _found("README.md", r"PySpark ([\d.]+\d)") == {spark}
    package = delta_package(spark)
    assert package is not None
    assert _found("Makefile", r"io\.delta:[\w.:-]+") == {package}
    delta = package.rpartition(":")[2]
    assert _found("pyproject.toml", r"delta-spark==([\d.]+)") == {delta}
    assert _found("constraints.txt", r"^delta-spark==([\d.]+)") == {delta}
    assert _found("README.md", r"delta-spark ([\d.]+)") == {delta}


def test_extras_allow_the_sparks_for_which_delta_has_a_jar() -> None:
    (allowed,) = _found("pyproject.toml", r'"pyspark(?:\[connect\])?([<>=][^"]+)"')
    with_delta = [name for name, known in PLATFORMS.items() if known.delta and name != "3.5"]
    assert [name for name in PLATFORMS if name in SpecifierSet(allowed)] == with_delta
    (delta,) = _found("pyproject.toml", r'^delta = \["delta-spark==([\d.]+)"\]')
    assert {known.delta for name, known in PLATFORMS.items() if name in with_delta} == {delta}


def test_versions_that_the_readme_calls_tested_are_those_of_the_constraints() -> None:
    for package, name in (
        *(("pyarrow", "pyarrow"), ("deltalake", "delta-rs")),
        *(("duckdb", "DuckDB"), ("polars", "Polars")),
    ):
        pins = _found("constraints.txt", rf"^{package}==([\d.]+)")
        assert _found("README.md", rf"{name} (\d+\.[\d.]*\d)") <= pins, package


def test_readme_accepts_the_python_and_arrow_that_the_package_declares() -> None:
    (python,) = _found("pyproject.toml", r'^requires-python = ">=(.+)"$')
    (arrow,) = _found("pyproject.toml", r'"pyarrow>=([\d.]+)"')
    listed = _found("pyproject.toml", r'Python :: (3\.\d+)"')
    newest = max(listed, key=lambda version: int(version.removeprefix("3.")))
    assert python in listed
    for page in ("README.md", "CONTRIBUTING.md", "Makefile", "docs/quickstart.md"):
        assert _found(page, r"Python (3\.\d+ to 3\.\d+)") == {f"{python} to {newest}"}, page
    assert _found("docs/limits.md", r"^\| Python \| (\S+ to \S+)") == {f"{python} to {newest}"}
    assert _found("README.md", r"pyarrow of at least (\S+)") == {arrow}
