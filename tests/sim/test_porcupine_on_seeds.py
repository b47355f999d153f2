"""Porcupine takes the histories of the simulator's seeds."""

from __future__ import annotations

import pytest

from tests.harness.tiers import sized
from tests.sim import porcupine_runs
from tests.sim.recorded import calls_of
from tests.sim.running import Warm
from tests.sim.world import Plan

pytestmark = pytest.mark.extended

SEEDS = sized(16, 600, "PORCUPINE_SEEDS")


@pytest.mark.slow
@pytest.mark.long
def test_porcupine_refuses_no_history_of_the_simulator() -> None:
    try:
        porcupine_runs.program()
    except porcupine_runs.NoPorcupine as missing:
        pytest.skip(str(missing))
    warm = Warm()
    results = [warm.run(Plan(seed)) for seed in range(SEEDS)]
    assert [result.failure for result in results if result.failure] == []
    histories = {f"seed {result.seed}": result.history for result in results}
    assert sum(len(calls_of(text)) for text in histories.values()) > 10 * SEEDS
    refused, said = porcupine_runs.judged_texts(histories)
    assert refused == [], said
