"""Run seeds: ``python -m tests.sim --seeds 300``, or one again, with its history: ``--seed 17``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.harness.arguments import at_least_one, at_least_zero, end_with_the_reader, folder_name
from tests.sim import coverage
from tests.sim.failures import broken, failure_of
from tests.sim.porcupine_runs import judged_texts
from tests.sim.running import COPIES, Result, Warm, each_call, in_processes, pairs_reached, total
from tests.sim.workloads.mix import letters
from tests.sim.world import Plan
from tests.soak import records


def main() -> int:
    """Run the seeds; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=at_least_one, help="how many, from --first (300)")
    parser.add_argument("--first", type=at_least_zero, help="the first seed (0)")
    parser.add_argument("--workers", type=at_least_one, help="processes at the same time (2)")
    parser.add_argument(
        "--seed",
        type=at_least_zero,
        help="run this one alone, and print its history; the rest to stderr",
    )
    parser.add_argument("--without", action="append", default=[], help="leave out a part of it")
    parser.add_argument("--programs", help="letters of those that play in the one seed")
    parser.add_argument(
        "--each-call",
        metavar="PROGRAMS",
        help="play these with each call of the storage in turn going wrong, in each way",
    )
    parser.add_argument("--stride", type=at_least_one, help="of --each-call: every so many-th (1)")
    parser.add_argument(
        "--save", type=folder_name, help="a folder for the histories of seeds that fail"
    )
    parser.add_argument(
        "--records", type=at_least_zero, nargs="+", help="print what these come to, as JSON"
    )
    given, commit = records.parsed(parser)
    if given.seed is None and (given.without or given.programs is not None):
        parser.error("--without and --programs are of one seed: give --seed, too")
    if given.each_call is None and given.stride is not None:
        parser.error("--stride is of --each-call: give that, too")
    others = [name for name in ("seed", "each_call", "records") if _is_given(given, name)]
    others += [name for name in ("seeds", "first", "workers", "save", "keep") if others]
    together = [f"--{name.replace('_', '-')}" for name in others if _is_given(given, name)]
    if len(together) > 1:
        parser.error(f"{together[0]} cannot be with {' and '.join(together[1:])}")
    _check_programs(parser, "--programs", given.programs, given.seed or 0)
    _check_programs(parser, "--each-call", given.each_call, 0)
    if given.records is not None:
        warm = Warm()
        for seed in given.records:
            print(json.dumps(asdict(warm.run(Plan(seed)))), flush=True)
        return 0
    if given.each_call is not None:
        return _each_call(given.each_call, given.stride or 1)
    if given.seed is not None:
        result = Warm().run(Plan(given.seed, given.without, given.programs or ""))
        unknown = [part for part in given.without if part not in result.left_out]
        if unknown and result.history:
            parts = ", ".join(dict.fromkeys(result.parts))
            parser.error(
                f"argument --without: the seed has no part {unknown[0]!r}: its parts are {parts}"
            )
        sys.stdout.write(result.history)
        failure = failure_of(result)
        told = [f"digest {result.digest}, {result.steps} steps, {result.calls} storage calls"]
        told.append(str(failure or "it keeps every promise that the checkers know"))
        print("\n".join(told), file=sys.stderr)
        return int(failure is not None)
    first = given.first or 0
    seeds = range(first, first + (given.seeds or 300))
    results, wrong = list[Result](), list[str]()
    for result in in_processes(seeds, given.workers or 2):
        results.append(result)
        wrong += _told(result, given.save)
    covered = total(results)
    if len(results) >= coverage.LONG_RUN:
        for result in pairs_reached(Warm(), covered):
            results.append(result)
            wrong += _told(result, given.save)
    print("\n".join(f"{count:>9} {name}" for name, count in sorted(covered.items())))
    for name in coverage.missing(covered):
        print(f"{0:>9} {name}" + (f" ({why})" if (why := coverage.NOT_REACHED.get(name)) else ""))
    pairs = coverage.wanted_pairs(covered)
    met = sum(bool(covered[name]) for name in pairs)
    print(f"{met} of {len(pairs)} pairs of verbs were in flight at once on an object")
    more = f" and {len(results) - len(seeds)} plays for pairs" if len(results) > len(seeds) else ""
    spent = sum(result.cpu_seconds for result in results)
    print(
        f"{len(seeds)} seeds{more}, {len(wrong)} of which fail; "
        f"{sum(result.calls for result in results)} storage calls in "
        f"{sum(result.simulated_seconds for result in results) / 3600:.1f} simulated hours; "
        f"{spent / len(results):.2f} s of a processor each"
    )
    refused, said = judged_texts(
        {f"seed {one.seed} {one.programs}".strip(): one.history for one in results}
    )
    gaps = coverage.wrong(covered, len(seeds))
    print("\n".join([*refused, said, *gaps]))
    if commit:
        records.keep(record_of(results, wrong + refused, commit))
    return int(bool(wrong or refused or gaps))


def _is_given(given: argparse.Namespace, name: str) -> bool:
    value = getattr(given, name)
    return value is not None and value is not False


def _check_programs(
    parser: argparse.ArgumentParser, option: str, programs: str | None, seed: int
) -> None:
    """Refuse programs that a seed does not have, and more than can each have a process."""
    if programs is None:
        return
    known, most = letters(seed), COPIES - 1
    unknown = sorted({*programs} - known)
    if unknown or not programs:
        parser.error(
            f"argument {option}: no program of seed {seed} is called "
            f"{unknown[0] if unknown else ''!r}: the letters are {''.join(sorted(known))}"
        )
    if len(programs) > most:
        parser.error(f"argument {option}: must be {most} programs or fewer, got {len(programs)}")


def _each_call(programs: str, stride: int) -> int:
    wrong = count = 0
    for how, result in each_call(Warm(), programs, stride):
        count += 1
        if failed := broken(result):
            wrong += 1
            print(f"{how}: {failed}", flush=True)
    print(f"{programs}: {count} runs, {wrong} of which fail")
    return int(bool(wrong))


def record_of(results: Sequence[Result], broken: list[str], commit: str) -> records.Record:
    """Return what is kept of a run."""
    covered = total(results)
    hours = sum(result.simulated_seconds for result in results) / 3600
    done = {
        "seeds": sum(not result.programs for result in results),
        "calls": sum(n for name, n in covered.items() if name.startswith("outcome ")),
        "storage calls": sum(result.calls for result in results),
    }
    faults = {
        name.removeprefix("fault "): count
        for name, count in sorted(covered.items())
        if name.startswith("fault ")
    }
    shown = [line.partition("\n")[0] for line in broken]
    return records.Record(
        "simulator (its own hours)", records.today(), commit, round(hours, 1), done, faults, shown
    )


def _told(result: Result, folder: Path | None) -> list[str]:
    """Tell of a seed that fails; return what it broke."""
    failure = failure_of(result)
    if failure is None:
        return []
    shrunken = failure_of(result, Warm()) or failure
    print(shrunken, flush=True)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"seed-{result.seed}.jsonl").write_text(shrunken.result.history)
    return [str(shrunken)]


if __name__ == "__main__":
    end_with_the_reader()
    sys.exit(main())
