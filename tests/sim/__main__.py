"""Run seeds: ``python -m tests.sim 300``, or one again, with its history: ``... --seed 17``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.sim.failures import report
from tests.sim.running import Result, Warm, total


def main() -> int:
    """Run the seeds; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", default=300, help="how many, from --first")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one alone, and print its history")
    parser.add_argument("--save", type=Path, help="a folder for the histories of seeds that fail")
    given = parser.parse_args()
    warm = Warm()
    if given.seed is not None:
        result = warm.run(given.seed)
        sys.stdout.write(result.history)
        print(f"digest {result.digest}, {result.steps} steps, {result.calls} storage calls")
        return _told([result], given.save)
    results = [warm.run(seed) for seed in range(given.first, given.first + given.seeds)]
    wrong = _told(results, given.save)
    print("\n".join(f"{count:>9} {name}" for name, count in sorted(total(results).items())))
    spent = sum(result.cpu_seconds for result in results)
    print(
        f"{len(results)} seeds, {sum(result.calls for result in results)} storage calls, "
        f"{sum(result.simulated_seconds for result in results) / 3600:.1f} simulated hours, "
        f"{spent / len(results):.2f} s of a processor each"
    )
    return wrong


def _told(results: list[Result], folder: Path | None) -> int:
    failed = [(result, text) for result in results if (text := report(result))]
    for result, text in failed:
        print(text)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{result.workload}-{result.seed}.jsonl").write_text(result.history)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
