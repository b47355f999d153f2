"""Runs a soak: ``python -m tests.soak --minutes 10 --storage s3``."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.harness.arguments import above_zero, at_least_one, at_least_zero, folder_name
from tests.soak import records
from tests.soak.rounds import AUDITOR, CAST, SPARK
from tests.soak.running import Outcome, Run
from tests.soak.storages import STORAGES

NAMES = {"disk": "processes on a local disk", "s3": "processes on S3"}


def main() -> int:
    """Run it; return 1 if a promise was broken, something grew, or a process failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--minutes", type=above_zero, default=1.0, help="how long, and to the round's end (1)"
    )
    parser.add_argument("--storage", choices=sorted(STORAGES), default="disk", help="(disk)")
    parser.add_argument(
        "--seed", type=at_least_zero, help="decides programs and faults, not their times"
    )
    parser.add_argument("--size", type=at_least_one, default=10, help="how much a round does (10)")
    parser.add_argument("--cast", nargs="+", choices=list(CAST), default=list(CAST), help="(all)")
    parser.add_argument("--save", type=folder_name, help="a folder for the histories, compressed")
    given, commit = records.parsed(parser)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # processes end, too
    seed = int(time.time()) if given.seed is None else given.seed
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"seed {seed}, {given.storage}, in {folder}", flush=True)
    cast = [name for name in CAST if name in (AUDITOR, *given.cast)]
    say = partial(print, flush=True)
    run = Run(folder, given.storage, seed, given.size, cast, given.save, say)
    try:
        outcome = run.run(given.minutes)
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    _show(outcome)
    if commit:
        without = "" if SPARK in cast else ", without Spark"
        records.keep(record_of(outcome, commit, folder, without))
    if outcome.broken:
        print("\n".join(outcome.broken))
        print(f"histories and logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _show(outcome: Outcome) -> None:
    for name, values in sorted(outcome.series.items()):
        print(f"{name:>20} {' '.join(f'{value:g}' for value in values)}")
    for name in ("minutes", "rounds", "calls", "events", "transactions", "faults", "judged"):
        print(f"{name:>20} {json.dumps(getattr(outcome, name))}")


def record_of(outcome: Outcome, commit: str, folder: Path, without: str = "") -> records.Record:
    """Return what is kept of a run in a folder; ``without`` says what did not play."""
    done = {name: getattr(outcome, name) for name in ("rounds", "calls", "events", "transactions")}
    done |= {f"histories judged by {judge}": count for judge, count in outcome.judged.items()}
    return records.Record(
        f"{NAMES[outcome.storage]}{without}",
        records.today(),
        commit,
        round(outcome.minutes / 60, 2),
        done,
        outcome.faults,
        [found.replace(f"{folder}/", "").partition("\n")[0] for found in outcome.broken],
        {name: records.thinned(values) for name, values in sorted(outcome.series.items())},
    )


if __name__ == "__main__":
    sys.exit(main())
