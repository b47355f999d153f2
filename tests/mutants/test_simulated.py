"""A fault in the simulator is caught by a promise that a history breaks, and by nothing else."""

from __future__ import annotations

import pytest

from tests.mutants.faults import Fault
from tests.mutants.simulated import played

LOST_RACE = Fault(
    "a lost race is not won",
    "engine/log/commit.py",
    "light=True).token == token",
    "light=True).token != token",
)
BROKEN = Fault(
    "code that cannot run",
    "engine/log/commit.py",
    "light=True).token == token",
    "light=True).no_such_name == token",
)


@pytest.mark.slow
def test_seed_that_shows_a_fault_names_the_promise() -> None:
    found = played(LOST_RACE, 3)
    assert found["verdict"] == "caught"
    assert str(found["detail"]).startswith("seed ")


@pytest.mark.slow
def test_error_of_python_is_no_broken_promise() -> None:
    found = played(BROKEN, 3)
    assert found["verdict"] != "caught"
