"""What a server that a run started takes while nobody uses it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.peers.peer import Found, Limit

_TICKS = os.sysconf("SC_CLK_TCK")


def below(process: int, marker: str) -> int:
    """Return the process below another whose command line has a word, as a JVM's main class."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if parent == process and marker.encode() in words:
            return int(path.name)
    raise AssertionError(f"process {process} has no child {marker}")


def idle(process: int, limit: Limit) -> Found:
    """Return the share of a core in %, over the seconds of the limit, and the memory in MiB."""
    before = _ticks(process)
    time.sleep(limit.seconds)
    used = (_ticks(process) - before) / _TICKS
    status = Path(f"/proc/{process}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return {"cpu": 100 * used / limit.seconds, "memory": int(line.split()[1]) / 1024}


def _ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
