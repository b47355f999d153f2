"""Check the model of a commit with Spin: the rules hold, and without one of them a promise breaks.

Needs ``spin`` and ``gcc`` (``apt install spin gcc``). Prints a row for each run, with the seconds
of a processor that it took, and exits with 1 if a run ends otherwise than it should.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MODEL: Final = Path(__file__).with_name("commit.pml")
PROMISES: Final = {
    "!(state[top].file[w])": "a batch counts once",
    "(state[top].file[me]==session)": "what is acknowledged is stored",
    "(state[known].file[me]==session)": "what counts is what its writer has now",
    ".exists": "a commit names what is there",
    "state[top].request": "others leave the version to the author of a request",
}
"""A part of an assertion, and the promise that it stands for; the first one that fits."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a run of the model allows, and the rule that it leaves out."""

    what: str
    bounds: dict[str, int]
    breaks: str | None = None


OPEN: Final = {"OPEN": 1}
RUNS: Final = (
    Run("both writers open their ids, one sweep", {}),
    Run("one writer dies and starts again", {**OPEN, "DEATHS": 1}),
    Run("one request", {**OPEN, "REQUESTS": 1}),
    Run("two sweeps, an hour, and old commits deleted", {**OPEN, "SWEEPS": 2}),
    Run("the same with six versions", {**OPEN, "SWEEPS": 2, "VERSIONS": 6}),
    Run("no check after the answer", {**OPEN, "SWEEPS": 2, "MUTANT": 1}, "stored"),
    Run("a put without an answer counts as lost", {**OPEN, "SWEEPS": 0, "MUTANT": 2}, "once"),
    Run("the horizon binds no commit", {**OPEN, "MUTANT": 3}, "names"),
    Run("the same body after a lost race", {**OPEN, "SWEEPS": 0, "MUTANT": 4}, "once"),
    Run("an old session's offer counts", {**OPEN, "DEATHS": 1, "SWEEPS": 0, "MUTANT": 5}, "now"),
    Run("commits go without an hour's wait", {**OPEN, "SWEEPS": 2, "MUTANT": 6}, "stored"),
    Run("nobody minds a request", {**OPEN, "REQUESTS": 1, "SWEEPS": 0, "MUTANT": 7}, "leave"),
    Run("no look at dates", {**OPEN, "SWEEPS": 2, "MUTANT": 8}, "stored"),
)


def check(run: Run) -> tuple[int, str]:
    """Return the number of states of a run, and the promise that broke, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        given = [f"-D{name}={value}" for name, value in run.bounds.items()]
        _call(["spin", *given, "-a", str(MODEL)], folder)
        _call(["gcc", "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"], folder)
        found = _call(["./pan", "-m100000", "-E"], folder)
    states = re.search(r"(\d+) states, stored", found)
    assert states, found
    assert "max search depth too small" not in found, found
    broken = re.search(r"pan:1: (.*) \(at depth", found)
    if broken is None:
        assert "errors: 0" in found, found
        return int(states[1]), ""
    promises = [text for part, text in PROMISES.items() if part in broken[1]]
    return int(states[1]), promises[0] if promises else broken[1]


def _call(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
    assert not done.returncode, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def _cpu_seconds() -> float:
    """Return the seconds of a processor that all programs took which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Check all runs; return how many ended otherwise than they should."""
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            print(f"{tool} is not installed: apt install spin gcc")
            return 1
    wrong = 0
    for run in RUNS:
        before = _cpu_seconds()
        states, promise = check(run)
        took = _cpu_seconds() - before
        is_right = (
            run.breaks in promise if run.breaks and promise else run.breaks == (promise or None)
        )
        wrong += not is_right
        found = f"breaks: {promise}" if promise else "every promise holds"
        print(
            f"{run.what:48} {states:12,} states {took:5.0f} s  {found}"
            f"{'' if is_right else '  <- WRONG'}",
            flush=True,
        )
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main()))
