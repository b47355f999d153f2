from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import bench.__main__ as command
from bench import cases
from bench.harness.context import Context
from bench.harness.figures import Figure
from bench.harness.registry import benchmark, find


@pytest.mark.parametrize("known", [[], ["--only", "append"]])
def test_unknown_benchmark_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str], known: list[str]
) -> None:
    assert command.main([*known, "--only", "nonsense"]) == 2
    printed = capsys.readouterr()
    assert "'nonsense'" in printed.err
    assert printed.out.split() == [each.name for each in find(cases)]


def test_failed_benchmark_fails_the_run_and_keeps_the_results_of_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    @benchmark()
    def broken(_: Context) -> Iterator[Figure]:
        yield Figure("before the failure", 1.0, "ms").within(at_most=2.0)
        raise OSError("disk full")

    @benchmark()
    def sound(_: Context) -> Iterator[Figure]:
        yield Figure("after the failure", 3.0, "ms").within(at_most=2.0)

    monkeypatch.setattr(command, "find", lambda *_: [broken, sound])
    assert command.main(["--quick", "--out", str(tmp_path)]) == 1
    results = json.loads((tmp_path / "results.json").read_text())
    assert [result["name"] for result in results] == ["before the failure", "after the failure"]
    assert (tmp_path / "results.png").exists()
    printed = capsys.readouterr()
    assert "disk full" in printed.err
    assert "failed: broken" in printed.err
