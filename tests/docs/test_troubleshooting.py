"""docs/troubleshooting.md has an entry for every error, with messages that the code raises."""

from __future__ import annotations

import re

import pytest

from pravega_spark.errors import PravegaSparkError
from tests.harness.error_messages import error_classes, messages
from tests.harness.page_examples import REPOSITORY

PAGE = (REPOSITORY / "docs/troubleshooting.md").read_text(encoding="utf-8")
NOT_OURS = "Not an error of this package"
ENTRY = re.compile(r"^#{2,3} ([^\n]+)\n(.*?)(?=^#{2,3} |\Z)", re.MULTILINE | re.DOTALL)
ENTRIES = dict(ENTRY.findall(PAGE))
ITEM = re.compile(r"^- `([^`\n]+)`: \S", re.MULTILINE)


def test_every_error_has_an_entry_in_the_order_of_the_tree() -> None:
    def walk(branch: type[PravegaSparkError]) -> list[str]:
        below = [name for found in branch.__subclasses__() for name in walk(found)]
        return [branch.__name__, *below]

    known = error_classes()
    assert [name for name in ENTRIES if name != NOT_OURS] == [
        name for name in walk(PravegaSparkError) if name in known
    ]


@pytest.mark.medium
@pytest.mark.parametrize("name", error_classes())
def test_messages_of_an_entry_are_those_of_the_code(name: str) -> None:
    raised = messages().get(name, [])
    shown = ITEM.findall(ENTRIES[name])
    lines = [line for line in ENTRIES[name].splitlines() if line.startswith(("- ", "|"))]
    assert len(shown) == len(lines), "a line is no message with its cause or way on"
    written = [text for text in raised if text.strip("… .,:;()")]
    assert bool(shown) == bool(written), f"{name}: {written}"
    assert [text for text in shown if not any(text in message for message in raised)] == []


def test_reference_to_an_error_elsewhere_in_the_tables_is_complete() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert all(line.count("|") == 4 for line in rows), "a cell contains a bar"
