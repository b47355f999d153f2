"""Processor time of this process and its descendants, which a busy machine does not distort."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Return the seconds used so far, including those of the JVM and its Python workers."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # the process has ended in the meantime
        process = int(path.parent.name)
        parents[process] = int(fields[1])
        # user and system time of the process, and both of its ended children
        used[process] = sum(map(int, fields[11:15])) / _TICKS
    return sum(seconds for process, seconds in used.items() if _descends(process, parents))


def _descends(process: int, parents: dict[int, int]) -> bool:
    while process in parents and process != os.getpid():
        process = parents[process]
    return process == os.getpid()


class CpuMeter:
    """Records the processor seconds of each ``with meter`` block."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> None:
        self._begun = cpu_seconds()

    def __exit__(self, *_: object) -> None:
        self.seconds.append(cpu_seconds() - self._begun)


def compare(ours: CpuMeter, peer: CpuMeter) -> str:
    """Return a note with the median processor time of both."""
    seconds = [statistics.median(meter.seconds) for meter in (ours, peer)]
    return f"processor time {seconds[0]:.2f} s against {seconds[1]:.2f} s"
