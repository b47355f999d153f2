"""Answers that all viewers share: each is computed once for a version, or for a few seconds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from pravega_spark.engine.runtime.system import SYSTEM, Runtime
from pravega_spark.primitives.process_locks import new_lock

MAX_ANSWERS: Final = 512

_Answer = TypeVar("_Answer")
Key = tuple[Hashable, ...]


@dataclass(slots=True, eq=False, kw_only=True)
class _Slot:
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_filled: bool = False
    version: Hashable = None
    until: float = 0.0
    value: Any = None


class AnswerCache:
    """A bounded cache; of simultaneous requests for one answer, the first one computes it."""

    def __init__(self, runtime: Runtime = SYSTEM, limit: int = MAX_ANSWERS) -> None:
        """Take the clock, and how many answers are kept."""
        self._runtime = runtime
        self._limit = limit
        self._lock = new_lock()
        self._slots: OrderedDict[Key, _Slot] = OrderedDict()

    def get(
        self, key: Key, version: Hashable, seconds: float, compute: Callable[[], _Answer]
    ) -> _Answer:
        """Return the answer of that version if it is younger than ``seconds``, or compute it.

        Errors of ``compute`` are raised, and not kept.
        """
        slot = self._slot(key)
        with slot.lock:
            now = self._runtime.monotonic()
            if not (slot.is_filled and slot.version == version and now < slot.until):
                slot.value, slot.version = compute(), version
                slot.until, slot.is_filled = self._runtime.monotonic() + seconds, True
            found: _Answer = slot.value
            return found

    def _slot(self, key: Key) -> _Slot:
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            if len(self._slots) > self._limit:
                self._slots.popitem(last=False)
            return slot
