"""Histories of real threads on the memory store, and of processes on a disk, one of them killed.

Our checkers and Porcupine take them: what they know of the package is right, whoever runs it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import pytest

from pravega_spark import StreamManager
from tests.harness.tiers import sized
from tests.sim import porcupine_runs
from tests.sim.checkers import everything
from tests.sim.history import History, SharedHistory, joined
from tests.sim.power.reopening import go_on
from tests.sim.power.workload import Work, created
from tests.sim.recorded import calls_of
from tests.sim.recording import Processes

TREE = Path(__file__).parents[2]
RUNS = sized(2, 40, "REAL_HISTORIES")
THREADS, STEPS = 4, 12
_roots = count()


def taken(text: str) -> None:
    """All checkers take a history, and Porcupine does where Go is."""
    everything.check(text)
    refused, _ = porcupine_runs.judged_texts({"history": text})
    assert refused == []


def worked(process: Processes, seed: int, errors: list[BaseException]) -> None:
    """Do some steps in a thread."""
    try:
        with Work(process, seed) as doing:
            for _ in range(STEPS):
                doing.step()
    except BaseException as error:
        errors.append(error)


@pytest.mark.long
@pytest.mark.medium
def test_threads_of_one_process_keep_every_promise() -> None:
    for seed in range(RUNS):
        history, errors = History(seed=seed), list[BaseException]()
        with StreamManager(f"memory://real-histories-{next(_roots)}") as manager:
            created(Processes(manager, history, "main"))
            threads = []
            for number in range(THREADS):
                process = Processes(manager, history, f"thread-{number}")
                given = (process, THREADS * seed + number, errors)
                threads.append(threading.Thread(target=worked, args=given))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            go_on(Processes(manager, history, "after"), seed, history.text())
        assert errors == []
        assert sum(call.ok for call in calls_of(history.text())) > THREADS * STEPS
        taken(history.text())


@pytest.mark.long
@pytest.mark.slow
def test_processes_one_of_which_is_killed_keep_every_promise(tmp_path: Path) -> None:
    logging.disable(logging.ERROR)  # of what the killed one left
    try:
        for seed in range(RUNS):
            folder = tmp_path / str(seed)
            folder.mkdir()
            root, path = folder / "root", folder / "history"
            _killed(root, path, seed)
            with StreamManager(str(root)) as manager:
                go_on(Processes(manager, SharedHistory(path), "after"), seed, joined(path))
            taken(joined(path, seed=seed))
    finally:
        logging.disable(logging.NOTSET)


def _killed(root: Path, path: Path, seed: int) -> None:
    """Run both processes, and kill the first one when the history has a number of lines."""
    command = [sys.executable, "-m", "tests.sim.power.workload", str(root), str(path), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    with subprocess.Popen(command, cwd=TREE, env=environment, stdout=subprocess.PIPE) as first:
        wanted = 20 + 7 * seed % 30
        while first.poll() is None:
            if path.exists() and path.read_bytes().count(b"\n") >= wanted:
                first.kill()
                break
        assert first.stdout is not None
        first.stdout.read()  # until the second one has ended, which has the same end of the pipe
