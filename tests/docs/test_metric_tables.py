"""The tables of metrics in docs/monitoring.md are those of the code.

``PRAVEGA_SPARK_WRITE_DOCS=1 pytest tests/docs`` writes them again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from pravega_spark.metrics.catalog import PROCESS_METRICS, ROOT_METRICS, Metric

PAGE = Path(__file__).parents[2] / "docs/monitoring.md"


def _table(metrics: Iterable[Metric]) -> str:
    lines = ["| metric{labels} | meaning | Pravega |", "| --- | --- | --- |"]
    for metric in metrics:
        labels = f"{{{','.join(metric.labels)}}}" if metric.labels else ""
        names = ", ".join(f"`{name}`" for name in metric.pravega.split(", ") if name)
        lines.append(f"| `{metric.name}{labels}` | {metric.meaning} | {names} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("title", "metrics"), [("root", ROOT_METRICS), ("process", PROCESS_METRICS)]
)
def test_table_of_metrics_is_the_code_s(title: str, metrics: tuple[Metric, ...]) -> None:
    pattern = re.compile(rf"(<!-- {title} metrics: [^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)
    text = PAGE.read_text()
    if os.environ.get("PRAVEGA_SPARK_WRITE_DOCS"):
        text = pattern.sub(lambda found: found[1] + _table(metrics) + found[3], text)
        PAGE.write_text(text)
    found = pattern.search(text)
    assert found is not None
    assert found[2] == _table(metrics)
