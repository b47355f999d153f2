"""What became of a group, for who watches it: its segments and readers as they change, its end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pravega_spark.engine.runtime import Runtime
from pravega_spark.reader_groups.group_state import GroupState


@dataclass(frozen=True, slots=True)
class SegmentNotification:
    """How many segments the group reads by now, with a reader or waiting for one, and its readers.

    More segments than readers: another reader would have something to do. Fewer: one has nothing.
    """

    segments: int
    readers: int


@dataclass(frozen=True, slots=True)
class EndOfDataNotification:
    """Everything that the group is to read was read."""


Notification = SegmentNotification | EndOfDataNotification


def watch(
    state: Callable[[], GroupState],
    runtime: Runtime,
    interval_seconds: float,
    timeout: float | None,
) -> Iterator[Notification]:
    """Yield what is so at first, and every change that a look finds; the end of data is the last.

    Ends also when nothing has changed for ``timeout`` seconds.
    """
    told, since = None, runtime.monotonic()
    while True:
        newest = state()
        segments = len(newest.assigned) + len(newest.unassigned)
        found = SegmentNotification(segments, len(newest.readers))
        if found != told:
            told, since = found, runtime.monotonic()
            yield found
        if newest.is_at_end:
            yield EndOfDataNotification()
            return
        left = math.inf if timeout is None else since + timeout - runtime.monotonic()
        if left <= 0:
            return
        runtime.sleep(min(interval_seconds, left))
