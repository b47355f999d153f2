"""``pravega-spark bench``: what a user's own storage does and costs, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pravega_spark.cli.open_writes import stopped_by_signals
from pravega_spark.cli.output import (
    TABLE,
    duration,
    examples,
    output_option,
    say,
    show_table,
    show_value,
    size,
)
from pravega_spark.errors import without_credentials
from pravega_spark.values.units import (
    MIB,
    count_text,
    exact_size_text,
    parse_duration_ms,
    parse_size_bytes,
)

if TYPE_CHECKING:
    from pravega_spark.benchmark.folder import LeftFolder
    from pravega_spark.benchmark.meter import Bounds, Use
    from pravega_spark.benchmark.prices import Prices
    from pravega_spark.benchmark.run import Report
    from pravega_spark.benchmark.workloads import Measured

_HOUR = 3_600
_SECONDS = (5, 600)
_CALLS = (1_000, 1_000_000)
_BYTES = (16 * MIB, 16 * 1024 * MIB)
_WRITERS = (1, 256)
_EVENT_BYTES = (48, MIB)
_FEW = 100
"""Of fewer operations P99 is the slowest."""


def _between(allowed: tuple[int, int], text: Callable[[int], str]) -> str:
    return " to ".join(map(text, allowed))


def _count(value: int) -> str:
    return f"{value:,}"


@click.command(
    "bench",
    epilog=examples(
        "bench --root s3://bucket/trial",
        "bench --root /data/trial --seconds '2 min' --calls 50000 --prices prices.toml",
        "bench --root s3://bucket/trial --output json",
    ),
)
@click.option(
    "--root",
    "prefix",
    metavar="FOLDER|URL",
    required=True,
    help="Where to work: in a new folder below it. No root, no variable and no profile.",
)
@click.option(
    "--seconds",
    "length",
    default="30 s",
    show_default=True,
    metavar="TIME",
    help=f"Of the run without its clean-up: {_between(_SECONDS, duration)}.",
)
@click.option(
    "--calls",
    default=30_000,
    show_default=True,
    help=f"Storage calls, at most: {_between(_CALLS, _count)}.",
)
@click.option(
    "--bytes",
    "size_text",
    default="256 MiB",
    show_default=True,
    metavar="SIZE",
    help=f"Written and read, at most: {_between(_BYTES, exact_size_text)}.",
)
@click.option(
    "--writers",
    default=16,
    show_default=True,
    help=f"Of the last measurement: {_between(_WRITERS, _count)}.",
)
@click.option(
    "--event-size",
    default="100 bytes",
    show_default=True,
    metavar="SIZE",
    help=f"Of each event: {_between(_EVENT_BYTES, exact_size_text)}.",
)
@click.option(
    "--prices",
    "prices_file",
    type=click.Path(path_type=Path),
    help="A file of TOML with a table [storage]; see the page of the command line. A local "
    "storage bills no request unless this is given.",
)
@click.option("--remove", metavar="FOLDER", help="Only remove what a killed run has left.")
@output_option
def bench(
    prefix: str,
    length: str,
    calls: int,
    size_text: str,
    writers: int,
    event_size: str,
    prices_file: Path | None,
    remove: str | None,
    output: str,
) -> int:
    """Measure a storage: appends, pipelined writes, a follower, transactions, many writers.

    Shows p50 and p99, storage calls by kind, and what an hour of it would cost where calls are
    billed. Each measurement has an equal share of what is left of the bounds. Everything is
    written into a new folder below --root, read again and compared by a chain of hashes, and
    deleted at the end, also after Ctrl-C and SIGTERM. Time, calls and bytes are bounded. A --root
    that is a root of streams, or lies in one, is refused. The exit status is 1 if something was
    not read as it was written, or nothing could be measured.
    """
    from pravega_spark.benchmark.folder import Prefix, new_name
    from pravega_spark.benchmark.meter import Bounds, Meter
    from pravega_spark.benchmark.prices import Prices, read_prices
    from pravega_spark.benchmark.run import Plan, run

    seconds = parse_duration_ms("--seconds", length) / 1_000
    bounds = Bounds(
        _within("--seconds", seconds, _SECONDS, duration),
        _within("--calls", calls, _CALLS, str),
        _within("--bytes", parse_size_bytes("--bytes", size_text), _BYTES, exact_size_text),
    )
    event_bytes = parse_size_bytes("--event-size", event_size)
    plan = Plan(
        bounds,
        _within("--writers", writers, _WRITERS, str),
        _within("--event-size", event_bytes, _EVENT_BYTES, exact_size_text),
    )
    given = None if prices_file is None else read_prices(prices_file)
    meter = Meter(bounds)
    place = Prefix(prefix, meter, lambda text: say(text, err=True))
    prices = given or (Prices() if place.bills_requests else None)
    if remove is not None:
        found = place.remove(remove)
        if output == TABLE:
            say(f"Removed {found.url}: {count_text(found.objects, 'object')}.")
        else:
            show_value({"removed": found.url, "objects": found.objects}, output)
        return 0
    left = place.left()
    for one in left:
        say(_left_text(one, prefix), err=True)
    name = new_name()
    say(_bounds_text(place.url, name, bounds, prices), err=True)
    with stopped_by_signals():
        report = run(place, name, plan, meter, lambda text: say(f"  {text}", err=True))
    if output == TABLE:
        _show(report, prices)
    else:
        show_value(_record(report, prices, left), output)
    for line in _not_measured(report):
        say(line, err=True)
    is_measured = any(found.operations for found in report.measured)
    return 0 if is_measured and report.proof.is_good else 1


def _not_measured(report: Report) -> Iterable[str]:
    """Yield what no operation was measured of, and which bound to raise, a sentence each."""
    from pravega_spark.benchmark.run import READ_BACK

    ended: dict[str, list[str]] = {}
    if not report.measured:
        ended[report.stopped_by or "seconds"] = ["anything"]
    for found in report.measured:
        if found.name != READ_BACK and not found.operations:
            ended.setdefault(found.ended_by or "seconds", []).append(found.name)
    limits = {
        "seconds": (duration(report.bounds.seconds), duration(_SECONDS[1])),
        "calls": (f"{report.bounds.calls:,}", f"{_CALLS[1]:,}"),
        "bytes": (size(report.bounds.size_bytes), exact_size_text(_BYTES[1])),
    }
    for bound, names in ended.items():
        now, most = limits[bound]
        yield (
            f"Not measured: {', '.join(names)}. The share of --{bound} ({now} in all) ended before "
            f"the first operation did: give more, up to {most}."
        )


def _within(what: str, value: Any, allowed: tuple[int, int], text: Any) -> Any:
    least, most = allowed
    if not least <= value <= most:
        raise click.UsageError(
            f"{what} must be between {text(least)} and {text(most)}, got {text(value)}."
        )
    return value


def _left_text(left: LeftFolder, prefix: str) -> str:
    import shlex

    root = shlex.quote(without_credentials(prefix))
    command = f"pravega-spark bench --root {root} --remove {left.name}"
    when = "If it was killed, remove it then" if left.is_under_way else "To remove it"
    return f"{left} {when}: {command}"


def _bounds_text(url: str, name: str, bounds: Bounds, prices: Prices | None) -> str:
    most, named = "", "A local storage bills no request."
    if prices is not None:
        dearest = max(prices.requests({kind: bounds.calls}) for kind in ("PUT", "GET", "LIST"))
        most, named = f", {_dollars(dearest)} at most", f"Prices: {prices.name}."
    where = without_credentials(url if url.endswith("/") else f"{url}/")
    return (
        f"Works in {where}{name} alone, and removes it. At most {duration(bounds.seconds)}, then "
        f"the clean-up; {bounds.calls:,} calls with those of the clean-up{most}; "
        f"{size(bounds.size_bytes)}. {named}"
    )


def _dollars(value: float) -> str:
    return f"${value:,.2f}" if value >= 0.995 or not value else f"${value:.2g}"


# ---------------------------------------------------------------------------------------- results

_HEADINGS = (
    "WORKLOAD",
    "OPERATIONS",
    "P50",
    "P99",
    "EVENTS/S",
    "PUT",
    "GET",
    "LIST",
    "DELETE",
)


def _show(report: Report, prices: Prices | None) -> None:
    headings = _HEADINGS if prices is None else (*_HEADINGS, "$/HOUR")
    show_table(headings, [_row(found, prices) for found in report.measured])
    text = "PUT, GET (with HEAD), LIST and DELETE are calls an operation; of `read back` an event."
    if prices is None:
        say(f"{text} A local storage bills none of them, so an hour costs nothing.")
    else:
        say(f"{text} $/HOUR is at this pace, without what is stored.")
    for found in report.measured:
        if found.ended_by in ("calls", "bytes"):
            say(f"{found.name} ended by its share of --{found.ended_by}.")
    few = [found.name for found in report.measured if 0 < found.operations < _FEW]
    if few:
        say(f"Fewer than {_FEW} operations of {', '.join(few)}: their P99 is the slowest one.")
    proof, use = report.proof, report.use
    if proof.breaks:
        for text in proof.breaks:
            say(f"WRONG: {text}")
    elif proof.is_complete:
        say(
            f"Read {count_text(proof.events, 'event')} again: each is the one that was written, "
            f"and none of the {proof.acknowledged:,} acknowledged ones is missing."
        )
    else:
        say(
            f"Read {proof.events:,} of {count_text(proof.acknowledged, 'acknowledged event')} "
            "again before a bound was reached: each is the one that was written."
        )
    if report.stopped_by is not None:
        say(f"Stopped by --{report.stopped_by}.")
    calls = ", ".join(f"{count:,} {kind}" for kind, count in _kinds(use.calls).items())
    cost = _cost(use, prices)
    say(
        f"This run took {duration(report.seconds)}, {calls}, {size(use.written_bytes)} written, "
        f"{size(use.read_bytes)} read{'' if cost is None else f': {_dollars(cost)}'}. Its folder "
        "is removed."
    )


def _row(found: Measured, prices: Prices | None) -> tuple[object, ...]:
    an_hour = _an_hour(found, prices)
    per = found.operations or found.events
    calls = _kinds(found.use.calls)
    return (
        found.name,
        f"{found.operations:,}",
        _ms(found.quantile_ms(0.5)),
        _ms(found.quantile_ms(0.99)),
        f"{found.events / found.seconds:,.0f}" if found.seconds else None,
        *(_each(count / per) if per else None for count in calls.values()),
        *(() if an_hour is None else (_dollars(an_hour),)),
    )


def _each(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 or not value else f"{value:.2g}"


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"


def _kinds(calls: Mapping[str, int]) -> dict[str, int]:
    return {kind: calls.get(kind, 0) for kind in ("PUT", "GET", "LIST", "DELETE")}


def _cost(use: Use, prices: Prices | None) -> float | None:
    """Return dollars, None where nothing is billed."""
    if prices is None:
        return None
    return prices.requests(use.calls) + prices.transfer(use.written_bytes, use.read_bytes)


def _an_hour(found: Measured, prices: Prices | None) -> float | None:
    cost = _cost(found.use, prices)
    return cost if cost is None else cost * _HOUR / found.seconds if found.seconds else 0.0


def _to_keep(found: Measured, prices: Prices | None) -> float | None:
    """Return the dollars of keeping for a month what an hour writes."""
    if prices is None:
        return None
    written = found.use.written_bytes
    return prices.a_month(written * _HOUR / found.seconds) if found.seconds else 0.0


def _record(report: Report, prices: Prices | None, left: list[LeftFolder]) -> dict[str, Any]:
    bounds, proof = report.bounds, report.proof
    return {
        "folder": without_credentials(report.url),
        "prices": None if prices is None else prices.name,
        "bounds": {
            "seconds": bounds.seconds,
            "calls": bounds.calls,
            "size_bytes": bounds.size_bytes,
        },
        "stopped_by": report.stopped_by,
        "workloads": [_workload(found, prices) for found in report.measured],
        "proof": {
            "events": proof.events,
            "acknowledged": proof.acknowledged,
            "is_complete": proof.is_complete,
            "is_good": proof.is_good,
            "breaks": proof.breaks,
        },
        "set_up_calls": _kinds(report.set_up.calls),
        "used": {
            "seconds": report.seconds,
            "calls": _kinds(report.use.calls),
            "written_bytes": report.use.written_bytes,
            "read_bytes": report.use.read_bytes,
            "dollars": _cost(report.use, prices),
        },
        "removed_objects": report.removed,
        "left_by_others": [
            {"folder": one.name, "objects": one.objects, "is_under_way": one.is_under_way}
            for one in left
        ],
    }


def _workload(found: Measured, prices: Prices | None) -> dict[str, Any]:
    return {
        "name": found.name,
        "operation": found.what,
        "operations": found.operations,
        "events": found.events,
        "seconds": found.seconds,
        "p50_ms": found.quantile_ms(0.5),
        "p99_ms": found.quantile_ms(0.99),
        "calls": _kinds(found.use.calls),
        "written_bytes": found.use.written_bytes,
        "read_bytes": found.use.read_bytes,
        "ended_by": found.ended_by,
        "dollars_an_hour": _an_hour(found, prices),
        "dollars_a_month_to_keep_an_hour": _to_keep(found, prices),
    }
