"""Commands of the proof refuse what they cannot play, instead of a run that proves nothing."""

from __future__ import annotations

import os
import re
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
import tests.versions.__main__ as versions
from tests.sim import check
from tests.sim.failures import failure_of
from tests.sim.recorded import calls_of
from tests.sim.running import Result, Warm
from tests.sim.world import Plan

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


@pytest.mark.parametrize("value", ["0", "-1", "all"])
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
        (versions.main, ["--workers"]),
    ],
)
def test_number_that_would_try_nothing_is_refused(
    refusal: Refusal, command: Callable[[], int], options: list[str], value: str
) -> None:
    error = refusal(command, *options, value)
    assert f"argument {options[-1]}: must be a whole number, 1 or more, got '{value}'" in error


@pytest.mark.parametrize("value", ["-1", "first", ""])
@pytest.mark.parametrize(
    ("command", "option"),
    [(sim.main, "--seed"), (sim.main, "--first"), (sim.main, "--records"), (soak.main, "--seed")],
)
def test_what_is_no_number_of_a_seed_is_refused(
    refusal: Refusal, command: Callable[[], int], option: str, value: str
) -> None:
    error = refusal(command, option, value)
    assert f"argument {option}: must be a whole number, 0 or more, got '{value}'" in error


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "long"])
def test_soak_of_no_time_is_refused(refusal: Refusal, value: str) -> None:
    error = refusal(soak.main, "--minutes", value)
    assert f"--minutes: must be a number above 0, got '{value}'" in error


@pytest.mark.parametrize(
    ("command", "options"),
    [(sim.main, ["--save"]), (soak.main, ["--save"]), (check.main, ["none", "--pictures"])],
)
def test_folder_that_cannot_be_made_is_refused(
    refusal: Refusal, command: Callable[[], int], options: list[str]
) -> None:
    assert f"argument {options[-1]}: must name a folder, got ''" in refusal(command, *options, "")
    error = refusal(command, *options, __file__)
    assert f"argument {options[-1]}: must be a folder, and {__file__} is none" in error


@pytest.mark.parametrize(("programs", "unknown"), [("", ""), ("n!", "!"), ("n3", "3")])
@pytest.mark.parametrize("options", [["--seed", "14", "--programs"], ["--each-call"]])
def test_program_that_a_seed_does_not_have_is_refused(
    refusal: Refusal, options: list[str], programs: str, unknown: str
) -> None:
    """The scene of seed 14, as that of 0, is of two."""
    error = refusal(sim.main, *options, programs)
    said = (
        rf"argument {options[-1]}: no program of seed \d+ is called '{unknown}': the letters are 12"
    )
    assert re.search(said, error)


@pytest.mark.parametrize("options", [["--seed", "1", "--programs"], ["--each-call"]])
def test_more_programs_than_have_a_process_are_refused(
    refusal: Refusal, options: list[str]
) -> None:
    error = refusal(sim.main, *options, 14 * "n")
    assert f"argument {options[-1]}: must be 13 programs or fewer, got 14" in error


@pytest.mark.parametrize(
    "options", [["--without", "disk"], ["--programs", "n"], ["--programs", ""]]
)
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


@pytest.mark.parametrize(
    ("options", "together"),
    [
        (["--list", "--most", "2"], "--most is of --simulated"),
        (["--list", "--record"], "--list runs nothing that --record could keep"),
    ],
)
def test_options_of_different_runs_of_faults_are_refused(
    refusal: Refusal, options: list[str], together: str
) -> None:
    assert together in refusal(mutants.main, *options)


@pytest.mark.parametrize("texts", [["nonsense"], ["identity.py", "nonsense"]])
def test_text_that_no_fault_has_is_refused(refusal: Refusal, texts: list[str]) -> None:
    error = refusal(mutants.main, "--list", "--only", *texts)
    assert "argument --only: no fault has 'nonsense' in its name; --list shows them" in error
    assert "no fault has ''" in refusal(mutants.main, "--list", "--only", "")


@pytest.mark.medium
def test_output_of_one_seed_is_its_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--seed", "3", "--programs", "n", "--without", "fault late"]
    monkeypatch.setattr(sys, "argv", ["sim", *words])
    assert sim.main() == 0
    said = capsys.readouterr()
    assert calls_of(said.out)
    assert "it keeps every promise" in said.err


@pytest.mark.medium
def test_part_that_a_seed_does_not_have_is_refused(refusal: Refusal) -> None:
    words = ["--programs", "n", "--without", "fault late", "--without", "fault dust"]
    error = refusal(sim.main, "--seed", "3", *words)
    assert "--without: the seed has no part 'fault dust': its parts are fault lose_re" in error


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


def test_part_that_is_not_there_without_another_is_not_in_the_command_of_a_failure() -> None:
    class Played(Warm):
        def __init__(self) -> None: ...

        def run(self, plan: Plan) -> Result:
            parts = [part for part in ("kill n0", "program n0") if part in plan.without]
            return Result(plan.seed, left_out=parts[-1:], failure="it broke")

    failed = Result(3, parts=["kill n0", "program n0"], failure="it broke")
    assert str(failure_of(failed, Played())).endswith("--seed 3 --without 'program n0'")
