"""How often a streaming query that is idle looks at its streams: seldom enough to cost little.

Without a trigger Spark asks about 90 times a second, whatever the answer costs. So the source rests
before it looks again after a look that found nothing. A first event waits for that rest at most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from pravega_spark.engine.runtime import SYSTEM
from pravega_spark.limits import IDLE_LOOK_SECONDS, IDLE_LOOK_SHARE, STREAM_REFRESH_SECONDS


class IdlePace:
    """The looks of one run of a query."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = SYSTEM.sleep,
    ) -> None:
        """Let the first look begin at once."""
        self._clock, self._sleep = clock, sleep
        self._begun, self._due = 0.0, -math.inf

    def begin(self) -> None:
        """Rest until the next look may begin."""
        left = self._due - self._clock()
        if left > 0:
            self._sleep(left)
        self._begun, self._due = self._clock(), -math.inf

    def found_nothing(self) -> None:
        """Note that the look ends, and that the next one has time."""
        took = self._clock() - self._begun
        pause = max(IDLE_LOOK_SECONDS, IDLE_LOOK_SHARE * took)
        self._due = self._begun + min(pause, STREAM_REFRESH_SECONDS)
