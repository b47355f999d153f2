"""The command that checks kept histories ends with 1 for one that breaks a promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim import check, porcupine_runs
from tests.sim.stories import Story


@pytest.fixture(params=["with Porcupine", "without"])
def porcupine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without":
        monkeypatch.setattr(porcupine_runs, "program", _missing)
        return "Porcupine did not look: Go is missing (apt install golang)"
    try:
        porcupine_runs.program()
    except porcupine_runs.NoPorcupine as missing:
        pytest.skip(str(missing))
    return "Porcupine: "


def _missing() -> Path:
    raise porcupine_runs.NoPorcupine("Go is missing (apt install golang)")


@pytest.mark.check
def test_command_names_what_a_history_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], porcupine: str
) -> None:
    kept, broken = Story(), Story()
    for story, tokens in ((kept, ("one", "one")), (broken, ("one", "two"))):
        story.ok("fence", stream="s", token=tokens[0])
        story.ok("fencing_token", tokens[1], stream="s")
    kept.save(tmp_path / "kept")
    broken.save(tmp_path / "broken")
    assert check.main([str(tmp_path / "kept")]) == 0
    said = capsys.readouterr().out
    assert "kept: 2 calls break no promise" in said
    assert porcupine in said
    assert check.main([str(tmp_path / "kept"), str(tmp_path / "broken")]) == 1
    said = capsys.readouterr().out
    assert "broken: calls have one order: those of fence s have none" in said
    assert porcupine in said
    (tmp_path / "broken").write_text("{}")
    assert check.main([str(tmp_path / "broken")]) == 1
    assert "broken: line 1 is not" in capsys.readouterr().out


def test_histories_of_a_run_are_judged_and_summed_up(porcupine: str) -> None:
    kept, broken = Story(), Story()
    for story, told in ((kept, "one"), (broken, "two")):
        story.ok("fence", stream="s", token="one")
        story.ok("fencing_token", told, stream="s")
    refused, said = porcupine_runs.judged_texts({"seed 1": kept.text(), "seed 2": broken.text()})
    if porcupine == "Porcupine: ":
        assert refused == ["seed 2: Porcupine: fence s is illegal"]
        assert "judged 2 histories of 2 objects" in said
        assert "refuses 1" in said
    else:
        assert (refused, said) == ([], porcupine)
