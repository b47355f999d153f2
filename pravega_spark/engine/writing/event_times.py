"""The times of a writer's events, and what the writer may promise of the events that follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from pravega_spark.arguments import MIN_TIME_US, check_function, check_time_us, shown
from pravega_spark.errors import InvalidInput
from pravega_spark.units import parse_duration_ms

EventTime = Callable[[Any], "int | datetime"]
"""Returns the time of an event as it was given to the writer: ms since 1970, or a datetime."""


class LatestTime:
    """The latest time of the events of one write, until the write is accepted."""

    __slots__ = ("us",)

    def __init__(self) -> None:
        """Begin before the first event."""
        self.us: int | None = None

    def add(self, time_us: int | None) -> None:
        """Add the time of an event, if it has one."""
        if time_us is not None and (self.us is None or time_us > self.us):
            self.us = time_us


class EventTimes:
    """How far the events of one writer are; their order may be wrong by the delay.

    Each event's time is at most ``delay_us`` earlier than the latest one written before it. So what
    follows is of the latest time less the delay, or later.
    """

    __slots__ = ("_function", "column", "delay_us", "latest_us", "on_event")

    def __init__(self, function: EventTime | str, delay: str | float) -> None:
        """Take both; raise InvalidInput, or InvalidConfiguration for what is no duration.

        A text names the column of a typed stream's events that has their time.
        """
        self.column = function if isinstance(function, str) else None
        self._function = (
            _of_column(function)
            if isinstance(function, str)
            else check_function("event_time", function)
        )
        self.delay_us = 1_000 * parse_duration_ms("event_time_delay", delay)
        self.latest_us: int | None = None
        self.on_event: Callable[[], object] = lambda: None
        """Called after an event's time was added."""

    @classmethod
    def of(cls, function: EventTime | str | None, delay: str | float | None) -> EventTimes | None:
        """Return the times of a writer that notes them; None for one that does not."""
        if function is not None:
            return cls(function, 0 if delay is None else delay)
        if delay is not None:
            raise InvalidInput(
                f"event_time_delay {shown(delay)} needs event_time, a function that returns the "
                "time of an event."
            )
        return None

    @property
    def bound_us(self) -> int | None:
        """The time that may be noted now; None before the first event."""
        if self.latest_us is None:
            return None
        return max(self.latest_us - self.delay_us, MIN_TIME_US)

    def of_event(self, event: Any) -> int:
        """Return the time of an event; an error of the function is raised unchanged."""
        what = "the event_time of an event" + (f", column {self.column}," if self.column else "")
        return check_time_us(what, self._function(event))

    def add(self, time_us: int) -> None:
        """Add the time of an accepted event, or the latest one of several."""
        if self.latest_us is None or time_us > self.latest_us:
            self.latest_us = time_us
        self.on_event()

    def again(self) -> EventTimes:
        """Return the times of another transaction of the same writer."""
        times = EventTimes(self.column or self._function, 0)
        times.delay_us = self.delay_us
        return times


def _of_column(name: str) -> EventTime:
    """Return the function that takes the time of a row from one of its columns."""

    def time_of(event: Any) -> Any:
        return event.get(name) if isinstance(event, Mapping) else getattr(event, name, None)

    return time_of
