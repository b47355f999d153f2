"""Events that prove themselves: each one carries the hash of the one before it."""

from __future__ import annotations

import hashlib
import random
import struct
import time
from typing import Final

_HEAD: Final = struct.Struct("<32sQd")
"""The hash of the event before, the number from 0, and the writer's clock in seconds."""
LEAST_BYTES: Final = _HEAD.size
_FILLING: Final = random.Random(0).randbytes(1 << 20) * 2
"""Bytes that do not compress; each event has others."""
_STEP: Final = 997


def _first(key: str, run: str) -> bytes:
    return hashlib.sha256(f"{run} {key}".encode()).digest()


class WrittenChain:
    """The events of one routing key in one run, in the order in which they are written."""

    def __init__(self, key: str, run: str, size_bytes: int) -> None:
        """Begin; an event has at least LEAST_BYTES, whatever ``size_bytes`` is."""
        self.key = key
        self.acknowledged = 0
        """Events that are known to be durable, from the first one on."""
        self._number, self._last = 0, _first(key, run)
        self._filling = max(0, size_bytes - LEAST_BYTES)

    def next(self) -> bytes:
        """Return the next event."""
        begin = self._number * _STEP % (len(_FILLING) // 2)
        head = _HEAD.pack(self._last, self._number, time.perf_counter())
        event = head + _FILLING[begin : begin + self._filling]
        self._last = hashlib.sha256(event).digest()
        self._number += 1
        return event


class ReadChain:
    """The events of one routing key as they are read, each compared with the one before."""

    def __init__(self, key: str, run: str) -> None:
        """Expect the first event."""
        self.events = 0
        self._key, self._last = key, _first(key, run)

    def take(self, event: bytes) -> str | None:
        """Return what is wrong with the next event, None if it is the one that follows."""
        if len(event) < LEAST_BYTES:
            return f"key {self._key}: event {self.events:,} has {len(event)} bytes"
        before, number, _ = _HEAD.unpack_from(event)
        if before != self._last or number != self.events:
            return (
                f"key {self._key}: event {self.events:,} is not the one that was written there: it "
                f"has the number {number:,}, or follows another one"
            )
        self._last = hashlib.sha256(event).digest()
        self.events += 1
        return None


def written_at(event: bytes) -> float:
    """Return the writer's clock of an event, in seconds, to compare with the same process's."""
    return float(_HEAD.unpack_from(event)[2])
