"""The system calls of two processes that work on a root, as a run of them made them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.sim.power.disks import Record
from tests.sim.power.fsyncs import FSYNCS
from tests.sim.power.system_calls import recorded


class Recording:
    """What the two processes did."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Run them, in a folder; it takes strace."""
        self.root, self.history = str(folder / "root"), str(folder / "history")
        command = [sys.executable, "-m", "tests.sim.power.workload", self.root, self.history]
        tree = Path(__file__).parents[3]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        run = [*command, str(seed)]
        self.calls = recorded(run, folder / "strace", env=environment, cwd=tree)

    def without(self, fsyncs: str) -> Record:
        """Return the record as if some fsyncs had done nothing."""
        return Record(self.calls, self.root, self.history, FSYNCS[fsyncs])

    def whole(self) -> Record:
        """Return the record."""
        return Record(self.calls, self.root, self.history)
