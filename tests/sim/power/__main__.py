"""Tries disks after power cuts: ``python -m tests.sim.power --disks 1000`` (needs strace)."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.harness.arguments import at_least_one
from tests.sim.checkers.violations import Violation
from tests.sim.power.disks import KINDS
from tests.sim.power.recording import Recording
from tests.sim.power.reopening import checked
from tests.sim.power.workload import smaller_large_events
from tests.soak import records


def main() -> int:
    """Record runs, and draw disks from them in turn; return 1 if one broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.power", description=__doc__)
    parser.add_argument("--disks", type=at_least_one, default=60, help="how many disks (60)")
    parser.add_argument("--recordings", type=at_least_one, default=5, help="how many runs (5)")
    given, commit = records.parsed(parser)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the folder is removed, too
    logging.disable(logging.ERROR)  # what was not acknowledged may be gone, and is told of
    smaller_large_events(pytest.MonkeyPatch())
    began, done, broken = time.monotonic(), Counter[str](), []
    with tempfile.TemporaryDirectory(prefix="power-") as folder:
        made = []
        for seed in range(given.recordings):
            (place := Path(folder, str(seed))).mkdir()
            made.append(Recording(place, seed).whole())
        for number in range(given.disks):
            kind = KINDS[number % len(KINDS)]
            try:
                kept = checked(made[number % len(made)], kind, number, Path(folder, "disks"))
            except Violation as violation:
                print(violation, flush=True)
                broken.append(str(violation).partition("\n")[0])
            else:
                done[f"disks of {kind}"] += 1
                done["acknowledged calls before a cut"] += kept
    hours = (time.monotonic() - began) / 3600
    print(f"{given.disks} disks, {len(broken)} of which break a promise; {dict(done)}")
    if commit:
        records.keep(record_of(given.recordings, done, hours, broken, commit))
    return int(bool(broken))


def record_of(
    recordings: int, done: dict[str, int], hours: float, broken: list[str], commit: str
) -> records.Record:
    """Return what is kept of a run."""
    disks = sum(count for name, count in done.items() if name.startswith("disks of ")) + len(broken)
    return records.Record(
        "power cuts, of recorded system calls",
        records.today(),
        commit,
        round(hours, 2),
        {"recorded runs": recordings, **done},
        {"power cut": disks},
        broken,
    )


if __name__ == "__main__":
    sys.exit(main())
