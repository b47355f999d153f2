"""The option tables of docs/spark-reference.md are those of the code.

``PRAVEGA_SPARK_WRITE_DOCS=1 pytest tests/docs`` writes them again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from pravega_spark.spark import option_values, options
from pravega_spark.spark.key_value import options as key_value_options

PAGE = Path(__file__).parents[2] / "docs/spark-reference.md"


def _table(rows: Iterable[option_values.Option]) -> str:
    lines = ["| option | default | meaning |", "| --- | --- | --- |"]
    for row in rows:
        names = " ".join(f"`{name}`" for name in (row.name, *row.aliases))
        lines.append(f"| {names} | {row.default} | {row.meaning} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("title", "rows"),
    [
        ("read", options.READ),
        ("write", options.WRITE),
        ("table read", key_value_options.TABLE_READ),
        ("table write", key_value_options.TABLE_WRITE),
    ],
)
def test_option_table_is_the_code_s(title: str, rows: tuple[option_values.Option, ...]) -> None:
    pattern = re.compile(rf"(<!-- {title} options: [^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)
    text = PAGE.read_text()
    if os.environ.get("PRAVEGA_SPARK_WRITE_DOCS"):
        text = pattern.sub(lambda found: found[1] + _table(rows) + found[3], text)
        PAGE.write_text(text)
    found = pattern.search(text)
    assert found is not None
    assert found[2] == _table(rows)
