"""``pravega-spark check``: exit status 0, 1 or 2 for monitoring."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from pravega_spark.cli.lazy_commands import Group
from pravega_spark.cli.output import say
from pravega_spark.cli.root_option import OpenedRoot, check_begun, open_root, root_option
from pravega_spark.engine.store import Store
from pravega_spark.errors import PravegaSparkError
from pravega_spark.values.units import (
    age_text,
    count_text,
    parse_duration_ms,
    parse_size_bytes,
    size_text,
    time_text,
)

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
        return cls(
            what=what,
            name=name,
            status=status,
            value=value,
            text=text,
            warn=warn,
            critical=critical,
        )


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


_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group("check", cls=Group)
def check() -> None:
    """Checks for monitoring: 0 is OK, 1 a warning, 2 critical, 3 unknown."""


def _format_option(command: _Command) -> _Command:
    return click.option(
        "--format", "form", type=click.Choice(FORMATS), default="text", show_default=True
    )(command)


def _checked(
    names: Sequence[str],
    root: str | None,
    check_one: Callable[[OpenedRoot, str], Iterator[CheckResult]],
    form: str,
) -> int:
    """Check all objects; one that cannot be looked at is UNKNOWN, with the reason."""
    results: list[CheckResult] = []
    for name in names:
        try:
            results += check_one(open_root(root), name)
        except (PravegaSparkError, OSError) as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            results.append(CheckResult(name, "read", CheckStatus.UNKNOWN, None, text))
    return int(show_results(results, form))


def _seconds(what: str, value: str | None) -> float | None:
    return None if value is None else parse_duration_ms(what, value) / 1_000


# ----------------------------------------------------------------------------------------- group


@check.command()
@click.argument("groups", nargs=-1, required=True, metavar="SCOPE/GROUP...")
@click.option("--lag-warn", type=int, metavar="EVENTS", help="Warn above this lag.")
@click.option("--lag-critical", type=int, metavar="EVENTS")
@click.option("--time-warn", metavar="TIME", help="Warn if the oldest unread event is older.")
@click.option("--time-critical", metavar="TIME")
@click.option("--members-critical", type=int, metavar="N", help="Critical with fewer readers.")
@_format_option
@root_option
def group(
    groups: Sequence[str],
    lag_warn: int | None,
    lag_critical: int | None,
    time_warn: str | None,
    time_critical: str | None,
    members_critical: int | None,
    form: str,
    root: str | None,
) -> int:
    """Check the lag and the readers of each reader group.

    Example: pravega-spark check group nyc/dashboards --lag-warn 10000 --lag-critical 100000
    """
    warn = _seconds("--time-warn", time_warn)
    critical = _seconds("--time-critical", time_critical)

    def check_group(opened: OpenedRoot, name: str) -> Iterator[CheckResult]:
        events, size_bytes, oldest, members = _group_lag(opened.store, name)
        text = f"lag {count_text(events, 'event')} ({size_text(size_bytes)})"
        yield CheckResult.limited(
            name, "lag_events", events, text, warn=lag_warn, critical=lag_critical
        )
        if oldest < 0:
            text = f"oldest unread event {age_text(oldest)}: its writer's clock was ahead"
            status = CheckStatus.OK if warn is None and critical is None else CheckStatus.WARNING
            yield CheckResult(
                name, "lag_seconds", status, oldest, text, warn=warn, critical=critical
            )
        else:
            text = f"oldest unread event {time_text(oldest)} old"
            yield CheckResult.limited(
                name, "lag_seconds", oldest, text, warn=warn, critical=critical
            )
        if members_critical is not None:
            status = CheckStatus.CRITICAL if members < members_critical else CheckStatus.OK
            text = f"{members} readers, at least {members_critical} wanted"
            yield CheckResult(
                name, "members", status, members, text, critical=float(members_critical)
            )

    return _checked(groups, root, check_group, form)


def _group_lag(store: Store, name: str) -> tuple[int, int, float, int]:
    """Return events, bytes and seconds behind, and the number of readers."""
    from functools import partial

    from pravega_spark.engine.stream.backlog import oldest_seconds
    from pravega_spark.engine.stream.stream_log import open_stream
    from pravega_spark.reader_groups.description import (
        get_group,
        segment_positions,
        with_heartbeats,
    )

    state = with_heartbeats(store, get_group(store, name).state)
    found = [
        position
        for stream in sorted(state.lives)
        for position in segment_positions(state, stream, partial(open_stream, store))
        if position.events is not None
    ]
    return (
        sum(position.events or 0 for position in found),
        sum(position.size_bytes or 0 for position in found),
        oldest_seconds(position.seconds or 0.0 for position in found),
        len(state.readers),
    )


# ---------------------------------------------------------------------------------------- stream


@check.command()
@click.argument("streams", nargs=-1, required=True, metavar="SCOPE/STREAM...")
@click.option("--silent-warn", metavar="TIME", help="Warn if the last commit is older.")
@click.option("--silent-critical", metavar="TIME")
@click.option("--size-warn", metavar="SIZE", help="Warn if more bytes are stored.")
@click.option("--size-critical", metavar="SIZE")
@click.option("--files-warn", type=int, metavar="N", help="Warn if it has more files: compact it.")
@click.option("--files-critical", type=int, metavar="N")
@_format_option
@root_option
def stream(
    streams: Sequence[str],
    silent_warn: str | None,
    silent_critical: str | None,
    size_warn: str | None,
    size_critical: str | None,
    files_warn: int | None,
    files_critical: int | None,
    form: str,
    root: str | None,
) -> int:
    """Check each stream: its last commit, size, files, and maintenance that is overdue.

    Example: pravega-spark check stream nyc/flights --silent-critical 1h --format nagios
    """
    silent = _seconds("--silent-warn", silent_warn), _seconds("--silent-critical", silent_critical)
    sizes = [
        None if value is None else parse_size_bytes("the size", value)
        for value in (size_warn, size_critical)
    ]

    def check_stream(opened: OpenedRoot, name: str) -> Iterator[CheckResult]:
        from pravega_spark.engine.stream.overdue_maintenance import overdue_maintenance
        from pravega_spark.engine.stream.stream_log import (
            clock_ahead_seconds,
            committed_ms,
            open_stream,
        )

        check_begun(opened.store, [name])
        info, log = opened.manager.stream_info(name), open_stream(opened.store, name)
        view = log.view()
        age = max(0.0, (log.runtime.now_ms() - committed_ms(log, view)) / 1_000)
        text = f"{info.state}, last commit {time_text(age)} ago"
        yield CheckResult.limited(name, "silent_seconds", age, text, *silent)
        ahead = clock_ahead_seconds(log, view)
        if ahead:
            text = f"the log's time is {age_text(-ahead)}: a host that committed had a wrong clock"
            yield CheckResult(name, "clock_ahead_seconds", CheckStatus.WARNING, ahead, text)
        size = info.files.size_bytes
        yield CheckResult.limited(name, "size_bytes", size, size_text(size), *sizes)
        files = info.files.files
        yield CheckResult.limited(
            name, "files", files, count_text(files, "file"), files_warn, files_critical
        )
        for kind, text in overdue_maintenance(log, view).items():
            yield CheckResult(name, f"maintenance_{kind.value}", CheckStatus.WARNING, None, text)

    return _checked(streams, root, check_stream, form)
