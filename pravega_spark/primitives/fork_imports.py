"""Modules that another thread was importing when a process was forked: the child imports them anew.

Python locks a module while it is imported. A forked child keeps the lock without the thread that
would release it, and many modules are imported on first use: that would wait forever.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any


def forget_unfinished() -> None:
    """In a forked child: forget the imports of threads that it does not have."""
    locks: dict[str, Any] = getattr(importlib, "_bootstrap")._module_locks  # noqa: B009
    for name, reference in list(locks.items()):
        if getattr(reference(), "owner", None) in (None, threading.get_ident()):
            continue
        del locks[name]
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if getattr(spec, "_initializing", False):
            del sys.modules[name]
