"""What a run uses: files, and of each process memory, descriptors and threads, at rest.

A process is at rest when a round has ended and its handles are closed: what is left then, and
grows, is a leak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

FEWEST = 8
"""Rounds without which nothing is said about growth."""


class Allowed(NamedTuple):
    """How much the last quarter may be above the second: a share of it and a number."""

    share: float
    number: float


ALLOWED = {
    "rss_mb": Allowed(0.15, 20.0),
    "descriptors": Allowed(0.10, 64.0),  # a process comes to keep some dozens of folders open
    "threads": Allowed(0.10, 12.0),  # those of pools end by themselves, somewhat later
    "data_files": Allowed(0.25, 60.0),
}
"""By the kind of measure."""
_KEPT = ("/_delta_log/", "/_pravega/", "/metadata/", "_maintenance/")
"""In names of files that stay for an hour, as commits do, or for ever, as a deleted stream's
history."""


@dataclass(frozen=True)
class Use:
    """What a process uses."""

    rss_mb: float
    descriptors: int
    threads: int


def use_of(pid: int) -> Use:
    """Return what a process uses now."""
    process = Path(f"/proc/{pid}")
    lines = (process / "status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    count = sum(1 for _ in (process / "fd").iterdir())
    return Use(round(int(status["VmRSS"].split()[0]) / 1024, 1), count, int(status["Threads"]))


def files_of(keys: Sequence[str]) -> dict[str, float]:
    """Return how many objects a root has, and how many of them are data that goes in minutes."""
    data = [key for key in keys if not any(kept in key for kept in _KEPT)]
    return {"files": len(keys), "data_files": len(data)}


def grown(series: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return what grew from the second quarter to the last, by the name of its series.

    A series is named ``process.kind`` or ``kind``. Series of less than ``FEWEST`` rounds, and
    kinds that may grow, have no verdict.
    """
    found = {}
    for name, values in series.items():
        allowed = ALLOWED.get(name.rpartition(".")[2])
        if allowed is None or len(values) < FEWEST:
            continue
        quarter = len(values) // 4
        second, last = mean(values[quarter : 2 * quarter]), mean(values[-quarter:])
        if last > second * (1 + allowed.share) + allowed.number:
            found[name] = f"{second:.1f} in the second quarter, {last:.1f} in the last"
    return found
