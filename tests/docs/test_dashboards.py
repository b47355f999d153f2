"""The dashboard and the alerts in deploy/ ask only for metrics and labels that the code exports."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pravega_spark.metrics.catalog import METRICS, MetricKind

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana/pravega-spark.json").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = DASHBOARD["templating"]["list"]

_ADDED = {"instance", "job", "le"}
"""Labels that Prometheus adds, and that of a histogram's buckets."""
_SERIES = {
    f"{metric.name}{suffix}": metric
    for metric in METRICS.values()
    for suffix in (("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",))
}


def queries() -> Iterator[str]:
    """Yield each PromQL expression of both files."""
    yield from (rule["expr"] for rule in RULES)
    yield from (target["expr"] for panel in PANELS for target in panel["targets"])
    yield from (v["query"]["query"] for v in VARIABLES if v["type"] == "query")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Grafana's classes ask for Python 3.11")
def test_grafana_s_own_classes_know_every_field_of_the_dashboard() -> None:
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(DASHBOARD)))
    assert list(_lost(DASHBOARD, read, "")) == []


def _lost(given: Any, read: Any, path: str) -> Iterator[str]:
    """Yield the fields that were given, and that the classes dropped or changed."""
    if isinstance(given, dict):
        for name, value in given.items():
            if name in read:
                yield from _lost(value, read[name], f"{path}/{name}")
            else:
                yield f"{path}/{name}"
    elif isinstance(given, list):
        for number, (value, found) in enumerate(zip(given, read, strict=True)):
            yield from _lost(value, found, f"{path}/{number}")
    elif given != read:
        yield path


def test_queries_were_found() -> None:
    found = list(queries())
    assert len(found) > 50
    assert all("pravega_" in query for query in found)


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_query_names_metrics_and_labels_of_the_code(query: str) -> None:
    names = set(re.findall(r"\bpravega_\w+", query))
    assert names <= _SERIES.keys()
    known = _ADDED.union(*(_SERIES[name].labels for name in names))
    for name, selector in re.findall(r"\b(pravega_\w+)\{([^}]*)\}", query):
        asked = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
        assert set(asked) <= {*_ADDED, *_SERIES[name].labels}, name
    for grouped in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query):
        assert {label.strip() for label in grouped.split(",")} <= known
    counters = [name for name in names if _SERIES[name].kind is not MetricKind.GAUGE]
    for name in counters:  # a counter says nothing by itself
        assert re.search(rf"\b(rate|increase)\({name}\b", query), name


def test_every_alert_has_a_summary_and_a_way_on_and_its_labels_are_there() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "action"}
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        kept = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", rule["expr"])
        if kept:
            assert used <= {label.strip() for part in kept for label in part.split(",")}


def test_panels_fill_their_rows_without_overlap_and_have_distinct_ids() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: dict[tuple[int, int], int] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"]


def test_panels_have_a_unit_a_text_and_use_only_variables_that_exist() -> None:
    known = {variable["name"] for variable in VARIABLES} | {"__rate_interval", "__all"}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) <= known
    for panel in PANELS:
        defaults: dict[str, Any] = panel["fieldConfig"]["defaults"]
        assert defaults["unit"]
        assert panel["title"]
        assert panel["description"].endswith(".")
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = ",".join(re.findall(r"\bby\s*\(([^)]*)\)", target["expr"]))
            assert labels <= {label.strip() for label in kept.split(",")}
