"""A short soak, and what makes one fail."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.sim import check
from tests.sim.history import SharedHistory
from tests.sim.recorded import calls_of
from tests.soak.kinds import KINDS
from tests.soak.rounds import CAST, WITHOUT_SPARK, Round
from tests.soak.running import Run

pytestmark = pytest.mark.extended

LATE = {"v1", "v2"}
"""Programs that may find their stream sealed before they have written to it."""
FIXTURES = Path(__file__).parents[1] / "fixtures/histories"


@pytest.mark.slow
def test_processes_that_are_killed_keep_every_promise(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    run = Run(tmp_path, "disk", seed=1, size=2, cast=WITHOUT_SPARK, save=saved)
    outcome = run.run(minutes=0.0, rounds=1)
    assert outcome.broken == []
    (history,) = map(check.text_of, saved.iterdir())
    calls = calls_of(history)
    played = {call.process.partition(".")[0] for call in calls}
    cast = {name for process in WITHOUT_SPARK for name in CAST[process]}
    assert cast - LATE - played == set()
    written = {call.arguments["stream"] for call in calls if call.operation == "write"}
    staged = [call.arguments["streams"] for call in calls if call.operation == "stage"]
    assert {f"r0/{kind.name}" for kind in KINDS} - written.union(*staged) == set()
    done = Counter(call.operation for call in calls if call.ok)
    wanted = {"write", "read", "commit", "next", "update", "get", "update_state", "note_time"}
    wanted |= {"backup", "read_copy", "maintain"}
    assert wanted - set(done) == set()
    assert outcome.calls == len(calls)
    assert min(outcome.events, outcome.transactions, outcome.judged["ours"]) > 0
    assert sum(outcome.faults.values()) > 0


@pytest.mark.medium
def test_history_that_breaks_a_promise_is_kept_with_the_command_that_judges_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, first = Run(tmp_path, "disk", seed=1), Round(0, "play", str(tmp_path), 1, 1)
    history = SharedHistory(first.recorded)
    history.invoke("p", "fence", stream="s", token="one").ok()
    history.invoke("q", "fencing_token", stream="s").ok("two")
    history.close()
    run.check(first)
    run.collect(None)
    (told,) = run.outcome.broken
    assert "calls have one order: those of fence s have none" in told
    assert told.endswith(f"again: python -m tests.sim.check {first.history}")
    assert check.main([str(first.history)]) == 1
    assert "calls have one order" in capsys.readouterr().out


@pytest.mark.medium
def test_process_that_ends_by_itself_fails_the_soak_and_names_its_log(tmp_path: Path) -> None:
    (tmp_path / "round-0-play-n1.state").write_text('{"round": "no number"}')
    outcome = Run(tmp_path, "disk", seed=1, size=1, cast=["writers"]).run(minutes=0.0, rounds=1)
    (told,) = outcome.broken
    assert told.startswith("writers ended with 3: TypeError: ")
    assert told.endswith(f" ({tmp_path / 'writers.log'})")
    assert "round 0, program n1" in (tmp_path / "writers.log").read_text()


@pytest.mark.slow
def test_kept_histories_of_soaks_break_no_promise(capsys: pytest.CaptureFixture[str]) -> None:
    kept = sorted(map(str, FIXTURES.glob("*.gz")))
    assert kept
    assert check.main(kept) == 0
    assert capsys.readouterr().out.count("calls break no promise") == len(kept)
