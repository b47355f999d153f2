"""docs/adr/README.md and the decisions that it lists agree."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = Path(__file__).parents[2] / "docs/adr"
PAGES = sorted(FOLDER.glob("0*.md"))
STATUS = re.compile(r"Status: (.*), (\d{4}-\d\d-\d\d)((?:; .*)?)")
LINK = re.compile(r"\[(?:ADR )?\d+\]\((\d{4})-[^)]*\)")
RELATIONS = ("accepted", "amended by", "amends", "superseded", "supersedes")


class Entry(NamedTuple):
    """A decision as its page, or the index, has it."""

    number: int
    file: str
    title: str
    date: str
    state: str
    others: tuple[int, ...]
    """The decisions that its status names."""


def of_page(path: Path) -> Entry:
    title, _, status, blank, *_ = path.read_text().splitlines()
    number, _, name = title.removeprefix("# ").partition(". ")
    found = STATUS.fullmatch(status)
    assert found is not None, f"{path.name}: {status}"
    assert blank == ""
    others = tuple(int(number) for number in LINK.findall(found[3]))
    return Entry(int(number), path.name, name, found[2], found[1], others)


def of_index() -> list[Entry]:
    found = []
    for line in (FOLDER / "README.md").read_text().splitlines():
        if line.startswith("| ["):
            link, title, day, status, decision = (
                cell.strip() for cell in line.strip("|").split("|")
            )
            number, file = re.fullmatch(r"\[(\d+)\]\((.*)\)", link).groups()  # type: ignore[union-attr]
            state, _, relation = status.partition("; ")
            others = re.findall(r"\b(\d+)\b", relation.replace("512 rows", ""))
            assert decision
            entry = Entry(int(number), file, title, day, state, tuple(map(int, others)))
            found.append(entry)
    return found


def test_index_lists_every_decision_as_its_page_has_it() -> None:
    assert of_index() == [of_page(path) for path in PAGES]


def test_numbers_go_on_without_a_gap_and_are_those_of_the_files() -> None:
    assert [of_page(path).number for path in PAGES] == list(range(1, len(PAGES) + 1))
    assert [int(path.name[:4]) for path in PAGES] == list(range(1, len(PAGES) + 1))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name[:4])
def test_page_has_a_status_that_is_known_and_says_what_was_rejected(path: Path) -> None:
    entry = of_page(path)
    assert entry.state == "accepted"
    date.fromisoformat(entry.date)
    relation = STATUS.fullmatch(path.read_text().splitlines()[2])[3]  # type: ignore[index]
    assert not relation or relation.removeprefix("; ").startswith(RELATIONS)
    assert "**Decision" in path.read_text()
    assert "**Rejected.**" in path.read_text()
    named = re.findall(r"\]\((?!http)([^)#]*)\)", path.read_text())
    assert [link for link in named if not (FOLDER / link).exists()] == []


def test_what_one_decision_changes_of_another_is_said_on_both_pages() -> None:
    others = {entry.number: entry.others for entry in map(of_page, PAGES)}
    assert [pair for pair in others.items() for n in pair[1] if pair[0] not in others[n]] == []
