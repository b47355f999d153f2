"""Whether a seed broke a promise, and what is told of one that did."""

from __future__ import annotations

from tests.sim.checkers.everything import check
from tests.sim.checkers.violations import Violation
from tests.sim.running import Result


def broken(result: Result) -> str:
    """Return what is wrong with a seed, or an empty text."""
    if result.failure:
        return result.failure
    try:
        check(result.history)
    except Violation as violation:
        return str(violation)
    return ""


def report(result: Result) -> str:
    """Return the lines about a seed that failed; an empty text for a good one."""
    wrong = broken(result)
    if not wrong:
        return ""
    return (
        f"seed {result.seed} ({result.workload}) fails: {wrong}\n"
        f"again, with its history: python -m tests.sim --seed {result.seed}\n"
    )
