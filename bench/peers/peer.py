"""What a peer is: one system that stores events, with everything that is measured of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.harness.context import Context
from bench.harness.measure import percentile, timed

Found = Mapping[str, float]
"""What one round found, by the names of its measure's figures."""


A_WRITE_IS_A_COMMIT = "a write is a commit: many events in one call are the transaction"
"""Why a table format has no pipelined writes."""


def no_spark(reason: str) -> Mapping[str, str]:
    """Return why a peer has none of the measures that go through Spark."""
    return dict.fromkeys(("spark_write", "spark_read", "backlog", "micro_batch"), reason)


class Absent(Exception):
    """A peer cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How long a round lasts: so many calls, or so many seconds if those end sooner."""

    calls: int
    seconds: float


@dataclass
class Place:
    """Where a run takes place: its context, and the events that all peers are filled with."""

    context: Context
    rows: int
    """The events that each peer is filled with."""

    @property
    def folder(self) -> Path:
        return self.context.folder


class Peer:
    """A system that stores events.

    Each measure is a method, which measures one round, or has a reason in ``cannot`` why there is
    no such thing.
    """

    name: ClassVar[str]
    acknowledged: ClassVar[str]
    """What holds when a write is acknowledged."""
    caveats: ClassVar[tuple[str, ...]] = ()
    cannot: ClassVar[Mapping[str, str]] = {}
    """By a measure's name: why this peer has no such thing."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def start(self) -> None:
        """Start what it needs, create what is written to; raise Absent where it cannot be had."""

    def stop(self) -> None:
        """End what ``start`` started."""

    def versions(self) -> str:
        """Return which software this is."""
        raise NotImplementedError

    def fill(self) -> None:
        """Store the events of the place, which the reading measures read."""
        raise NotImplementedError

    def append(self, limit: Limit) -> Found:
        """Write one event after another; ``p50`` and ``p99`` of an acknowledgement in ms."""
        raise NotImplementedError

    def end_to_end(self, limit: Limit) -> Found:
        """Write one event after another to a reader at the tail; ``p50`` and ``p99`` in ms."""
        raise NotImplementedError

    def pipelined(self, limit: Limit) -> Found:
        """Write events without a wait between them, until all are acknowledged; ``rate``."""
        raise NotImplementedError

    def writers(self, limit: Limit) -> Found:
        """16 writers that wait for each acknowledgement; their ``rate``, and ``p99`` in ms."""
        raise NotImplementedError

    def transaction(self, limit: Limit) -> Found:
        """Make 100 events visible at once, or none; ``p50`` and ``p99`` in ms."""
        raise NotImplementedError

    def catch_up(self, limit: Limit) -> Found:
        """Read all that ``fill`` stored by one reader; ``rate``."""
        raise NotImplementedError

    def single_rows(self, limit: Limit) -> Found:
        """Write rows one at a time, ``rate``; then count them by key, ``aggregate`` in ms."""
        raise NotImplementedError

    def stored(self, limit: Limit) -> Found:
        """The ``bytes`` that each event of ``fill`` takes."""
        raise NotImplementedError

    def idle(self, limit: Limit) -> Found:
        """What runs while nobody reads or writes: ``cpu`` in % of a core, ``memory`` in MiB."""
        raise NotImplementedError

    def spark_write(self, limit: Limit) -> Found:
        """Write a cached frame; ``rate``."""
        raise NotImplementedError

    def spark_read(self, limit: Limit) -> Found:
        """Read all that ``fill`` stored into no sink; ``rate``."""
        raise NotImplementedError

    def backlog(self, limit: Limit) -> Found:
        """The same by a streaming query with AvailableNow, from its start to its end; ``rate``."""
        raise NotImplementedError

    def micro_batch(self, limit: Limit) -> Found:
        """A query that copies 100 events in each micro-batch; ``p50`` of a batch in ms."""
        raise NotImplementedError

    def to_delta(self, limit: Limit) -> Found:
        """From an event's acknowledgement to a Delta reader that polls; seconds by reader."""
        raise NotImplementedError


def each_ms(action: Callable[[], object], limit: Limit) -> list[float]:
    """Return the milliseconds of each call in a row."""
    found: list[float] = []
    end = time.perf_counter() + limit.seconds
    while len(found) < limit.calls and (not found or time.perf_counter() < end):
        found.append(1e3 * timed(action))
    return found


def quantiles(times_ms: list[float]) -> Found:
    """Return the median and the 99th percentile of times."""
    return {"p50": percentile(times_ms, 0.5), "p99": percentile(times_ms, 0.99)}


def latency(action: Callable[[], object], limit: Limit) -> Found:
    """Return the median and the 99th percentile of calls in a row, in ms."""
    return quantiles(each_ms(action, limit))


def rate(count: int, action: Callable[[], object]) -> Found:
    """Return so many events by the seconds of an action that handles them all."""
    return {"rate": count / timed(action)}


def rows_then_aggregate(
    write: Callable[[], object], aggregate: Callable[[], int], limit: Limit, before: int
) -> Found:
    """Write rows one at a time, then count all by key; ``before`` were there already."""
    times = each_ms(write, limit)
    counted = 0

    def count() -> None:
        nonlocal counted
        counted = aggregate()

    seconds = timed(count)
    assert counted == before + len(times), f"{counted} of {before + len(times)} rows"
    return {
        "rows": len(times),
        "rate": 1e3 * len(times) / sum(times),
        "aggregate": 1e3 * seconds,
    }


def folder_bytes(folder: str | Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
