"""Seeds of the simulator: each keeps the promises, and is the same whenever it runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness.tiers import sized
from tests.sim import coverage, shapes
from tests.sim.__main__ import main
from tests.sim.failures import failure_of
from tests.sim.recorded import calls_of
from tests.sim.regressions import FOUND
from tests.sim.running import Result, in_processes, total
from tests.sim.storage import FAILURES

_ROOT = Path(__file__).parents[2]
SEEDS = 300
ALONE = (3, 17)
STRIDE = sized(60, 1, "SIMULATED_STRIDE")
"""Of the calls that go wrong one by one, every so many-th."""


@pytest.fixture(scope="module")
def played() -> Sequence[Result]:
    return list(in_processes(sorted({*range(SEEDS), *FOUND}), workers=2))


@pytest.mark.slow
def test_no_seed_breaks_a_promise(played: Sequence[Result]) -> None:
    failures = [str(failure) for result in played if (failure := failure_of(result))]
    assert not failures, "\n".join(failures)


@pytest.mark.slow
def test_seeds_meet_every_kind_of_fault(played: Sequence[Result]) -> None:
    covered = total(played)
    assert [fault for fault in coverage.FAULTS if not covered[f"fault {fault}"]] == []


@pytest.mark.slow
def test_histories_have_the_shape_that_the_page_describes(played: Sequence[Result]) -> None:
    for result in played:
        shapes.check(calls_of(result.history))


@pytest.mark.slow
@pytest.mark.parametrize("seed", ALONE)
def test_a_seed_alone_is_the_same_as_among_others(
    seed: int, played: Sequence[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a fresh process, with other hashes of texts: the same history, calls and times."""
    monkeypatch.setenv("PYTHONHASHSEED", str(1000 + seed))
    (alone,) = in_processes([seed])
    among = next(result for result in played if result.seed == seed)
    assert alone.history == among.history
    assert alone.digest == among.digest


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("programs", ["nws", "tj", "kz"])
def test_any_call_of_the_storage_may_go_wrong(programs: str) -> None:
    """One at a time, in each way, and nothing else."""
    command = [sys.executable, "-m", "tests.sim", "--each-call", programs]
    done = subprocess.run(
        [*command, "--stride", str(STRIDE)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = int(done.stdout.split(" runs,")[0].split()[-1])
    assert runs > len(FAILURES)


@pytest.mark.medium
def test_what_seeds_did_not_reach_is_named() -> None:
    every = dict.fromkeys(coverage.wanted(), 1)
    assert coverage.missing(every) == []
    assert coverage.missing({**every, "fault kill": 0}) == ["fault kill"]
    assert "failpoint commit.applied" in every


@pytest.mark.medium
def test_long_run_fails_for_what_it_does_not_reach_without_a_reason() -> None:
    known = dict.fromkeys(coverage.wanted(), 1) | dict.fromkeys(coverage.NOT_REACHED, 0)
    assert coverage.wrong(known, 300) == []
    assert coverage.wrong({**known, "fault kill": 0}, 300) == ["fault kill is never reached"]
    assert coverage.wrong({**known, "fault kill": 0}, 299) == []
    reached = "failpoint sweep.segment"
    (told,) = coverage.wrong({**known, reached: 1}, 300)
    assert told == f"{reached} is reached, and coverage.NOT_REACHED says it is not"
    assert set(coverage.NOT_REACHED) <= set(coverage.wanted())
    for why in coverage.NOT_REACHED.values():
        assert Path(_ROOT, why.split(": ")[1]).is_file(), why


@pytest.mark.medium
def test_run_that_does_not_reach_everything_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(coverage, "LONG_RUN", 1)
    monkeypatch.setattr(coverage, "MOST_PLAYS", 0)
    monkeypatch.setattr(sys, "argv", ["sim", "--seeds", "1", "--workers", "1"])
    assert main() == 1
    told = capsys.readouterr().out
    assert "1 seeds, 0 of which fail" in told
    assert "is never reached" in told


def test_a_module_that_another_thread_may_import_is_that_of_its_process() -> None:
    """Copies share no state: what one process caches another one does not know."""
    program = (
        "import random; from tests.sim import scheduler as s; from tests.sim.copies import Copy; "
        "s.begin(s.Scheduler(random.Random(0))); one, other = Copy(0), Copy(1); "
        "assert one.get('engine.store.store_cache')._STORES is not "
        "other.get('engine.store.store_cache')._STORES; "
        "assert one.get('errors').StoreError is not other.get('errors').StoreError"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])
