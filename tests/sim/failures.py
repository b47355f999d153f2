"""Whether a seed broke a promise, and what is told of one that did."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.checkers.everything import check
from tests.sim.checkers.violations import Violation
from tests.sim.running import Result, Warm
from tests.sim.world import Plan


def broken(result: Result) -> str:
    """Return what is wrong with a seed, or an empty text."""
    if result.history:
        try:
            check(result.history)
        except Violation as violation:
            return str(violation)
    return result.failure


def _kind(wrong: str) -> str:
    """Return the promise, or the last line of a traceback, without its numbers."""
    last = wrong.strip().splitlines()[-1] if "Traceback" in wrong else wrong.partition(":")[0]
    return "".join(letter for letter in last if not letter.isdigit())


@dataclass
class Failure:
    """A seed that fails, with as little as still fails in the same way."""

    result: Result
    wrong: str
    without: tuple[str, ...]

    def __str__(self) -> str:
        left_out = "".join(f" --without {part!r}" for part in self.without)
        played = f" --programs {self.result.programs}" if self.result.programs else ""
        again = f"python -m tests.sim --seed {self.result.seed}{played}{left_out}"
        steps = f"{self.result.steps} steps of {', '.join(self.result.parts)}"
        return f"seed {self.result.seed}: {self.wrong}\n{steps}\nagain, with its history: {again}"


def failure_of(result: Result, warm: Warm | None = None) -> Failure | None:
    """Return what failed, shrunken if there are copies to play it again; None for a good seed."""
    wrong = broken(result)
    if not wrong:
        return None
    without: tuple[str, ...] = ()
    if warm is not None:
        for part in result.parts:
            other = warm.run(Plan(result.seed, (*without, part), result.programs))
            found = broken(other)
            if found and _kind(found) == _kind(wrong):
                result, wrong, without = other, found, (*without, part)
    return Failure(result, wrong, tuple(part for part in without if part in result.left_out))
