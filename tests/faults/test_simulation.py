"""Simulated writers on faulty storage: no event is lost or duplicated, for any seed."""

from __future__ import annotations

import collections

import pytest

from pravega_spark.engine.log.commit import Log
from tests.harness.faulty_store import Fault
from tests.harness.simulation import LOSSES, CheckNewest, NewToken, RetryAtNext, Simulation
from tests.harness.tiers import sized

SEEDS = sized(200, 10_000, "SIMULATION_SEEDS")
"""More seeds find rarer faults: SIMULATION_SEEDS=5000 takes a minute or two."""
FEW = 100


@pytest.mark.long
def test_lost_and_late_answers_lose_and_duplicate_no_event() -> None:
    met: collections.Counter[Fault] = collections.Counter()
    for seed in range(SEEDS):
        history = Simulation(seed, sessions=False).run()
        try:
            history.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        met += history.faults
    assert all(met[fault] > SEEDS / 4 for fault in (*LOSSES, Fault.REFUSE)), met


@pytest.mark.long
def test_writers_with_sessions_write_every_event_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pravega_spark.engine.log.commit.COMMIT_DEADLINE_SECONDS", 0.01)
    unknown = 0
    for seed in range(SEEDS // 2):
        history = Simulation(seed, sessions=True).run()
        try:
            history.check()
            assert len(history.log) == 12
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        unknown += history.unknown
    assert unknown > SEEDS / 20, "too few seeds reach unknown outcomes"


@pytest.mark.parametrize("wrong", [RetryAtNext, CheckNewest, NewToken])
def test_wrong_commit_rule_is_caught(wrong: type[Log]) -> None:
    duplicated = sum(
        bool(Simulation(s, sessions=False, log=wrong).run().duplicates) for s in range(FEW)
    )
    assert duplicated > FEW / 20, f"{wrong.__name__}: {duplicated} of {FEW} seeds"


def test_same_seed_gives_the_same_history() -> None:
    for seed in range(20):
        first, second = (Simulation(seed, sessions=True).run() for _ in range(2))
        assert first == second
