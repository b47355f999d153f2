"""Seeds, each in a fork of a warm process: the same start for each, in some milliseconds."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import resource
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet

from tests.sim import coverage
from tests.sim import scheduler as schedulers
from tests.sim.copies import Copy, some_copies
from tests.sim.storage import FAILURES
from tests.sim.workloads.mix import play
from tests.sim.world import Plan, World

_ROOT = Path(__file__).resolve().parents[2]
COPIES = 14
"""The processes that a seed can start, restarts included."""


@dataclass
class Result:
    """What a seed came to."""

    seed: int
    programs: str = ""
    """Those that it was told to play."""
    parts: list[str] = field(default_factory=list)
    """What the seed can be played without: programs, kinds of faults, single strikes."""
    left_out: list[str] = field(default_factory=list)
    """Of these what it was played without."""
    history: str = ""
    digest: str = ""
    failure: str = ""
    """Of the package, the simulator or a workload: the traceback."""
    steps: int = 0
    calls: int = 0
    simulated_seconds: float = 0.0
    cpu_seconds: float = 0.0
    coverage: dict[str, int] = field(default_factory=dict)


class Child:
    """A fork of this process that calls a function, and tells what it returned."""

    def __init__(self, function: Callable[[], Any], most_seconds: int = 600) -> None:
        """Begin it; it is killed when it has used a processor for so many seconds."""
        self._reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._reading)
                used = int(_cpu()) + 1
                resource.setrlimit(resource.RLIMIT_CPU, (used + most_seconds,) * 2)
                told = function()
                with os.fdopen(writing, "w") as file:
                    json.dump(told, file)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(writing)

    def told(self) -> tuple[Any, int]:
        """Wait for its end; return what it told, None if it died, and its status."""
        with os.fdopen(self._reading) as file:
            text = file.read()
        _, status = os.waitpid(self._pid, 0)
        return json.loads(text) if text else None, status


class Warm:
    """Copies of the package that no seed has used."""

    def __init__(
        self, copies: int = COPIES, changed: Callable[[str, str], str] | None = None
    ) -> None:
        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
        schedulers.begin(schedulers.Scheduler(random.Random(0)))
        self._copies: list[Copy] = list(some_copies(copies, changed))
        gc.collect()
        gc.freeze()

    @property
    def copies(self) -> list[Copy]:
        return self._copies

    def run(self, plan: Plan) -> Result:
        """Play a seed in a fork."""
        told, status = Child(lambda: asdict(self.play(plan))).told()
        if told is None:
            died = f"the process of the seed ended with {status}"
            return Result(plan.seed, plan.programs, failure=died)
        return Result(**told)

    def play(self, plan: Plan) -> Result:
        """Play a seed here; this process can play no other one."""
        logging.getLogger("pravega_spark").setLevel(logging.CRITICAL)
        gc.disable()
        result = Result(plan.seed, plan.programs)
        before = _cpu()
        world = World(plan, self._copies)
        try:
            play(world)
        except BaseException:
            result.failure = traceback.format_exc()
        result.parts = [part for part in world.parts if part not in plan.without]
        result.left_out = [part for part in world.parts if part in plan.without]
        result.history, result.digest = world.history.text(), world.digest
        result.steps, result.calls = world.scheduler.steps, world.calls
        result.simulated_seconds = world.scheduler.now / 1e9
        result.cpu_seconds = _cpu() - before
        result.coverage = dict(sorted((world.coverage + world.bucket.counted).items()))
        return result


def each_call(warm: Warm, programs: str, stride: int = 1) -> Iterator[tuple[str, Result]]:
    """Play programs with each call of the storage in turn going wrong, in each way; yield all.

    Nothing else goes wrong. With a ``stride`` it is every so many-th call only, in each way from
    another one on.
    """
    calm = warm.run(Plan(0, programs=programs, failing=(0, "late")))
    yield "no call fails", calm
    for first, how in enumerate(FAILURES):
        for number in range(1 + first % stride, calm.calls + 1, stride):
            plan = Plan(0, programs=programs, failing=(number, how))
            yield f"{how}: call {number}", warm.run(plan)


def _cpu() -> float:
    used: Any = resource.getrusage(resource.RUSAGE_SELF)
    return float(used.ru_utime + used.ru_stime)


def in_processes(seeds: Sequence[int], workers: int = 1) -> Iterator[Result]:
    """Play seeds in fresh processes, so many at a time; yield what they came to."""
    command = [sys.executable, "-m", "tests.sim", "--records"]
    shares = [seeds[worker::workers] for worker in range(workers)]
    began = [
        subprocess.Popen(
            [*command, *map(str, share)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )
        for share in shares
        if share
    ]
    told: SimpleQueue[str | None] = SimpleQueue()

    def read(process: subprocess.Popen[str]) -> None:
        """Take what it tells when it tells it: it would wait for a reader of a full pipe."""
        assert process.stdout is not None
        for line in process.stdout:
            told.put(line)
        told.put(None)

    for process in began:
        threading.Thread(target=read, args=(process,), daemon=True).start()
    open_ends = len(began)
    while open_ends:
        line = told.get()
        if line is None:
            open_ends -= 1
        else:
            yield Result(**json.loads(line))
    for process in began:
        with process:
            if process.wait():
                raise RuntimeError(f"a process of seeds ended with {process.returncode}")


def pairs_reached(warm: Warm, covered: Counter[str]) -> Iterator[Result]:
    """Play programs that may have verbs in flight at once which no seed had; yield each result.

    The pairs that it had are added to ``covered``. A pair is given up after so many plays.
    """
    for name in coverage.missing(covered):
        programs = coverage.programs_of(name, covered)
        for seed in range(coverage.MOST_PLAYS if programs else 0):
            if covered[name]:
                break
            result = warm.run(Plan(seed, programs=programs))
            had = {one: n for one, n in result.coverage.items() if one.startswith("pair ")}
            covered.update(had)
            yield result


def total(results: Sequence[Result]) -> Counter[str]:
    """Return what all seeds together covered."""
    found: Counter[str] = Counter()
    for result in results:
        found.update(result.coverage)
    return found
