"""A stream on an object store, simulated: many writers, one commit at a time.

A taker stores its own chunk, lists the offers, and commits itself and all that it saw: three calls,
one after the other, over and over. Each other writer stores its chunk, and looks for the commit
that holds it: a call, a pause as long as a call, and so on. A writer alone lists nothing
(docs/adr/0033-group-commit.md). Calls take effect when they end. The figures of real writers stand
beside those of the simulation on the page.
"""

from __future__ import annotations

import functools
import heapq
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stream:
    """What the writers of a stream get: acknowledgements and commits a second, times in seconds."""

    acknowledged_per_second: float
    commits_per_second: float
    p50: float
    p99: float


@functools.cache
def simulate(
    writers: int, call_seconds: float, *, seconds: float = 120.0, spread: float = 0.1
) -> Stream:
    """Let so many writers append one event at a time; a call takes ``call_seconds`` on average.

    ``spread`` is by which part of that a call may be shorter or longer.
    """
    chance = random.Random(1)

    def call() -> float:
        return call_seconds * chance.uniform(1 - spread, 1 + spread)

    times: list[float] = []
    # The writers whose chunk is stored at a time, with the time at which they began.
    stored = [(call() * chance.uniform(1, 3), 0.0) for _ in range(writers - 1)]
    heapq.heapify(stored)
    now, commits = 0.0, 0
    while now < seconds:
        began = now
        listed = began + call()  # its own chunk
        if writers > 1:
            listed += call()
        committed = listed + call()
        commits += 1
        times.append(committed - began)
        while stored and stored[0][0] <= listed:
            chunk_at, since = heapq.heappop(stored)
            look = chunk_at
            while True:
                look += call()
                if look >= committed:
                    break
                look += call()  # the pause
            times.append(look - since)
            heapq.heappush(stored, (look + call(), look))
        now = committed
    times.sort()
    return Stream(
        len(times) / now,
        commits / now,
        times[len(times) // 2],
        times[int(0.99 * len(times))],
    )
