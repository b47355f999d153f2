"""The part of docs/benchmarks.md about peers, made from the run in bench/peers.json."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from bench.harness.marks import place
from bench.harness.report import number
from bench.peers import picture, record
from bench.peers.measures import BY_NAME, MEASURES
from bench.peers.record import Record
from bench.peers.runner import Result

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "benchmarks.md"
PICTURE = DOCS / "pictures/peers.svg"
MARK = "peers"


def write() -> None:
    """Write the page's part and the picture from the kept run."""
    kept = record.load(record.KEPT)
    assert kept is not None, f"{record.KEPT} is missing: no run was kept"
    PICTURE.write_text(picture.drawn(kept), encoding="utf-8")
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8"), kept), encoding="utf-8")


def placed(page: str, run: Record) -> str:
    """Return the page with the part that a run makes."""
    return place(page, MARK, "".join(f"{line}\n" for line in _lines(run)))


def table(run: Record) -> str:
    """Return the figures: a row for each, a column for each peer."""
    names = [peer.name for peer in run.peers if peer.name not in run.absent]
    by_place = {(r.measure, r.figure, r.peer): r for r in run.results}
    measured = {result.measure for result in run.results}
    lines = [f"| | {' | '.join(names)} |", f"| ---{' | ---' * len(names)} |"]
    for measure in MEASURES:
        if measure.name not in measured:
            continue
        for figure, shown in measure.shown.items():
            cells = [_cell(by_place[measure.name, figure, name]) for name in names]
            lines.append(f"| {shown.title}, {shown.unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(result: Result) -> str:
    if result.value is None:
        return "failed" if result.is_failure else "-"
    if result.low == result.high:
        return number(result.value)
    return f"{number(result.value)} ({number(result.low)} to {number(result.high)})"


def _lines(run: Record) -> Iterator[str]:
    about = run.about
    if about.size == "small":
        yield (
            "**This run was a small one, which only shows that the command works: its figures are "
            "nothing to judge by.**"
        )
        yield ""
    yield (
        f"Measured {about.day} at commit {about.commit}, in {about.minutes:.0f} minutes, with "
        f"{about.rows:,} events to read, on {about.machine}. The machine's load was "
        f"{about.load_before:.1f} before and {about.load_after:.1f} after. A figure is the "
        "median of the rounds, with the lowest and the highest."
    )
    yield ""
    yield f"![Peers side by side, a panel for each measure](pictures/{PICTURE.name})"
    yield ""
    yield (
        "Each dot is a median, on a logarithmic scale; its line goes from the lowest round to the "
        "highest."
    )
    yield ""
    yield table(run)
    yield ""
    yield from _peers(run)
    yield ""
    yield from _missing(run)


def _peers(run: Record) -> Iterator[str]:
    yield "What an acknowledgement means, and what to keep in mind:"
    yield ""
    for peer in run.peers:
        if peer.name not in run.absent:
            caveats = "".join(f" {caveat}" for caveat in peer.caveats)
            yield f"- **{peer.name}** ({peer.versions}): {peer.acknowledged}.{caveats}"


def _missing(run: Record) -> Iterator[str]:
    yield "What is not there, and why:"
    yield ""
    for name, reason in run.absent.items():
        yield f"- **{name}**: {reason}."
    reasons = [r for r in run.results if r.reason]
    order = [peer.name for peer in run.peers]
    reasons.sort(key=lambda r: (order.index(r.peer), r.reason))
    for (peer, reason), found in groupby(reasons, lambda r: (r.peer, r.reason)):
        measures = dict.fromkeys(_title(result.measure) for result in found)
        yield f"- **{peer}**, {'; '.join(measures)}: {reason}."


def _title(measure: str) -> str:
    """Return the name of a measure: that of its first figure, without its end."""
    first = next(iter(BY_NAME[measure].shown.values())).title
    return first.removesuffix(", p50").removesuffix(", delta-rs")
