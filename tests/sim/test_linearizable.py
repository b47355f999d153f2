"""Our search and Porcupine say the same of histories that were drawn, good ones and bad ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness.tiers import sized
from tests.sim import porcupine_runs
from tests.sim.checkers import linearizable, search
from tests.sim.checkers.objects import objects_of
from tests.sim.checkers.search import Operation, State
from tests.sim.checkers.violations import Violation
from tests.sim.drawn_histories import drawn_history
from tests.sim.history import History
from tests.sim.recorded import calls_of

HISTORIES = sized(400, 20_000, "DRAWN_HISTORIES")


def is_linearizable(history: History) -> bool:
    try:
        linearizable.check(calls_of(history.text()))
    except Violation:
        return False
    return True


@pytest.mark.medium
def test_histories_of_good_objects_pass_and_most_of_bad_ones_are_refused() -> None:
    assert all(is_linearizable(drawn_history(seed, bad=False)) for seed in range(200))
    refused = [seed for seed in range(200) if not is_linearizable(drawn_history(seed, bad=True))]
    assert len(refused) > 100


def with_unseen_events(count: int) -> History:
    """Return one of a segment, and of writers that died: nobody saw their events."""
    history = History()
    for number in range(count):
        events = [["k", f"lost{number}"]]
        history.invoke(f"p{number}", "write", stream="s", writer=f"w{number}", events=events)
    more: dict[str, Any] = {"stream": "s", "writer": "w"}
    for number in range(3):
        call = history.invoke("q", "write", **more, events=[["k", f"e{number}"]])
        call.ok([[0, number]])
    call = history.invoke(
        "q", "write_if", **more, events=[["k", "x"]], expected={"position": [0, 3]}
    )
    call.ok([[0, 3]])
    call = history.invoke(
        "q", "write_if", **more, events=[["k", "y"]], expected={"position": [0, 3]}
    )
    call.failed("ConditionFailed", {"position": [0, 3 + count // 2]})
    return history


@pytest.mark.medium
def test_events_that_nobody_saw_do_not_multiply_the_search() -> None:
    assert is_linearizable(with_unseen_events(60))


def with_unseen_updates(count: int) -> History:
    """Return one of a shared state, and of processes that died: an answer shows every second."""
    history = History()
    for number in range(count):
        history.invoke(f"p{number}", "update_state", state="s", update=f"u{number}").unknown()
    shown = [f"u{number}" for number in range(0, count, 2)]
    history.invoke("q", "fetch_updates", state="s").ok(shown)
    return history


@pytest.mark.medium
def test_updates_of_unknown_outcome_do_not_multiply_the_search() -> None:
    assert is_linearizable(with_unseen_updates(60))


def test_events_that_nobody_saw_come_where_no_seen_one_is() -> None:
    history = History()
    more: dict[str, Any] = {"stream": "s", "writer": "w"}
    for number in range(12):
        history.invoke("p", "write", **more, events=[["k", f"lost{number}"]]).unknown()
    calls = [history.invoke("q", "write", **more, events=[["k", f"e{n}"]]) for n in range(30)]
    for number, call in enumerate(calls):
        call.ok([[0, number]])
    expected = {"position": [0, 30]}
    history.invoke("q", "write_if", **more, events=[["k", "x"]], expected=expected).ok([[0, 30]])
    tried = Counter[str]()

    def counted(operation: Operation) -> Operation:
        def step(state: State) -> State | None:
            tried["steps"] += 1
            assert tried["steps"] < 2_000
            return operation.step(state)

        return replace(operation, step=step)

    (segment,) = (o for o in objects_of(calls_of(history.text())) if o.name == "segment s/0")
    operations = [counted(operation) for operation in segment.operations]
    assert search.is_linearizable(replace(segment, operations=operations))


def test_same_seed_gives_the_same_bytes() -> None:
    assert drawn_history(5, bad=True).text() == drawn_history(5, bad=True).text()
    assert drawn_history(5, bad=True).text() != drawn_history(6, bad=True).text()


@pytest.fixture(scope="module")
def porcupine() -> None:
    try:
        porcupine_runs.program()
    except porcupine_runs.NoPorcupine as missing:
        pytest.skip(str(missing))


@pytest.mark.long
@pytest.mark.medium
@pytest.mark.usefixtures("porcupine")
def test_porcupine_says_of_each_history_what_our_search_says(tmp_path: Path) -> None:
    ours: dict[str, bool] = {}
    for seed in range(HISTORIES):
        history = drawn_history(seed, bad=seed % 2 == 1)
        path = tmp_path / f"{seed}.jsonl"
        history.save(path)
        ours[str(path)] = is_linearizable(history)
    theirs = {
        one["history"]: one["result"]
        for start in range(0, HISTORIES, 1_000)
        for one in porcupine_runs.judged([*map(Path, ours)][start : start + 1_000])
    }
    assert set(theirs.values()) == {"ok", "illegal"}
    assert {path: result == "ok" for path, result in theirs.items()} == ours


@pytest.mark.medium
@pytest.mark.usefixtures("porcupine")
@pytest.mark.parametrize("history", [with_unseen_events(60), with_unseen_updates(60)])
def test_what_is_unseen_does_not_multiply_the_search_of_porcupine(
    history: History, tmp_path: Path
) -> None:
    path = tmp_path / "unseen"
    history.save(path)
    (report,) = porcupine_runs.judged([path], "-limit", "20s")
    assert report["result"] == "ok"


@pytest.mark.medium
@pytest.mark.usefixtures("porcupine")
def test_porcupine_names_what_is_not_a_history_and_what_breaks(tmp_path: Path) -> None:
    none, broken = tmp_path / "none", tmp_path / "broken"
    none.write_text("{}\n")
    history = History()
    history.invoke("p", "fence", stream="s", token="a").ok()
    history.invoke("p", "fencing_token", stream="s").ok("b")
    history.save(broken)
    bad, illegal = porcupine_runs.judged([none, broken], "-pictures", str(tmp_path))
    assert (bad["result"], bad["objects"]) == ("bad", [])
    assert "line 1" in bad["error"]
    assert illegal["result"] == "illegal"
    assert [(one["name"], one["result"]) for one in illegal["objects"]] == [("fence s", "illegal")]
    assert (tmp_path / "broken-fence-s.html").is_file()


@pytest.mark.medium
@pytest.mark.usefixtures("porcupine")
def test_porcupine_asks_of_tokens_where_nobody_sets_one(tmp_path: Path) -> None:
    paths = []
    for told in ("", "b"):
        history = History()
        events = [["k", "a"]]
        call = history.invoke("p", "write", stream="s", writer="w", events=events, token="a")
        call.failed("FencingTokenMismatch", {"token": told})
        paths.append(tmp_path / f"told-{told}")
        history.save(paths[-1])
    assert [one["result"] for one in porcupine_runs.judged(paths)] == ["ok", "illegal"]
