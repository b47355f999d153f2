"""What caught each fault, kept in a file, and the part of docs/reliability.md that shows it.

``python -m tests.mutants.record`` writes the page again from the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.mutants.faults import FAULTS, NOT_SHOWN, Fault
from tests.mutants.simulated import Shown
from tests.soak.records import today

KEPT = Path(__file__).with_name("record.json")
PAGE = Path(__file__).resolve().parents[2] / "docs/reliability.md"
BEGIN, END = "<!-- faults: begin -->\n", "<!-- faults: end -->\n"
SEEDS = 300
"""The first so many seeds of the simulator are those of the record."""
MOST = 30
"""Of them so many are played with a fault at most: those that reach it most often."""
_REASONS = {promise: why for why, promises in NOT_SHOWN.items() for promise in promises}
Rows = dict[str, dict[str, Any]]
"""By the promise of a fault what the simulator and what its tests said of it."""


def may_show(fault: Fault) -> bool:
    """Return whether a history of the simulator may show a fault."""
    return not fault.equal and fault.promise not in _REASONS


def kept() -> Rows:
    """Return the record."""
    return dict(json.loads(KEPT.read_text(encoding="utf-8"))) if KEPT.exists() else {}


def lacking(faults: Sequence[Fault], what: str) -> list[Fault]:
    """Return those of which the record does not say what the simulator, or the tests, found."""
    rows = kept()
    return [
        fault
        for fault in faults
        if what not in rows.get(fault.promise, {}) and (what == "tests" or may_show(fault))
    ]


def keep_shown(shown: Shown) -> None:
    """Keep what the simulator shows of a fault."""
    found: dict[str, Any] = {"verdict": shown.verdict, "played": shown.played}
    found["reaching"] = shown.reaching
    if shown.seed is not None:
        found |= {"seed": shown.seed, "broken": shown.promise}
    _keep(shown.fault, "simulator", found)


def keep_tests(fault: Fault, verdict: str, by: str) -> None:
    """Keep which test caught a fault."""
    _keep(fault, "tests", {"verdict": verdict, "by": by})


def _keep(fault: Fault, what: str, found: Mapping[str, Any]) -> None:
    rows = kept()
    rows.setdefault(fault.promise, {})[what] = {**found, "day": today()}
    order = [one.promise for one in FAULTS]
    lines = [
        f"{json.dumps(promise)}: {json.dumps(rows[promise], sort_keys=True)}"
        for promise in sorted(rows, key=lambda one: order.index(one) if one in order else -1)
        if promise in order
    ]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def write_page() -> None:
    """Write the page's part from the record."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), kept()), encoding="utf-8")


def written(page: str, rows: Rows) -> str:
    """Return a page with the part between its marks as the record has it."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, "the page has no place for the faults"
    return f"{before}{begin}{''.join(_part(rows))}{end}{after}"


def _part(rows: Rows) -> Iterator[str]:
    shown = [fault for fault in FAULTS if may_show(fault)]
    kept = [rows.get(fault.promise, {}).get("simulator") for fault in shown]
    found = [one for one in kept if one is not None]
    caught = sum(one["verdict"] == "caught" for one in found)
    days = {one["day"] for one in found}
    left = len(shown) - len(found)
    yield (
        f"Of {len(FAULTS)} faults, {len(shown)} may show in a history. The simulator catches "
        f"**{caught} of these {len(shown)}** by the first {SEEDS} seeds ({max(days, default='')}); "
        f"with each fault at most {MOST} were played, those that reach it most often."
        f"{f' {left} of the faults were not played yet.' if left else ''}\n\n"
    )
    yield from _table("the simulator", shown, rows, _simulated)
    yield "\nNo history shows these, for the reason that stands beside each:\n\n"
    hidden = [fault for fault in FAULTS if not may_show(fault)]
    yield from _table("why not", hidden, rows, lambda row, fault: _REASONS[fault.promise])


def _table(
    heading: str,
    faults: Sequence[Fault],
    rows: Rows,
    told: Callable[[Mapping[str, Any], Fault], str],
) -> Iterator[str]:
    yield f"| the fault breaks that | {heading} | its tests |\n| --- | --- | --- |\n"
    for fault in faults:
        row = rows.get(fault.promise, {})
        tests = [row["tests"]["by"]] if "tests" in row else fault.tests
        named = ", ".join(f"`tests/{test.removeprefix('tests/')}`" for test in tests)
        yield f"| {fault.promise} | {told(row, fault)} | {named} |\n"


def _simulated(row: Mapping[str, Any], fault: Fault) -> str:
    found = row.get("simulator")
    if found is None:
        return "not played yet"
    if found["verdict"] == "caught":
        return f"seed {found['seed']}, played as number {found['played']}: {found['broken']}"
    if found["verdict"] in ("unreached", "absent"):
        return "**not caught**: no seed reaches it"
    which = f"{found['played']} of {found['reaching']} seeds that reach it"
    error = "; some end in an error of Python, which does not count"
    return f"**not caught** by {which}{error if found['verdict'] == 'error' else ''}"


if __name__ == "__main__":
    write_page()
