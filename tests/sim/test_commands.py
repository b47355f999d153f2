"""Commands of the proof refuse a number that would try nothing, instead of an empty run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.mutants.__main__ as mutants
import tests.sim.__main__ as sim
import tests.sim.power.__main__ as power
import tests.soak.__main__ as soak
from tests.sim.failures import failure_of
from tests.sim.recorded import calls_of
from tests.sim.running import Result

ROOT = Path(__file__).parents[2]
Refusal = Callable[..., str]


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Call a command with these words, which it refuses; return what it says."""

    def refused(command: Callable[[], int], *words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["command", *words])
        with pytest.raises(SystemExit) as ended:
            command()
        assert ended.value.code == 2
        return capsys.readouterr().err

    return refused


@pytest.mark.parametrize("value", ["0", "-1"])
@pytest.mark.parametrize(
    ("command", "options"),
    [
        (sim.main, ["--seeds"]),
        (sim.main, ["--workers"]),
        (sim.main, ["--each-call", "n", "--stride"]),
        (power.main, ["--disks"]),
        (power.main, ["--recordings"]),
        (soak.main, ["--size"]),
        (mutants.main, ["--workers"]),
        (mutants.main, ["--simulated"]),
        (mutants.main, ["--simulated", "1", "--most"]),
    ],
)
def test_number_that_would_try_nothing_is_refused(
    refusal: Refusal, command: Callable[[], int], options: list[str], value: str
) -> None:
    error = refusal(command, *options, value)
    assert f"{options[-1]}: must be 1 or more, got {value}" in error


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_soak_of_no_time_is_refused(refusal: Refusal, value: str) -> None:
    error = refusal(soak.main, "--minutes", value)
    assert f"--minutes: must be a number above 0, got {value}" in error


@pytest.mark.parametrize("options", [["--seed", "1", "--programs", "n!"], ["--each-call", "!"]])
def test_program_that_does_not_exist_is_refused(refusal: Refusal, options: list[str]) -> None:
    assert "no program is called '!': the letters are " in refusal(sim.main, *options)


@pytest.mark.parametrize("options", [["--without", "disk"], ["--programs", "n"]])
def test_option_of_one_seed_is_refused_without_it(refusal: Refusal, options: list[str]) -> None:
    assert "give --seed, too" in refusal(sim.main, *options)


@pytest.mark.parametrize(
    ("options", "together"),
    [
        (["--seed", "1", "--seeds", "5"], "--seed cannot be with --seeds"),
        (
            ["--seed", "1", "--first", "0", "--save", "x"],
            "--seed cannot be with --first and --save",
        ),
        (["--each-call", "n", "--seed", "1"], "--seed cannot be with --each-call"),
        (["--each-call", "n", "--workers", "2"], "--each-call cannot be with --workers"),
        (["--stride", "2"], "--stride is of --each-call"),
    ],
)
def test_options_of_different_runs_are_refused(
    refusal: Refusal, options: list[str], together: str
) -> None:
    assert together in refusal(sim.main, *options)


@pytest.mark.medium
def test_output_of_one_seed_is_its_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sim", "--seed", "3", "--programs", "n", "--without", "dust"])
    assert sim.main() == 0
    said = capsys.readouterr()
    assert calls_of(said.out)
    assert "the seed has no part 'dust'" in said.err
    assert "it keeps every promise" in said.err


@pytest.mark.medium
def test_command_whose_reader_has_gone_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = ["-m", "tests.sim.check", "none"]
    run = subprocess.Popen(
        [sys.executable, *words], stdout=writer, stderr=subprocess.PIPE, cwd=ROOT
    )
    os.close(writer)
    assert (run.communicate()[1], run.returncode) == (b"", -signal.SIGPIPE)


def test_seed_that_failed_with_given_programs_is_played_again_with_them() -> None:
    failed = Result(3, "nn", parts=["disk"], failure="it broke")
    assert "again, with its history: python -m tests.sim --seed 3 --programs nn" in str(
        failure_of(failed)
    )
