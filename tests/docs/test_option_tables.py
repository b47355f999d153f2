"""The option tables of docs/spark-reference.md are those of the code.

``PRAVEGA_SPARK_WRITE_DOCS=1 pytest tests/docs`` writes them again.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pravega_spark.spark import options
from site_pages.reference_pages import option_table

PAGE = Path(__file__).parents[2] / "docs/spark-reference.md"


@pytest.mark.parametrize(
    ("title", "use", "told"),
    [
        ("read", options.READ, None),
        ("write", options.WRITE, options.READ),
        ("table read", options.TABLE_READ, options.READ),
        ("table write", options.UPSERT, options.READ | options.WRITE),
    ],
)
def test_option_table_is_the_code_s(title: str, use: options.Use, told: options.Use | None) -> None:
    pattern = re.compile(rf"(<!-- {title} options: [^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)
    text = PAGE.read_text()
    if os.environ.get("PRAVEGA_SPARK_WRITE_DOCS"):
        text = pattern.sub(lambda found: found[1] + option_table(use, told) + found[3], text)
        PAGE.write_text(text)
    found = pattern.search(text)
    assert found is not None
    assert found[2] == option_table(use, told)
