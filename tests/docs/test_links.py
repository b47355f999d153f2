"""Every link, anchor, path and module that a page names exists."""

from __future__ import annotations

import contextlib
import importlib
import re
from pathlib import Path

import pytest

import pravega_spark

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
TITLE = re.compile(r"^#+ (.*)$", re.MULTILINE)
BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"`(pravega_spark(?:\.\w+)+)")
LOGGER = re.compile(r"`((?:engine|reader_groups|txn)\.[a-z_.]+)`")
PATH = re.compile(
    r"`((?:(?:tests|docs|jobs|examples|notebooks|bench|pravega_spark)/[\w./-]*)|(?:[a-z_]+/)+\w+\.py)`"
)


def _prose(path: Path) -> str:
    return BLOCK.sub("", path.read_text())


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's titles, as GitHub makes them."""
    titles = [re.sub(r"[^\w\- ]", "", title.lower()) for title in TITLE.findall(_prose(path))]
    names = [title.replace(" ", "-") for title in titles]
    repeated = {f"{name}-{n}" for name in names for n in range(1, names.count(name))}
    return repeated | set(names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_everything_that_the_page_names_exists(page: Path) -> None:
    missing = []
    for link, anchor in LINK.findall(_prose(page)):
        target = page if not link else (page.parent / link).resolve()
        if not target.exists():
            missing.append(link)
        elif anchor and anchor not in anchors(target):
            missing.append(f"{link}#{anchor}")
    folders = REPOSITORY, REPOSITORY / "pravega_spark"
    for name in PATH.findall(_prose(page)):
        if not any((folder / name).exists() for folder in folders):
            missing.append(name)
    missing += [name for name in MODULE.findall(_prose(page)) if not _is_known(name)]
    assert missing == []


def _is_known(name: str) -> bool:
    """Whether a dotted name is one of a module, or of something in a module."""
    found: object = pravega_spark
    for part in name.split(".")[1:]:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(f"{getattr(found, '__name__', '')}.{part}")
        found = getattr(found, part, None)
    return found is not None


def test_loggers_of_the_page_are_modules() -> None:
    page = (REPOSITORY / "docs/monitoring.md").read_text()
    names = {name for row in page.splitlines() for name in LOGGER.findall(row)}
    assert len(names) >= 5
    assert [name for name in names if not _is_known(f"pravega_spark.{name}")] == []
