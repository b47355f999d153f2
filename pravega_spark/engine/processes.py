"""Whether another process still runs, told by a text that it left behind.

Only of processes of this machine (and of this container) anything can be told, so ``is_gone`` is
False of all others: who waits for those, waits for their leases.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from pravega_spark.names import is_number

_ELAPSED: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_seconds() -> float:
    """Return seconds of a clock that never goes back, and goes on while the machine sleeps."""
    return time.clock_gettime(_ELAPSED)


def identity(pid: int | None = None) -> str:
    """Return a text that names a process of this machine, by default this one, for good."""
    pid = os.getpid() if pid is None else pid
    return f"{_machine()} {pid} {_started(pid) or '-'}"


def is_gone(text: str) -> bool:
    """Tell whether a process that ``identity`` named has certainly ended."""
    machine, _, process = text.partition(" ")
    pid, _, started = process.partition(" ")
    if machine != _machine() or not is_number(pid):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it lives, whether that one or another
    return _started(int(pid)) not in (started, None)


def boot_id() -> str:
    """Return a text that names this start of the machine; empty where none is told."""
    return _text(Path("/proc/sys/kernel/random/boot_id"))


def _machine() -> str:
    """Name the machine since its last start, and the container where there is one."""
    boot = boot_id()
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return "/".join(filter(None, (socket.gethostname(), boot, namespace))).replace(" ", "_")


def _started(pid: int) -> str | None:
    """Return when a process began, in the kernel's ticks; None where that is not told.

    A zombie, which does nothing any more, never did.
    """
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    return "never" if fields[0] == "Z" else fields[19]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
