"""Commands of the proof refuse a number that would try nothing, instead of an empty run."""

from __future__ import annotations

import sys

import pytest

import tests.mutants.__main__ as mutants
import tests.sim.__main__ as sim
import tests.sim.power.__main__ as power
from tests.sim.failures import failure_of
from tests.sim.running import Result


@pytest.mark.parametrize("value", ["0", "-1"])
@pytest.mark.parametrize(
    ("command", "options"),
    [
        (sim.main, ["--seeds"]),
        (sim.main, ["--workers"]),
        (sim.main, ["--each-call", "n", "--stride"]),
        (power.main, ["--disks"]),
        (power.main, ["--recordings"]),
        (mutants.main, ["--workers"]),
        (mutants.main, ["--simulated"]),
        (mutants.main, ["--simulated", "1", "--most"]),
    ],
)
def test_number_that_would_try_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: object,
    options: list[str],
    value: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["command", *options, value])
    assert callable(command)
    with pytest.raises(SystemExit) as refused:
        command()
    assert refused.value.code == 2
    assert f"{options[-1]}: must be 1 or more, got {value}" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--seed", "1", "--programs", "n!"], ["--each-call", "!"]])
def test_program_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["command", *options])
    with pytest.raises(SystemExit) as refused:
        sim.main()
    assert refused.value.code == 2
    assert "no program is called '!': the letters are " in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--without", "disk"], ["--programs", "n"]])
def test_option_of_one_seed_is_refused_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["command", *options])
    with pytest.raises(SystemExit) as refused:
        sim.main()
    assert refused.value.code == 2
    assert "give --seed, too" in capsys.readouterr().err


def test_seed_that_failed_with_given_programs_is_played_again_with_them() -> None:
    failed = Result(3, "nn", parts=["disk"], failure="it broke")
    assert "again, with its history: python -m tests.sim --seed 3 --programs nn" in str(
        failure_of(failed)
    )
