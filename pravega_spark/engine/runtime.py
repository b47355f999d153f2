"""What the engine takes from the outside world besides storage: clocks, sleep and randomness.

They are parameters, so that a simulator can run the real code with its own.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field

from pravega_spark.errors import ForkedProcess

_ELAPSED: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Runtime:
    """The system's clocks and randomness."""

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since 1970; it may jump."""
        return time.time_ns() // 1_000_000

    def now_us(self) -> int:
        """Return the wall clock in microseconds since 1970; it may jump."""
        return time.time_ns() // 1_000

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back, and goes on while the machine sleeps."""
        return time.clock_gettime(_ELAPSED)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def token(self) -> str:
        """Return a text that nobody else will ever return."""
        return os.urandom(12).hex()

    def random(self) -> float:
        """Return a number in [0, 1)."""
        return random.random()


SYSTEM = Runtime()


@dataclass(slots=True)
class ProcessGuard:
    """Refuses an object in a child process that was forked after the object was made."""

    what: str
    pid: int = field(default_factory=os.getpid)

    def check(self) -> None:
        """Raise ForkedProcess in any process but the one that made the object."""
        if self.pid != os.getpid():
            raise self.error()

    def error(self) -> ForkedProcess:
        """Return the error that a child process gets."""
        return ForkedProcess(
            f"{self.what} was made in process {self.pid} before it forked; its threads and "
            "connections do not survive that: create it in the child process."
        )
