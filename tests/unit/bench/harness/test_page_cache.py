"""The page cache that benchmarks empty."""

from __future__ import annotations

from pathlib import Path

from bench.harness.page_cache import forget_pages


def test_files_of_folders_below_are_forgotten_and_keep_their_bytes(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "file"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * 100_000)
    (tmp_path / "link").symlink_to("missing")
    forget_pages(tmp_path)
    assert file.read_bytes() == b"x" * 100_000
