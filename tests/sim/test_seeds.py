"""Seeds of the simulator: each keeps the promises, and is the same whenever it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.failures import report
from tests.sim.running import Warm, total

SEEDS = 60
ALONE = (3, 17)


@pytest.fixture(scope="module")
def warm() -> Warm:
    return Warm()


@pytest.mark.slow
def test_no_seed_breaks_a_promise(warm: Warm) -> None:
    results = [warm.run(seed) for seed in range(SEEDS)]
    assert "".join(map(report, results)) == ""
    covered = total(results)
    for name in ("kill", "pause", "cut off", "jump", "stand still", "lose_request", "lose_answer",
                 "late", "busy", "resent"):  # fmt: skip
        assert covered[f"fault {name}"], name


@pytest.mark.slow
def test_a_seed_alone_is_the_same_as_among_others(warm: Warm) -> None:
    """In a fresh process, with other hashes of texts: the same history, calls and times."""
    program = (
        "import sys; from tests.sim.running import Warm; "
        "found = Warm().run(int(sys.argv[1])); print(found.digest); print(found.history, end='')"
    )
    root = Path(__file__).parents[2]
    for seed in ALONE:
        for others in (seed - 1, seed):
            found = warm.run(others)
        alone = subprocess.run(
            [sys.executable, "-c", program, str(seed)],
            env={**os.environ, "PYTHONHASHSEED": str(1000 + seed), "PYTHONPATH": str(root)},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        assert alone.stdout == f"{found.digest}\n{found.history}"
