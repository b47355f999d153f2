"""Faults in the simulator: which seed breaks which promise.

The seeds are played once without a fault, to see in which of them it would change anything. Only
those are played with it, until a checker refuses the history of one. An error of Python that no
promise names does not count: it is told, and the next seed is played.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.mutants.faults import PACKAGE, Fault
from tests.mutants.placing import Places
from tests.sim.checkers import everything
from tests.sim.checkers.violations import Violation
from tests.sim.running import Child, Result, Warm
from tests.sim.world import Plan

ROOT = Path(__file__).resolve().parents[2]


_MOST_SECONDS = 20
"""Of a processor, for a seed with a fault; without one the longest takes three."""


@dataclass(frozen=True)
class Shown:
    """What the simulator shows of a fault.

    ``verdict`` is ``caught``, ``survived``, ``error`` (seeds ended in errors of Python, and no
    history was refused), ``unreached`` or ``absent`` (no simulated process imports the file).
    """

    fault: Fault
    verdict: str
    detail: str
    seed: int | None = None
    """The first seed whose history is refused."""
    promise: str = ""
    """What it breaks."""
    played: int = 0
    """Seeds that were played with the fault."""
    reaching: int = 0
    """Those of all seeds in which it changes what its place computes."""
    cpu_seconds: float = 0.0


def played(
    faults: Sequence[Fault], seeds: int, workers: int = 1, most: int | None = None
) -> Iterator[Shown]:
    """Play faults, each in at most ``most`` of the first seeds, until a checker refuses one.

    Raises RuntimeError if a seed is refused without a fault.
    """
    warm = Warm()
    places = Places(ROOT, faults, warm.copies)
    for fault in places.absent:
        yield Shown(fault, "absent", "no simulated process imports the file")
    reaching = _reaching(warm, places, seeds, workers)
    with ThreadPoolExecutor(workers) as executor:
        again = [one for one in places.numbers if reaching[one]]
        for fault in places.numbers:
            if not reaching[fault]:
                yield Shown(fault, "unreached", f"it changes nothing in {seeds} seeds")
        begun = [
            executor.submit(
                _shown, fault, warm, reaching[fault], partial(places.place, fault), most or seeds
            )
            for fault in again
        ]
        for one in as_completed(begun):  # one that loops in its seeds holds no other back
            yield one.result()
    for fault in places.elsewhere:
        yield _shown(fault, _warm_with(fault), list(range(seeds)), bool, most or seeds)


def _reaching(warm: Warm, places: Places, seeds: int, workers: int) -> dict[Fault, list[int]]:
    """Return the seeds that each fault changes; those that it changes most often come first."""

    known = Reached(places.numbers)

    def play(seed: int) -> tuple[int, str, dict[str, int]]:
        def marked() -> Any:
            places.mark()
            result = warm.play(Plan(seed))
            return [_broken(result) or result.failure, dict(places.reached)]

        if seed in known.seeds:
            return seed, "", known.seeds[seed]
        told, status = Child(marked).told()
        wrong, reached = told if told is not None else (f"it ended with {status}", {})
        names = {fault.promise: reached.get(str(number), 0) for fault, number in numbers.items()}
        return seed, wrong, names

    numbers = places.numbers
    found: dict[Fault, list[tuple[int, int]]] = {fault: [] for fault in numbers}
    with ThreadPoolExecutor(workers) as executor:
        for seed, wrong, reached in executor.map(play, range(seeds)):
            if wrong:
                raise RuntimeError(f"seed {seed} fails without a fault: {wrong}")
            known.note(seed, reached)
            for fault in numbers:
                if times := reached[fault.promise]:
                    found[fault].append((-min(times, 8), seed))
    return {fault: [seed for _, seed in sorted(its)] for fault, its in found.items()}


class Reached:
    """Which faults change which seeds, kept for the same package and simulator: an interrupted run
    goes on where it stopped."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        """Find the seeds for which a run has asked of all these faults."""
        code = hashlib.sha256()
        folders = [*(ROOT / PACKAGE).rglob("*.py"), *(ROOT / "tests/sim").rglob("*.py")]
        for path in (*sorted(folders), Path(__file__).with_name("placing.py")):
            code.update(path.read_bytes())
        self._file = ROOT / "build/mutants" / f"{code.hexdigest()[:16]}.jsonl"
        asked = {fault.promise for fault in faults}
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        rows = [json.loads(line) for line in lines]
        self.seeds: dict[int, dict[str, int]] = {
            seed: times for seed, times in rows if asked <= times.keys()
        }
        """How often each fault changes what its place computes in each of them."""

    def note(self, seed: int, times: dict[str, int]) -> None:
        """Keep what faults change in a seed."""
        if seed not in self.seeds:
            self.seeds[seed] = times
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(f"{json.dumps([seed, times])}\n")


def _shown(
    fault: Fault, warm: Warm, seeds: Sequence[int], place: Callable[[], object], most: int
) -> Shown:
    spent, errors = 0.0, []
    for number, seed in enumerate(seeds[:most], 1):

        def play(seed: int = seed) -> Any:
            place()
            result = warm.play(Plan(seed))
            return [_broken(result), result.failure, result.cpu_seconds]

        told, status = Child(play, _MOST_SECONDS).told()
        promise, failure, seconds = told if told is not None else ("", f"ended with {status}", 0.0)
        spent += seconds
        if promise:
            detail = f"seed {seed}, the {number}. of {len(seeds)} that it changes: {promise}"
            return Shown(fault, "caught", detail, seed, promise, number, len(seeds), spent)
        if failure:
            errors.append(f"seed {seed}: {failure.strip().splitlines()[-1][:200]}")
    tried = min(len(seeds), most)
    detail = errors[0] if errors else f"no history of {tried} seeds is refused"
    verdict = "error" if errors else "survived"
    return Shown(fault, verdict, detail, None, "", tried, len(seeds), spent)


def _warm_with(fault: Fault) -> Warm:
    """Return copies that have a fault from their import on."""

    def changed(file: str, source: str) -> str:
        is_it = Path(file).samefile(ROOT / fault.path)
        return fault.placed_in(source) if is_it else source

    return Warm(changed=changed)


def _broken(result: Result) -> str:
    """Return the promise that a seed breaks; one that ended in an error told its history so far."""
    if result.failure and not result.history:
        return ""
    try:
        everything.check(result.history)
    except Violation as violation:
        return violation.promise
    return ""
