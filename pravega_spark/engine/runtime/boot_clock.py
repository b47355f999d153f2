"""The machine's boot clock: it never goes back, and it counts the time that the machine sleeps."""

from __future__ import annotations

import time
from pathlib import Path

_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def elapsed_seconds() -> float:
    """Return the seconds of the boot clock; only differences mean anything."""
    return time.clock_gettime(_CLOCK)


def boot_id() -> str:
    """Return a text that differs for each boot of the machine; empty if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
