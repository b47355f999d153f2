"""The demo is real, short, and says what happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Shell


@pytest.mark.medium(covers=True)
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


@pytest.mark.medium
def test_the_demo_without_a_root_leaves_nothing(shell: Shell, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("PRAVEGA_SPARK_ROOT")
    monkeypatch.setenv("PRAVEGA_SPARK_CONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = shell.ok("demo", "--seconds", "1s")
    assert "Wrote" in text
    assert re.search(r"Committed (1 transaction|\d+ transactions);", text)
    assert "Committed 1 transactions" not in text
    assert list(tmp_path.iterdir()) == []


def test_a_demo_without_time_is_misuse(shell: Shell) -> None:
    status, _, error = shell("demo", "--seconds", "0")
    assert (status, "--seconds '0': a demo needs some time" in error) == (2, True)


@pytest.mark.medium
def test_sigterm_ends_the_demo_at_once_and_removes_its_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "pravega_spark.cli", "demo", "--seconds", "60 s"]
    with subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE
    ) as demo:
        assert demo.stdout is not None
        assert b"Created stream" in demo.stdout.readline()
        assert any(tmp_path.glob("pravega-demo-*"))
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(timeout=30) == 128 + signal.SIGTERM
    assert not any(tmp_path.glob("pravega-demo-*"))
