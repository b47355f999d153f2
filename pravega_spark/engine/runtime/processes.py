"""Identify a process by a text, from which another process can see that it has ended.

Only processes of this machine, and of this container, can be checked. For all others ``has_ended``
returns False, so a caller that waits for one of them must wait for its lease.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pravega_spark.engine.runtime.boot_clock import boot_id
from pravega_spark.values.names import is_number


def identity(pid: int | None = None) -> str:
    """Return a text that names one process of this machine, by default this one.

    A later process that gets the same process id has another identity.
    """
    pid = os.getpid() if pid is None else pid
    return f"{_machine()} {pid} {_start_time(pid) or '-'}"


def has_ended(process: str) -> bool:
    """Return whether the process of an identity has certainly ended."""
    machine, _, rest = process.partition(" ")
    pid, _, started = rest.partition(" ")
    if machine != _machine() or not is_number(pid):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # a process of that id runs: the same one, or another user's
    return _start_time(int(pid)) not in (started, None)


def _machine() -> str:
    """Return a name of this boot of the machine, and of the container if there is one."""
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    parts = (socket.gethostname(), boot_id(), namespace)
    return "/".join(filter(None, parts)).replace(" ", "_")


def _start_time(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks; None if the system does not report it.

    A zombie has ended already: its start time is "never".
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    return "never" if fields[0] == "Z" else fields[19]
