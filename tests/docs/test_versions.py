"""The versions that docs/compatibility.md calls tested are those that the tests run with."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version

import pytest

from tests.harness.page_examples import REPOSITORY

PAGE = (REPOSITORY / "docs/compatibility.md").read_text(encoding="utf-8")
PINNED = re.findall(r"`([a-z-]+)==([\d.]+)`", PAGE)
CONSTRAINTS = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(("name", "tested"), sorted(set(PINNED)))
def test_version_of_the_page_is_pinned_for_the_newest_python(name: str, tested: str) -> None:
    lines = {line.partition(";")[0] for line in CONSTRAINTS if '< "3.11"' not in line}
    assert f"{name}=={tested}" in lines
    if sys.version_info >= (3, 11):
        assert version(name) == tested


def test_page_names_every_engine_that_reads_the_tables() -> None:
    assert {"pyspark", "delta-spark", "deltalake", "duckdb", "polars", "pandas", "pyarrow"} <= {
        name for name, _ in PINNED
    }
