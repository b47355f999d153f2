"""The replay: starts the ingest, kills it in the middle, starts it again, and samples progress."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import IO

from flights.scaling import Split

KILL_FROM = 0.4
"""From this share of the events on, the ingest is killed between its commit and the checkpoint."""
KILL_LATEST = 0.6
"""From this share on, the ingest is killed at any moment."""
KILL_POLL_SECONDS = 0.01
"""Pause between polls while the ingest may be killed; otherwise there are five polls a sample."""
SAMPLE_SECONDS = 0.25
STALLED_SECONDS = 300.0
LOG_LINES = 15

Counter = Callable[[], int]
OnSample = Callable[[int, int], None]


class ReplayFailed(Exception):
    """A query of the demo failed or stalled."""


class IngestProcess:
    """The ingest query in a process group of its own, which can be killed as a whole."""

    def __init__(self, command: Sequence[str], *, checkpoint: Path, log: Path) -> None:
        """Keep the command, the query's checkpoint, and the log file of the process."""
        self._command = command
        self._checkpoint = checkpoint
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, detached from the Spark of this process."""
        gateway = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")
        environment = {name: text for name, text in os.environ.items() if name not in gateway}
        with self._log.open("ab") as log:
            self._process = self._spawn(environment, log)

    def freeze(self) -> None:
        """Suspend the process and its children."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Resume the process and its children."""
        os.killpg(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to the process and its children, and wait until the process has ended."""
        assert self._process is not None
        os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Kill the process if it is running."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        assert self._process is not None
        return self._process.pid

    def ended(self) -> bool:
        """Return whether the process has succeeded; raise ReplayFailed if it failed."""
        assert self._process is not None
        status = self._process.poll()
        if status:
            lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            raise ReplayFailed(
                "\n".join([f"the ingest failed with status {status}; {self._log} ends:", *lines])
            )
        return status == 0

    def finished_batches(self) -> int:
        """Return how many micro-batches are finished by the query's checkpoint."""
        return _next_batch(self._checkpoint / "commits")

    def planned_batches(self) -> int:
        """Return how many micro-batches are planned by the query's checkpoint."""
        return _next_batch(self._checkpoint / "offsets")

    def _spawn(self, environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@dataclass
class Timeline:
    """The course of a replay; times are seconds since its start."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)
    """(seconds, events written, events read), several times a second."""
    reads: list[tuple[float, float, int]] = field(default_factory=list)
    """(start, end, events) of each micro-batch of the reading query."""
    killed_at: float | None = None
    killed_pid: int | None = None
    killed_batch: int | None = None
    killed_durable: bool = False
    """Whether the stream already had the interrupted batch, so that its retry must add nothing."""
    splits: list[Split] = field(default_factory=list)
    """The splits of segments."""
    ingested_at: float = 0.0
    read_at: float = 0.0

    @property
    def resumed_at(self) -> float | None:
        """When the stream had the first event after the kill."""
        if self.killed_at is None:
            return None
        before = max(written for at, written, _ in self.samples if at <= self.killed_at)
        return next((at for at, written, _ in self.samples if written > before), None)


class Replay:
    """Runs the ingest, kills it once, and samples progress until everything is written and read."""

    def __init__(
        self,
        ingest: IngestProcess,
        batch_rows: Sequence[int],
        *,
        written: Counter,
        read: Counter,
        on_sample: OnSample = lambda written, read: None,
    ) -> None:
        """Keep the ingest, the rows of its batches, and the counters of events written and read."""
        self._ingest = ingest
        self._rows_until = [0, *accumulate(batch_rows)]
        self._written = written
        self._read = read
        self._on_sample = on_sample
        self._started = 0.0
        self.timeline = Timeline()

    def start(self) -> None:
        """Start the ingest and the clock of the replay."""
        self._started = time.monotonic()
        self._ingest.start()

    def run(self) -> None:
        """Kill the ingest once; return when it has succeeded. Raises ReplayFailed."""
        while not self._ingest.ended():
            written = self._sample()
            if self.timeline.killed_at is not None or written < KILL_FROM * self._rows_until[-1]:
                time.sleep(SAMPLE_SECONDS / 5)
            elif self._is_ahead(written) or written >= KILL_LATEST * self._rows_until[-1]:
                self._kill(late=written >= KILL_LATEST * self._rows_until[-1])
            else:
                time.sleep(KILL_POLL_SECONDS)
        self._sample(force=True)
        self.timeline.ingested_at = self._now()

    def wait(self, done: Callable[[], bool]) -> None:
        """Sample until the reading query is done, too. Raises ReplayFailed."""
        while not done():
            self._sample()
            time.sleep(SAMPLE_SECONDS / 2)
        self._sample(force=True)
        self.timeline.read_at = self._now()

    def add_reads(self, batches: Sequence[tuple[float, float, int]]) -> None:
        """Add the reading query's batches: (start, end, events) by the monotonic clock."""
        for start, end, events in batches:
            self.timeline.reads.append((start - self._started, end - self._started, events))

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Add the splits, whose times are by the monotonic clock."""
        self.timeline.splits += [replace(split, at=split.at - self._started) for split in splits]

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _sample(self, *, force: bool = False) -> int:
        """Add a sample if the last one is old enough; return the events written."""
        now, written = self._now(), self._written()
        samples = self.timeline.samples
        if force or not samples or now - samples[-1][0] >= SAMPLE_SECONDS:
            samples.append((now, written, self._read()))
            self._on_sample(*samples[-1][1:])
            self._check_progress()
        return written

    def _check_progress(self) -> None:
        now, written, read = self.timeline.samples[-1]
        for at, before_written, before_read in reversed(self.timeline.samples):
            if (before_written, before_read) != (written, read):
                return
            if now - at > STALLED_SECONDS:
                raise ReplayFailed(f"nothing was written or read for {STALLED_SECONDS:.0f} s.")

    def _is_ahead(self, written: int) -> bool:
        """Whether the stream has a batch that Spark's checkpoint does not record as finished."""
        return written > self._rows_until[self._ingest.finished_batches()]

    def _kill(self, *, late: bool) -> None:
        """Kill and restart the ingest, if it is still ahead of its checkpoint or ``late``."""
        self._ingest.freeze()
        durable = self._is_ahead(self._written())
        if not (durable or late):
            self._ingest.thaw()
            return
        self._sample(force=True)
        timeline, finished = self.timeline, self._ingest.finished_batches()
        timeline.killed_pid = self._ingest.pid
        timeline.killed_durable = durable
        if self._ingest.planned_batches() > finished:
            timeline.killed_batch = finished
        self._ingest.kill()
        timeline.killed_at = self._now()
        self._ingest.start()


def _next_batch(folder: Path) -> int:
    """Return the number after the last one in a batch log of Spark, which may not exist yet."""
    try:
        return max((int(name) + 1 for name in os.listdir(folder) if name.isdecimal()), default=0)
    except FileNotFoundError:
        return 0
