"""What long runs came to, kept in a file, and the first table of docs/reliability.md.

``python -m tests.soak.records`` writes the table again from the records.
"""

from __future__ import annotations

import json
import subprocess
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean

from tests.harness.page_examples import REPOSITORY

KEPT = Path(__file__).parent / "records.json"
PAGE = REPOSITORY / "docs/reliability.md"
_SHOWN = 120
"""Characters of what was wrong that the page has."""
BEGIN, END = "<!-- records: begin -->\n", "<!-- records: end -->\n"


class NotKept(Exception):
    """A run cannot be recorded; the message says why."""


@dataclass(frozen=True)
class Record:
    """One run: of what, when, on which commit, how long, what was done, and what was wrong."""

    what: str
    """``processes on a local disk``, ``processes on S3`` or ``simulator``."""
    day: str
    commit: str
    hours: float
    """Of a clock on the wall; of the simulator's for the simulator."""
    done: dict[str, int]
    """Counts: rounds or seeds, calls, events, transactions, and by ``judged by X`` histories."""
    faults: dict[str, int] = field(default_factory=dict)
    """How many of each kind."""
    broken: list[str] = field(default_factory=list)
    """What was wrong, each in one line."""
    used: dict[str, list[float]] = field(default_factory=dict)
    """Files, and memory, descriptors and threads of processes at rest, over time."""


def clean_commit() -> str:
    """Return the commit that is checked out; raise NotKept if something else differs from it."""
    mine = {str(path.relative_to(REPOSITORY)) for path in (KEPT, PAGE)}
    changed = [line[3:] for line in _git("status", "--porcelain").splitlines()]
    if others := [path for path in changed if path not in mine]:
        raise NotKept(f"the tree differs from its commit: {', '.join(others[:5])}")
    return _git("rev-parse", "--short=8", "HEAD").strip()


def parsed(parser: ArgumentParser) -> tuple[Namespace, str]:
    """Parse the command line, with an option ``--keep``; return also the commit that a record is
    of, or an empty text if none is kept."""
    parser.add_argument("--keep", action="store_true", help="record the run for the page")
    given = parser.parse_args()
    try:
        return given, clean_commit() if given.keep else ""
    except NotKept as why:
        parser.error(str(why))


def _git(*words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout


def thinned(values: Sequence[float], most: int = 16) -> list[float]:
    """Return at most so many means of as many stretches of a series."""
    count = min(most, len(values))
    ends = [round(number * len(values) / count) for number in range(count + 1)]
    return [round(mean(values[a:b]), 1) for a, b in pairwise(ends)]


def today() -> str:
    """Return the date in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def load() -> list[Record]:
    """Return the records that are kept."""
    return [Record(**fields) for fields in json.loads(KEPT.read_text(encoding="utf-8"))]


def keep(record: Record) -> None:
    """Add a record, and write the page again."""
    records = [*load(), record]
    lines = ",\n".join(json.dumps(asdict(each)) for each in records)
    KEPT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    write_page()


def write_page() -> None:
    """Write the page's table from the records."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), load()), encoding="utf-8")


def written(page: str, records: Sequence[Record]) -> str:
    """Return a page with the table of these records between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, "the page has no place for the records"
    return f"{before}{begin}{''.join(_rows(records))}{end}{after}"


def _rows(records: Sequence[Record]) -> Iterable[str]:
    yield "| what ran | hours | what it did | faults | what was wrong | at rest | last run |\n"
    yield "| --- | --- | --- | --- | --- | --- | --- |\n"
    for what in dict.fromkeys(record.what for record in records):
        mine = [record for record in records if record.what == what]
        last = mine[-1]
        broken = [each for record in mine for each in record.broken]
        cells = (
            what,
            f"{sum(record.hours for record in mine):.1f}",
            _counted(record.done for record in mine),
            _counted(record.faults for record in mine),
            "; ".join(map(_short, broken)) if broken else "nothing",
            "; ".join(_quarters(last.used)) or ("too few rounds" if last.used else "not measured"),
            f"{last.day}, {last.commit}",
        )
        yield f"| {' | '.join(cells)} |\n"


def _short(broken: str) -> str:
    """Return what was wrong without the calls that show it, which the record has."""
    return broken if len(broken) <= _SHOWN else f"{broken[:_SHOWN]}..."


def _quarters(used: dict[str, list[float]]) -> Iterable[str]:
    """Say how much was used in the second quarter, and in the last one."""
    for name, values in used.items():
        quarter = len(values) // 4
        if quarter:
            second, last = mean(values[quarter : 2 * quarter]), mean(values[-quarter:])
            yield f"{name}: {second:,.0f}, then {last:,.0f}"


def _counted(counts: Iterable[dict[str, int]]) -> str:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return ", ".join(f"{name}: {count:,}" for name, count in total.items())


if __name__ == "__main__":
    write_page()
