"""The times that one writer notes: in its order, by hand, by its clock, or by its events."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.watermarks import TimeNote, mark_of
from pravega_spark.engine.writing.encode import EventTimes
from pravega_spark.engine.writing.futures import WriteFuture
from pravega_spark.engine.writing.queue import WriteQueue
from pravega_spark.errors import IllegalState, InvalidInput, InvalidTime
from pravega_spark.primitives.process_locks import new_rlock
from pravega_spark.values.limits import (
    AUTOMATIC_NOTE_BACK_MS,
    AUTOMATIC_NOTE_SECONDS,
    EVENT_TIME_NOTE_SECONDS,
)


class NotedTimes:
    """Puts the times of a writer into its queue; never an earlier one after a later one."""

    def __init__(self, stream: StreamLog, queue: WriteQueue, mark_id: str) -> None:
        """Begin with the time that the log holds for the writer; makes no storage call."""
        self._stream = stream
        self._queue = queue
        self._mark_id = mark_id
        mark = mark_of(stream.view(refresh=False), mark_id)
        self._last_us = None if mark is None else mark.time_us
        self._lock = new_rlock()  # a signal handler may write during a write
        self._is_automatic = False
        self._events: EventTimes | None = None
        self._has_unnoted = False
        """Whether an event was written since the last note of the events' time."""
        self._due = -math.inf
        """When the next event is noted at once."""

    def note(self, time_us: int) -> WriteFuture[Any]:
        """Note a time after everything that was written before; return a future.

        Raises InvalidTime, and IllegalState if times are noted automatically.
        """
        if self._is_automatic:
            raise IllegalState(
                f"the writer of stream {self._stream.name} notes the time automatically; to note "
                "times yourself, create it without automatically_note_time and event_time."
            )
        with self._lock:
            if self._last_us is not None and time_us < self._last_us:
                raise InvalidTime(
                    f"writer {self._mark_id!r} of stream {self._stream.name} noted "
                    f"{self._last_us} us and now {time_us} us since 1970: a noted time promises "
                    "that nothing earlier follows. Note the last time again, or a later one.",
                    writer_id=self._mark_id,
                    time_us=time_us,
                    last_us=self._last_us,
                )
            return self._put(time_us)

    def _put(self, time_us: int, *, wakes: bool = True) -> WriteFuture[Any]:
        self._last_us = time_us
        self._queue.notes_time = True
        return self._queue.add_barrier(TimeNote(self._mark_id, time_us), wakes=wakes)

    def note_automatically(self, *, clock: bool, events: EventTimes | None) -> None:
        """Note the time of the host's clock, or that of events, until the writer ends.

        The first event is noted at once, and then one in each second, so that notes stay rare;
        what is left is noted as often as the clock's time. Raises InvalidInput for both.
        """
        if clock and events is not None:
            raise InvalidInput(
                f"a writer of stream {self._stream.name} notes the times of its events or that of "
                "its clock: give one of event_time and automatically_note_time."
            )
        self._is_automatic = clock or events is not None
        if not self._is_automatic:
            return
        self._events = events
        if events is not None:
            events.on_event = self._saw_event
        name = f"pravega-times-{self._stream.name}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(AUTOMATIC_NOTE_SECONDS)
            if self._queue.is_closed or self._queue.failure is not None:
                return
            if self._events is None:
                self.note_now()
            else:
                self.note_events()
                self._queue.wake_if_idle()  # an event whose write was refused left its note

    def _saw_event(self) -> None:
        self._has_unnoted = True
        if self._stream.runtime.monotonic() >= self._due:
            self.note_events(wakes=False)

    def note_events(self, *, wakes: bool = True) -> None:
        """Note how far the events are, if one was written since the last note.

        If no later time follows, the last one is noted again: the writer is not silent. Without
        ``wakes`` the note waits for the event that is about to be queued, to share its commit.
        """
        if self._events is None or not self._has_unnoted:
            return
        with self._lock:
            self._has_unnoted = False
            self._due = self._stream.runtime.monotonic() + EVENT_TIME_NOTE_SECONDS
            times = [time for time in (self._events.bound_us, self._last_us) if time is not None]
            self._put(max(times), wakes=wakes)

    def note_now(self) -> None:
        """Note the time of the clock, a little back, unless a later one was noted."""
        time_us = 1_000 * (self._stream.runtime.now_ms() - AUTOMATIC_NOTE_BACK_MS)
        with self._lock:
            if self._last_us is None or time_us > self._last_us:
                self._put(time_us)
