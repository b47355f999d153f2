"""The README's tour and other pages' examples run, block by block, as a reader would paste them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
PAGES = (
    "README.md",
    "docs/backup.md",
    "docs/monitoring.md",
    "docs/retention.md",
    "docs/transactions.md",
)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(page: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall((README.parent / page).read_text())
    assert len(blocks) >= 5
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        code = block.replace("/tmp/streams", str(tmp_path / "streams"))
        exec(compile(code, f"{page} block {number}", "exec"), names)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_the_page_leads_somewhere(page: str) -> None:
    path = README.parent / page
    links = re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]
    assert links
    assert not missing
