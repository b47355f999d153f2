"""A fault in the simulator is caught by a promise that a history breaks, and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mutants.faults import Fault
from tests.mutants.placing import Places, swaps_of
from tests.mutants.simulated import ROOT, Shown, played
from tests.sim.running import Child, Warm
from tests.sim.world import Plan

pytestmark = pytest.mark.extended

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


NESTED = Fault(
    "code in a function of a function",
    "engine/stream/truncation.py",
    "found[-1][0] + found[-1][1] > rng.end:",
    "found[-1][0] + found[-1][1] > rng.end + 1:",
)
AT_IMPORT = Fault(
    "code that runs once",
    "engine/log/commit.py",
    "from __future__ import annotations\n",
    "from __future__ import annotations\n\nOTHER = 1\n",
)
UNUSED = Fault(
    "code of a room that no process has",
    "spark/read/partitions.py",
    "if groups and key_range.low < groups[-1][2]:",
    "if groups and key_range.low < groups[-1][1]:",
)


@pytest.fixture(scope="module")
def shown() -> dict[str, Shown]:
    return {one.fault.promise: one for one in played([LOST_RACE, BROKEN, UNUSED], 3)}


@pytest.mark.slow
def test_seed_that_shows_a_fault_names_the_promise(shown: dict[str, Shown]) -> None:
    found = shown[LOST_RACE.promise]
    assert found.verdict == "caught"
    assert found.seed in range(3)
    assert found.promise


@pytest.mark.slow
def test_error_of_python_is_no_broken_promise(shown: dict[str, Shown]) -> None:
    assert shown[BROKEN.promise].verdict != "caught"
    assert shown[UNUSED.promise].verdict == "absent"


HORIZON = Fault(
    "a value that is compared",
    "engine/writing/append.py",
    "if staging_version < view.snapshot.horizon:",
    "if staging_version + 1_000_000 < view.snapshot.horizon:",
)


OTHER_KEY = Fault(
    "a value that is another one each time",
    "engine/chunks/recent.py",
    "chunk.size, chunk.footer\n",
    'chunk.size, ""\n',
)


@pytest.mark.slow
def test_seed_in_which_a_fault_changes_no_value_has_the_same_history_with_it() -> None:
    warm = Warm(4)
    places = Places(ROOT, [HORIZON, OTHER_KEY], warm.copies)
    plan = Plan(0, programs="nr")

    def marked() -> Any:
        places.mark()
        return [warm.play(plan).digest, dict(places.reached)]

    def placed() -> Any:
        places.place(HORIZON)
        return warm.play(plan).digest

    (digest, reached), _ = Child(marked).told()
    assert reached.get(str(places.numbers[HORIZON]), 0) == 0
    assert reached[str(places.numbers[OTHER_KEY])] > 0
    assert Child(placed).told()[0] == digest == warm.run(plan).digest


def test_fault_is_placed_in_the_functions_that_it_changes_and_in_no_import() -> None:
    places = ((LOST_RACE, ["_put", "is_ours"]), (NESTED, ["_chunks_below"]), (AT_IMPORT, None))
    for fault, names in places:
        swaps = swaps_of(fault, fault.read(ROOT))
        found = None if not swaps else [new.co_name for _, new in swaps]
        assert found == names, fault.promise
