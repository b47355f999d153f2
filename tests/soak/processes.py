"""The processes of a soak, as whoever runs it sees them: told of rounds, killed, followed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.harness import failpoints, jvm
from tests.soak.rounds import SPARK, Round, working

PROJECT = Path(__file__).parents[2]
DEADLY = (
    *("append.staged", "append.listed", "commit.before", "commit.applied", "txn.staged"),
    *("txn.decided", "txn.committed", "joint.decided", "joint.prepared", "joint.closed"),
    *("layout.committed", "positions.prepared", "table.decided", "many_streams.committed"),
)
"""Failpoints at which a process that follows a killed one may be killed itself."""
DRIVER_KILLED = "driver of Spark killed"
STUCK = 240.0
"""Seconds in which nobody records anything, after which a phase that has not ended is a failure."""
STARTS = 4 * STUCK
"""The same while a process that the phase waits for has not worked yet: Spark may be starting."""


class Failed(Exception):
    """A process ended by itself, or does not end a round; the message names its log."""


class Played:
    """One process, and those that follow it."""

    def __init__(
        self,
        name: str,
        root: str,
        options: Mapping[str, object],
        environment: Mapping[str, str],
        folder: Path,
    ) -> None:
        self.name, self.lives = name, 0
        self._root, self._options = root, json.dumps(dict(options))
        self._environment = jvm.clean_environment(
            **environment,
            PYTHONPATH=str(PROJECT),
            PYSPARK_PYTHON=sys.executable,
            TMPDIR=str(folder),
            MALLOC_ARENA_MAX="1",  # each arena keeps what its threads freed: that is no leak
            SPARK_LOCAL_DIRS=str(folder),  # a JVM that is killed leaves its files
        )
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[str] | None = None
        self._visit, self._killed = "", False
        self._lock = threading.Lock()

    @property
    def works(self) -> bool:
        """Return whether a call of this life has succeeded: one that only starts is left to it.

        On a busy machine Spark takes minutes to start, and would never write.
        """
        return working(self.log.parent, self.name, self.lives).exists()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, visit: str = "") -> None:
        """Start its next life; with ``visit`` it is killed at a failpoint."""
        self.lives += 1
        self._visit, self._killed = visit, False
        words = [self.name, self._root, self._options, str(self.lives)]
        environment = {**self._environment, **failpoints.variables(visit)}
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.process", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                cwd=PROJECT,
                env=environment,
                start_new_session=True,
            )

    def tell(self, round: Round) -> None:
        """Tell it of a round."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{round.line()}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it was killed; who follows it is told

    def kill(self) -> None:
        """Kill it with all that it has started."""
        with self._lock:
            self._killed = True
            os.killpg(self.pid, signal.SIGKILL)

    def kill_workers(self) -> int:
        """Kill the Python workers of its Spark; return how many there were."""
        return sum(
            _kill(pid)
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if self._is_worker(pid)
        )

    def _is_worker(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            if pid != self.pid and os.getsid(pid) == self.pid:
                return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def pause(self, seconds: float) -> None:
        """Stop it for a time."""
        with self._lock:
            os.killpg(self.pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.killpg(self.pid, signal.SIGCONT)

    def follow(self, round: Round, source: random.Random, faults: Counter[str]) -> None:
        """If it was killed, start it again, perhaps to be killed at a failpoint."""
        assert self._process is not None
        with self._lock:
            status = self._process.poll()
            if status is None:
                return
            if status != -signal.SIGKILL or not (self._killed or self._visit):
                last = self.log.read_text().strip().rpartition("\n")[2]
                raise Failed(f"{self.name} ended with {status}: {last} ({self.log})")
            killed = DRIVER_KILLED if self.name == SPARK else "kill"
            faults[killed if self._killed else "kill at a failpoint"] += 1
            self._close()
            is_visited = self.name != SPARK and source.random() < 0.5  # each worker would be killed
            visit = f"{source.choice(DEADLY)}:{source.randint(1, 9)}" if is_visited else ""
            self.start(visit)
        self.tell(round)

    def show_threads(self) -> None:
        """Have it write what its threads do into its log."""
        os.kill(self.pid, signal.SIGUSR1)

    def end(self) -> None:
        """End it in order, or kill it."""
        if self._process is None:
            return
        with self._lock:
            self._killed = True
            assert self._process.stdin is not None
            try:
                self._process.stdin.close()
                self._process.wait(10)
            except (subprocess.TimeoutExpired, BrokenPipeError):
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()

    def _close(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def _kill(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
