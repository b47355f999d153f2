"""Notifications of a group: changed numbers of segments and readers, and the end of its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pravega_spark.engine.runtime import Runtime
from pravega_spark.reader_groups.group_state import GroupState


@dataclass(frozen=True, slots=True)
class SegmentNotification:
    """The number of segments to read now, assigned or waiting, and the number of readers.

    With more segments than readers another reader gets a share; with fewer, some readers are idle.
    """

    segments: int
    readers: int


@dataclass(frozen=True, slots=True)
class EndOfDataNotification:
    """The group has read everything that it will ever read."""


Notification = SegmentNotification | EndOfDataNotification


def watch(
    state: Callable[[], GroupState],
    runtime: Runtime,
    interval_seconds: float,
    timeout: float | None,
) -> Iterator[Notification]:
    """Yield the first numbers, then every change that a poll finds; the end of data comes last.

    Ends also when nothing has changed for ``timeout`` seconds.
    """
    yielded, since = None, runtime.monotonic()
    while True:
        newest = state()
        segments = len(newest.assigned) + len(newest.unassigned)
        found = SegmentNotification(segments, len(newest.readers))
        if found != yielded:
            yielded, since = found, runtime.monotonic()
            yield found
        if newest.is_at_end:
            yield EndOfDataNotification()
            return
        left = math.inf if timeout is None else since + timeout - runtime.monotonic()
        if left <= 0:
            return
        runtime.sleep(min(interval_seconds, left))
