"""The README's tour runs, block by block, in the order in which a reader would paste it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
def test_every_block_of_the_tour_runs(tmp_path: Path) -> None:
    blocks = BLOCK.findall(README.read_text())
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        code = block.replace("/tmp/streams", str(tmp_path / "streams"))
        exec(compile(code, f"README.md block {number}", "exec"), names)


def test_every_link_of_the_readme_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text())
    missing = [link for link in links if not (README.parent / link).exists()]
    assert links
    assert not missing
