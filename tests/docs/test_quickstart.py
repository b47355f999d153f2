"""README begins the one quick start, docs/quickstart.md, which lists the extras of the package."""

from __future__ import annotations

import re

from tests.harness.page_examples import REPOSITORY, examples_of

PAGE = (REPOSITORY / "docs/quickstart.md").read_text(encoding="utf-8")
FOR_CONTRIBUTORS = {"test", "lint", "docs", "bench", "all"}


def test_each_python_block_of_the_readme_is_one_of_the_quick_start() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    shown = [example.code for example in examples_of(readme) if example.language == "python"]
    assert len(shown) == 2
    assert [code for code in shown if code not in PAGE] == []


def test_quick_start_lists_every_extra() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    _, _, after = project.partition("[project.optional-dependencies]\n")
    extras = set(re.findall(r"^(\w+) = \[", after.partition("\n\n")[0], re.MULTILINE))
    _, _, table = PAGE.partition("| extra | what it adds |\n| --- | --- |\n")
    rows = [row.split("|")[1] for row in table.partition("\n\n")[0].splitlines()]
    assert set(re.findall(r"`(\w+)`", "".join(rows))) == extras - FOR_CONTRIBUTORS
