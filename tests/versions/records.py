"""Records of what passed with other versions, and the tables of docs/compatibility.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.harness.page_examples import REPOSITORY

KEPT = Path(__file__).parent / "records.json"
PAGE = REPOSITORY / "docs/compatibility.md"


@dataclass(frozen=True)
class Record:
    """A run in which every test passed: of which part, where, when, on which commit.

    ``versions`` has a version by package, and those of Python and Java. ``passed`` has the number
    of tests by area.
    """

    name: str
    part: str
    day: str
    commit: str
    versions: dict[str, str]
    passed: dict[str, int]


def load(path: Path | None = None) -> list[Record]:
    """Return the records that are kept."""
    return [Record(**fields) for fields in json.loads((path or KEPT).read_text(encoding="utf-8"))]


def take(record: Record) -> None:
    """Keep a record in place of that of an earlier run, and write the page again."""
    others = [kept for kept in load() if (kept.name, kept.part) != (record.name, record.part)]
    records = sorted([*others, record], key=lambda each: (each.part, _key(each.name)))
    lines = ",\n".join(json.dumps(asdict(each)) for each in records)
    KEPT.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), records), encoding="utf-8")


def _key(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in name.split(".")]


def written(page: str, records: Sequence[Record]) -> str:
    """Return the page with the tables of these records between its marks."""
    for part, columns in _COLUMNS.items():
        before, mark, rest = page.partition(f"<!-- records: {part} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert end, f"the page has no place for {part}"
        rows = _rows(columns, [record for record in records if record.part == part])
        page = f"{before}{mark}{''.join(rows)}{end}{after}"
    return page


_COLUMNS = {
    "spark": {
        "Spark": "pyspark",
        "Delta": "delta",
        "Python": "python",
        "Java": "java",
        "PyArrow": "pyarrow",
        "NumPy": "numpy",
    },
    "light": {
        "Python": "python",
        "PyArrow": "pyarrow",
        "NumPy": "numpy",
        "fsspec": "fsspec",
        "click": "click",
    },
}
"""By part: the columns of its table, and which version they have."""


def _rows(columns: dict[str, str], records: Iterable[Record]) -> Iterable[str]:
    yield f"| {' | '.join(columns)} | passed |\n| {' | '.join('---' for _ in columns)} | --- |\n"
    for record in records:
        cells = [record.versions.get(name) or "none" for name in columns.values()]
        passed = f"{sum(record.passed.values())} on {record.day} ({record.commit})"
        yield f"| {' | '.join(cells)} | {passed} |\n"
