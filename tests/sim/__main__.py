"""Run seeds: ``python -m tests.sim --seeds 300``, or one again, with its history: ``--seed 17``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tests.sim.failures import failure_of
from tests.sim.porcupine_runs import judged_texts
from tests.sim.running import Result, Warm, in_processes, total


def main() -> int:
    """Run the seeds; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many, from --first (300)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--workers", type=int, default=2, help="processes at the same time (2)")
    parser.add_argument("--seed", type=int, help="run this one alone, and print its history")
    parser.add_argument("--without", action="append", default=[], help="leave out a part of it")
    parser.add_argument("--save", type=Path, help="a folder for the histories of seeds that fail")
    parser.add_argument("--records", type=int, nargs="+", help="print what these come to, as JSON")
    given = parser.parse_args()
    if given.records is not None:
        warm = Warm()
        for seed in given.records:
            print(json.dumps(asdict(warm.run(seed))), flush=True)
        return 0
    if given.seed is not None:
        result = Warm().run(given.seed, given.without)
        sys.stdout.write(result.history)
        print(f"digest {result.digest}, {result.steps} steps, {result.calls} storage calls")
        failure = failure_of(result)
        print(failure or "it keeps every promise that the checkers know")
        return int(failure is not None)
    seeds = range(given.first, given.first + given.seeds)
    results, wrong = [], 0
    for result in in_processes(seeds, given.workers):
        results.append(result)
        wrong += _tell(result, given.save)
    print("\n".join(f"{count:>9} {name}" for name, count in sorted(total(results).items())))
    spent = sum(result.cpu_seconds for result in results)
    print(
        f"{len(results)} seeds, {wrong} of which fail; "
        f"{sum(result.calls for result in results)} storage calls in "
        f"{sum(result.simulated_seconds for result in results) / 3600:.1f} simulated hours; "
        f"{spent / len(results):.2f} s of a processor each"
    )
    refused, said = judged_texts({f"seed {one.seed}": one.history for one in results})
    print("\n".join([*refused, said]))
    return int(bool(wrong or refused))


def _tell(result: Result, folder: Path | None) -> bool:
    failure = failure_of(result)
    if failure is None:
        return False
    shrunken = failure_of(result, Warm()) or failure
    print(shrunken, flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"seed-{result.seed}.jsonl").write_text(shrunken.result.history)
    return True


if __name__ == "__main__":
    sys.exit(main())
