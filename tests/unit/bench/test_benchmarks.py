from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench.__main__ import main
from bench.context import Context
from bench.data import EVENT_BYTES, payloads, table
from bench.long_stream import long_stream
from bench.registry import benchmarks

SPARK = {
    "auto_scale_decision",
    "frame_read",
    "frame_write",
    "stream_to_stream",
    "reader_group_overhead",
    "retention_job",
    "streaming_backlog",
}
PLAIN = sorted(set(benchmarks()) - SPARK)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_each_benchmark_runs(name: str, tmp_path: Path) -> None:
    assert main(["--quick", "--only", name, "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "results.json").read_text())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_benchmarks_with_spark_run(tmp_path: Path) -> None:
    only = [word for name in sorted(SPARK) for word in ("--only", name)]
    command = [sys.executable, "-m", "bench", "--quick", *only, "--out", str(tmp_path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3])  # a session of its own
    names = {figure["name"] for figure in json.loads((tmp_path / "results.json").read_text())}
    assert len(names) >= len(SPARK)


def test_an_unknown_benchmark_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only", "nonsense"]) == 2
    assert set(capsys.readouterr().out.split()) == set(benchmarks())


def test_events_have_100_bytes_and_are_the_same_for_the_same_seed() -> None:
    events = payloads(1_000)
    assert {len(event) for event in events.to_pylist()} == {EVENT_BYTES}
    assert events.equals(payloads(1_000))
    assert not events.equals(payloads(1_000, seed=2))
    assert table(1_000).column("event").null_count == 0


def test_a_stream_built_in_bulk_is_a_sound_stream(tmp_path: Path) -> None:
    context = Context(True, Console(quiet=True), tmp_path)
    name = long_stream(context, 300)
    assert [event.offset for event in context.manager.read(name)] == list(range(300))
    assert list(tmp_path.glob("streams/bench/*/events/_pravega/state/*.json"))
