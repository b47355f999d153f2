"""The doctor names what is wrong and the way on, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pravega_spark.cli import main
from pravega_spark.manager import StreamManager


@pytest.fixture(autouse=True)
def no_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRAVEGA_SPARK_ROOT", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))


def findings(capsys: Any, *argv: str) -> tuple[int, dict[str, dict[str, str]]]:
    capsys.readouterr()
    status = main(["doctor", *argv, "--output", "json"])
    return status, {found["check"]: found for found in json.loads(capsys.readouterr().out)}


def test_a_new_folder_is_probed_and_left_as_it_was(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "root").mkdir()
    status, found = findings(capsys, "--root", str(tmp_path / "root"))
    assert status == 0
    assert found["root"]["status"] == "note"
    assert found["exclusive creates"]["status"] == "ok"
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file()] == []


def test_a_root_that_does_not_exist_does_not_exist_afterwards(tmp_path: Path, capsys: Any) -> None:
    status, _ = findings(capsys, "--root", str(tmp_path / "new" / "root"))
    assert status == 0
    assert list(tmp_path.iterdir()) == []


def test_without_a_root_the_machine_is_looked_at(capsys: Any) -> None:
    status, found = findings(capsys)
    assert status == 0
    assert "Python" in found["pravega-spark"]["detail"]
    assert "pass --root" in found["root"]["detail"]


def test_what_cannot_work_fails_with_the_way_on(
    capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    status, found = findings(capsys, "--root", "/etc/passwd")
    assert status == 1
    assert "/no/such/python" in found["worker python"]["detail"]
    assert "version 11. Spark 4.2 needs Java 17" in found["java"]["detail"]
    assert found["root"]["status"] == "fail"


def test_lost_and_garbled_markers_fail(tmp_path: Path, capsys: Any) -> None:
    StreamManager(tmp_path / "root").create_scope("s")
    marker = tmp_path / "root" / "_pravega_spark.json"
    marker.write_bytes(b"garbage")
    status, found = findings(capsys, "--root", str(tmp_path / "root"))
    assert (status, found["root"]["status"]) == (1, "fail")
    assert "_pravega_spark.json" in found["root"]["detail"]
    marker.unlink()
    status, found = findings(capsys, "--root", str(tmp_path / "root"))
    assert (status, found["root"]["status"]) == (1, "fail")
    assert "has no marker, but holds scopes: s" in found["root"]["detail"]
