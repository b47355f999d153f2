"""The README's tour and other pages' examples run, block by block, as a reader would paste them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pravega_spark.limits import (
    MAX_ATOMIC_WRITE_BYTES,
    MAX_EVENT_BYTES,
    MAX_NOTE_LENGTH,
    MAX_SEGMENTS,
    WRITER_BATCH_EVENTS,
)
from pravega_spark.units import MIB

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


@pytest.mark.parametrize("page", [*PAGES, "docs/limits.md", "docs/spark.md"])
def test_every_link_of_the_page_leads_somewhere(page: str) -> None:
    path = README.parent / page
    links = re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]
    assert links
    assert not missing


def test_the_limits_of_the_page_are_the_code_s() -> None:
    page = (README.parent / "docs/limits.md").read_text()
    project = (README.parent / "pyproject.toml").read_text()
    mib = MAX_ATOMIC_WRITE_BYTES // MIB
    for text in (
        f"**{MAX_EVENT_BYTES // MIB} MiB** ({MAX_EVENT_BYTES:,} bytes)",
        f"at most {WRITER_BATCH_EVENTS:,} of them, of {mib} MiB in all",
        f"{MAX_NOTE_LENGTH:,} characters",
        f"| segments of a stream | at most {MAX_SEGMENTS:,} |",
    ):
        assert text in page
    for pinned in ("pyspark==4.2.0", "delta-spark==4.4.0"):
        assert pinned in page
        assert pinned in project
