"""The site of docs/ builds without a warning, names every public thing, and asks no other host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pravega_spark
from site_pages.navigation import navigation
from site_pages.reference_pages import reference_pages
from site_pages.root_pages import relinked
from tests.harness.page_examples import REPOSITORY

pytestmark = pytest.mark.extended

FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source|object)\b[^>]*?\b(?:src|href|data)="
    r"[\"']?((?:https?:)?//[^\"' >]+)"
)
IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_site_builds_with_every_page_and_every_public_name(site: Path) -> None:
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    written = [path.relative_to(REPOSITORY / "docs") for path in REPOSITORY.glob("docs/**/*.md")]
    pages = [str(path.with_suffix(".html")) for path in written]
    assert {page.replace("README.html", "index.html") for page in pages} <= built
    reference = "".join(path.read_text() for path in (site / "reference").glob("*.html"))
    named = set(re.findall(r'id="pravega_spark\.(\w+)"', reference))
    assert set(pravega_spark.__all__) - {"errors", "PravegaSparkError"} <= named
    assert 'id="pravega_spark.errors.WriterFenced"' in reference
    assert "reader-group" in (site / "reference/command-line.html").read_text()


@pytest.mark.slow
def test_built_pages_ask_no_other_host(site: Path) -> None:
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    assert len(pages) > len(list(REPOSITORY.glob("docs/*.md")))
    assert {address for text in pages.values() for address in FETCHED.findall(text)} == set()
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert styles
    assert {address for text in styles for address in IN_STYLES.findall(text)} == set()
    assert [page for page, text in pages.items() if 'class="mermaid"' in text] == []


def test_navigation_has_every_page_of_the_docs() -> None:
    def places(entries: list[Any]) -> set[str]:
        found = set[str]()
        for entry in entries:
            for place in entry.values() if isinstance(entry, dict) else [entry]:
                found |= places(place) if isinstance(place, list) else {place}
        return found

    shown = places(navigation())
    docs = REPOSITORY / "docs"
    assert {str(path.relative_to(docs)) for path in docs.rglob("*.md")} <= shown
    assert set(reference_pages()) <= shown


def test_link_that_leads_out_of_the_docs_leads_to_the_page_of_the_site() -> None:
    text = "[a](../README.md#versions) [b](../CONTRIBUTING.md) [c](../jobs) [d](limits.md#time)"
    folder, page = Path("docs"), Path("index.md")
    assert relinked(text, folder, page) == "a [b](contributing.md) c [d](limits.md#time)"
