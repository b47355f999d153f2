"""One fault in the simulator: which seed breaks which promise, as one line of JSON.

``python -m tests.mutants.simulated PROMISE --seeds N`` places the fault that is named by its
promise in each simulated process, and plays seeds until a checker refuses a history. An error of
Python that no promise names does not count: it is told, and the next seed is played.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.mutants.faults import FAULTS, Fault
from tests.sim.checkers import everything
from tests.sim.checkers.violations import Violation
from tests.sim.running import Result, Warm

ROOT = Path(__file__).resolve().parents[2]


def played(fault: Fault | None, seeds: int, first: int = 0) -> dict[str, object]:
    """Play seeds with a fault; return what the first refused history breaks.

    ``verdict`` is ``caught``, ``survived`` or ``error`` (seeds ended in errors, and none was
    refused); ``cpu_seconds`` is what the seeds took.
    """
    placed = 0

    def changed(file: str, source: str) -> str:
        nonlocal placed
        if fault is None or not Path(file).samefile(ROOT / fault.path):
            return source
        placed += 1
        return fault.placed_in(source)

    began = time.process_time()
    warm = Warm(changed=changed)
    if fault is not None and not placed:
        return {"verdict": "absent", "detail": "no simulated process imports the file"}
    spent, errors = time.process_time() - began, []
    for seed in range(first, first + seeds):
        result = warm.run(seed)
        spent += result.cpu_seconds
        broken = _violation(result)
        if broken is not None:
            detail = f"seed {seed}: {broken.promise}"
            return {"verdict": "caught", "detail": detail, "cpu_seconds": spent}
        if result.failure:
            errors.append(f"seed {seed}: {result.failure.strip().splitlines()[-1][:200]}")
    verdict = "error" if errors else "survived"
    detail = errors[0] if errors else f"no history of {seeds} seeds is refused"
    return {"verdict": verdict, "detail": detail, "cpu_seconds": spent}


def _violation(result: Result) -> Violation | None:
    """The promise that a seed breaks; a seed that ended in an error told its history until then."""
    if result.failure and not result.history:
        return None
    try:
        everything.check(result.history)
    except Violation as violation:
        return violation
    return None


def main() -> int:
    """Play one fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.simulated", description=__doc__)
    parser.add_argument("promise", help="the whole promise of the fault; an empty text for none")
    parser.add_argument("--seeds", type=int, default=60)
    given = parser.parse_args()
    fault = next((one for one in FAULTS if one.promise == given.promise), None)
    if fault is None and given.promise:
        parser.error(f"no fault has the promise {given.promise!r}")
    print(json.dumps(played(fault, given.seeds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
