"""The result of checks: text, JSON, Nagios' plugin output, or Prometheus' text format."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass

import click

from pravega_spark.cli.output import say

FORMATS = ("text", "json", "nagios", "prometheus")


class CheckStatus(enum.IntEnum):
    """The exit statuses of monitoring plugins."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check of one object: its status, and the value that decided with its limits."""

    what: str
    """The object: ``scope/stream`` or ``scope/group``."""
    name: str
    """The check, such as ``lag_events``."""
    status: CheckStatus
    value: float | None
    text: str
    warn: float | None = None
    critical: float | None = None

    @classmethod
    def limited(
        cls,
        what: str,
        name: str,
        value: float | None,
        text: str,
        warn: float | None,
        critical: float | None,
    ) -> CheckResult:
        """Return a result whose value must not be above its limits; no value is OK."""
        status = CheckStatus.OK
        if value is not None:
            if critical is not None and value > critical:
                status = CheckStatus.CRITICAL
            elif warn is not None and value > warn:
                status = CheckStatus.WARNING
        return cls(what, name, status, value, text, warn, critical)


def show_results(results: Sequence[CheckResult], form: str) -> CheckStatus:
    """Print results; return the worst status."""
    worst = max((result.status for result in results), default=CheckStatus.OK)
    {"text": _text, "json": _json, "nagios": _nagios, "prometheus": _prometheus}[form](results)
    return worst


def _text(results: Sequence[CheckResult]) -> None:
    for result in results:
        say(f"{result.status.name:<8}  {result.what}: {result.text}")


def _json(results: Sequence[CheckResult]) -> None:
    records = [
        {
            "object": result.what,
            "check": result.name,
            "status": result.status.name,
            "value": result.value,
            "warn": result.warn,
            "critical": result.critical,
            "text": result.text,
        }
        for result in results
    ]
    click.echo(json.dumps(records, indent=2))


def _nagios(results: Sequence[CheckResult]) -> None:
    """Print a line with the worst results first, then ``|`` and the performance data."""
    worst = max((result.status for result in results), default=CheckStatus.OK)
    bad = [result for result in results if result.status != CheckStatus.OK]
    texts = "; ".join(f"{result.what}: {result.text}" for result in bad or results[:1])
    data = " ".join(
        f"'{result.what} {result.name}'={_number(result.value)};{_number(result.warn)};"
        f"{_number(result.critical)}"
        for result in results
        if result.value is not None
    )
    line = f"PRAVEGA-SPARK {worst.name} - {texts}".replace("|", "/")
    say(f"{line} | {data}" if data else line)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}" if value < 1e6 else f"{value:.0f}"


def _prometheus(results: Sequence[CheckResult]) -> None:
    """Print the status of each check (0 OK to 3 unknown) and its value, as gauges."""
    for metric, help_text in (
        ("pravega_check_status", "0 OK, 1 warning, 2 critical, 3 unknown"),
        ("pravega_check_value", "The value that a check compares with its limits"),
    ):
        click.echo(f"# HELP {metric} {help_text}\n# TYPE {metric} gauge")
        for result in results:
            value = result.status if metric.endswith("status") else result.value
            if value is not None:
                what = result.what.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
                click.echo(f'{metric}{{object="{what}",check="{result.name}"}} {float(value):g}')
