"""Processor time of this process and all below it: what a busy machine does not distort."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> float:
    """Return the seconds used so far, the JVM and its Python workers included."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        process = int(path.parent.name)
        parents[process] = int(fields[1])
        # user, system, and both of the children that ended
        used[process] = sum(map(int, fields[11:15])) / _TICKS
    return sum(seconds for process, seconds in used.items() if _is_below(process, parents))


def _is_below(process: int, parents: dict[int, int]) -> bool:
    while process in parents and process != os.getpid():
        process = parents[process]
    return process == os.getpid()


class Meter:
    """Gathers the processor seconds of what runs inside ``with meter``."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __enter__(self) -> None:
        self._begun = cpu_seconds()

    def __exit__(self, *_: object) -> None:
        self.seconds.append(cpu_seconds() - self._begun)


def compare(ours: Meter, peer: Meter) -> str:
    """Say how much processor time both took, at the median."""
    seconds = [statistics.median(meter.seconds) for meter in (ours, peer)]
    return f"processor time {seconds[0]:.1f} s against {seconds[1]:.1f} s"
