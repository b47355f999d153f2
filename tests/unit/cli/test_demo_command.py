"""The demo is real, short, and says what happened."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.conftest import Shell


def test_the_demo_reads_each_event_once_and_may_be_repeated_on_its_root(
    shell: Shell, tmp_path: Path
) -> None:
    root = str(tmp_path / "root")
    for expected in ("Created stream demo/flights", "Found stream demo/flights"):
        text = shell.ok("demo", "--seconds", "3s", "--root", root)
        assert expected in text
        assert "Each event was read exactly once" in text
        assert "WRONG" not in text
    assert shell.ok("stream", "describe", "demo/flights", "--root", root)


def test_the_demo_without_a_root_leaves_nothing(shell: Shell, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("PRAVEGA_SPARK_ROOT")
    monkeypatch.setenv("PRAVEGA_SPARK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert "Wrote" in shell.ok("demo", "--seconds", "1s")
    assert list(tmp_path.iterdir()) == []
