"""The times that one writer notes: in its order, by itself or automatically."""

from __future__ import annotations

import threading
import time
from typing import Any

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.time_marks import TimeNote, mark_of
from pravega_spark.engine.writing.write_futures import WriteFuture
from pravega_spark.engine.writing.write_queue import WriteQueue
from pravega_spark.errors import IllegalState, InvalidTime
from pravega_spark.limits import AUTOMATIC_NOTE_BACK_MS, AUTOMATIC_NOTE_SECONDS


class NotedTimes:
    """Puts the times of a writer into its queue; never an earlier one after a later one."""

    def __init__(self, stream: StreamLog, queue: WriteQueue, mark_id: str) -> None:
        """Begin with the time that the log holds for the writer; makes no storage call."""
        self._stream = stream
        self._queue = queue
        self._mark_id = mark_id
        mark = mark_of(stream.view(refresh=False), mark_id)
        self._last_us = None if mark is None else mark.time_us
        self._lock = threading.Lock()
        self._is_automatic = False

    def note(self, time_us: int) -> WriteFuture[Any]:
        """Note a time after everything that was written before; return a future.

        Raises InvalidTime, and IllegalState if times are noted automatically.
        """
        if self._is_automatic:
            raise IllegalState(
                f"the writer of stream {self._stream.name} notes the time automatically; to note "
                "times of your own, create it without automatically_note_time."
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

    def _put(self, time_us: int) -> WriteFuture[Any]:
        self._last_us = time_us
        self._queue.notes_time = True
        return self._queue.add_barrier(TimeNote(self._mark_id, time_us))

    def note_automatically(self) -> None:
        """Note the time of the host's clock from now on, until the writer ends."""
        self._is_automatic = True
        name = f"pravega-times-{self._stream.name}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(AUTOMATIC_NOTE_SECONDS)
            if self._queue.is_closed or self._queue.failure is not None:
                return
            self.note_now()

    def note_now(self) -> None:
        """Note the time of the clock, a little back, unless a later one was noted."""
        time_us = 1_000 * (self._stream.runtime.now_ms() - AUTOMATIC_NOTE_BACK_MS)
        with self._lock:
            if self._last_us is None or time_us > self._last_us:
                self._put(time_us)
