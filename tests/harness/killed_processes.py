"""Processes that work side by side until a file exists, while they are killed at any moment."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.harness.warm_children import WarmChild

PROJECT = Path(__file__).parents[2]
_SECONDS = 240.0


def shell_status(returncode: int) -> int:
    """Return an exit status as a shell does, to which a process that a signal ended has 128 more.

    CPython ends itself by SIGINT after a clean end if that came while it executed a text, as it
    does to make a dataclass of a module that is imported just then.
    """
    return returncode if returncode >= 0 else 128 - returncode


class KilledProcesses:
    """Runs a module in several processes; one that is killed is followed by another.

    Each gets the arguments of its worker and life, the path of a ledger of its own, and the path of
    the file that ends it. It prints ``ready`` when it begins to work, and adds a line to its ledger
    for each thing that was acknowledged.
    """

    def __init__(
        self,
        folder: Path,
        module: str,
        arguments: Callable[[int, int], Sequence[str]],
        *,
        seed: int,
    ) -> None:
        self._folder, self._module, self._arguments = folder, module, arguments
        self._chance, self._lives, self._end = random.Random(seed), 0, folder / "end"
        self._ledgers: dict[int, Path] = {}

    def run(self, workers: int, kills: int, until: Callable[[], object] = lambda: None) -> None:
        """Start the workers, kill and follow one of them so many times, and let all end.

        They work on until ``until`` returns and the last life of each has had two things
        acknowledged.
        """
        processes = [self._start(worker) for worker in range(workers)]
        try:
            for _ in range(kills):
                time.sleep(self._chance.random() * 0.6)
                killed = self._chance.randrange(workers)
                processes[killed].kill()
                processes[killed].wait()
                processes[killed] = self._start(killed)
            until()
            last = {worker: self._ledgers[worker] for worker in range(workers)}
            wait_until(lambda: all(len(_lines(path)) >= 2 for path in last.values()))
            self._end.touch()
            assert [process.wait(240) for process in processes] == [0] * workers
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def acknowledged(self) -> list[str]:
        """Return the lines of all ledgers; one that a kill cut off was not recorded."""
        return [line for path in self._folder.glob("*.ledger") for line in _lines(path)]

    def _start(self, worker: int) -> WarmChild:
        self._lives += 1
        ledger = self._ledgers[worker] = self._folder / f"{self._lives}.ledger"
        given = (*self._arguments(worker, self._lives), str(ledger), str(self._end))
        process = WarmChild(self._module, *given)
        assert process.stdout.readline() == "ready\n"
        return process


def _lines(ledger: Path) -> list[str]:
    whole = ledger.read_text().splitlines(keepends=True) if ledger.exists() else []
    return [line.removesuffix("\n") for line in whole if line.endswith("\n")]


def wait_until(condition: Callable[[], bool], what: str = "the processes do no work") -> None:
    """Wait for a condition that working processes make true."""
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
