"""Commits that a process made or read, kept for its next state file, which reads none again.

Only for object stores, where each would be a request, and for logs to which the process commits,
since others write no state file. All logs of a process share one bound; what does not fit is read
from the storage.
"""

from __future__ import annotations

import itertools
import os
from collections import OrderedDict

from pravega_spark.limits import KEPT_COMMIT_BYTES
from pravega_spark.process_locks import new_lock

_ids = itertools.count()


class _Kept:
    """The bytes of commits by log and version, the oldest first."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self.forget()

    def forget(self) -> None:
        """Forget all; in a forked child, what a thread of the parent may have changed by half."""
        self._commits: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._size = 0

    def put(self, key: tuple[int, int], data: bytes) -> None:
        with self._lock:
            self._size += len(data) - len(self._commits.pop(key, b""))
            self._commits[key] = data
            while self._size > KEPT_COMMIT_BYTES:
                self._size -= len(self._commits.popitem(last=False)[1])

    def take(self, key: tuple[int, int]) -> bytes | None:
        with self._lock:
            data = self._commits.pop(key, None)
            self._size -= len(data or b"")
            return data


_kept = _Kept()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_kept.forget)


class KeptCommits:
    """The commits of one log that this process has seen and not yet taken back."""

    def __init__(self) -> None:
        """Start with none, and without keeping any."""
        self._id = next(_ids)
        self._is_on = False

    def keep_own(self, version: int, data: bytes) -> None:
        """Keep the bytes of a version that this process has committed, and those that it reads."""
        self._is_on = True
        _kept.put((self._id, version), data)

    def keep(self, version: int, data: bytes) -> None:
        """Keep the bytes of a version that this process has read, if it commits to the log, too."""
        if self._is_on:
            _kept.put((self._id, version), data)

    def take(self, version: int) -> bytes | None:
        """Return the bytes of a version and forget them; None if they are not kept."""
        return _kept.take((self._id, version))
