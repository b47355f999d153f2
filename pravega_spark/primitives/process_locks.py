"""Locks of one process: a forked child finds each of them free, also those held in the parent.

A fork copies a lock that another thread holds, and the child has no thread to release it. So a lock
that a child may meet is made here. Its data may be half changed in the child: the handle
refuses to be used there (``ProcessGuard``), or the owner forgets it after a fork.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_locks = WeakSet[Any]()
"""The locks of this process."""


def new_lock() -> threading.Lock:
    """Return a lock that is free in a forked child."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_rlock() -> threading.RLock:
    """Return a lock that one thread may take several times; free in a forked child.

    If the thread that forks holds it, so does the child.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_all)
