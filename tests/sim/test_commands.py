"""Commands of the proof refuse a number that would try nothing, instead of an empty run."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

import tests.mutants.__main__ as mutants
import tests.sim.__main__ as sim
import tests.sim.power.__main__ as power
import tests.soak.__main__ as soak
from tests.sim.failures import failure_of
from tests.sim.running import Result

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


def test_seed_that_failed_with_given_programs_is_played_again_with_them() -> None:
    failed = Result(3, "nn", parts=["disk"], failure="it broke")
    assert "again, with its history: python -m tests.sim --seed 3 --programs nn" in str(
        failure_of(failed)
    )
