"""EventStreamWriter: events in, in order by routing key, durable when their future is done."""

from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.batch_committer import BatchCommitter
from pravega_spark.engine.writing.event_encoder import EventEncoder, Serializer, check_timeout
from pravega_spark.engine.writing.write_futures import WriteFuture
from pravega_spark.engine.writing.write_outcomes import DurableGroup
from pravega_spark.engine.writing.write_queue import WriteQueue
from pravega_spark.errors import (
    EventTooLarge,
    IllegalState,
    InvalidInput,
    ObjectClosed,
    PravegaSparkError,
)
from pravega_spark.limits import (
    MAX_ATOMIC_WRITE_BYTES,
    MAX_EVENT_BYTES,
    WRITER_BATCH_EVENTS,
    WRITER_BUFFER_BYTES,
    WRITER_EVENT_BYTES,
)
from pravega_spark.model import EventPointer


def json_serializer(event: Any) -> bytes:
    """Encode an event as compact JSON in UTF-8."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()


class EventStreamWriter:
    """Writes events to one stream; thread-safe.

    Events with one routing key are read in the order in which they were written. What arrives
    while a commit is in flight goes into the next one, so a lone event waits for nobody and many
    share a commit. With a ``writer_id`` of the user's own, writing is exactly-once over restarts:
    ``last_event_number`` and ``last_note`` tell where to go on, and an older writer of the same id
    is fenced. Made by ``StreamManager.create_writer``.
    """

    def __init__(
        self,
        stream: StreamLog,
        writer_id: str | None = None,
        *,
        serializer: Serializer | None = None,
        buffer_bytes: int = WRITER_BUFFER_BYTES,
        life: int | None = None,
    ) -> None:
        """Open the writer: a commit if it has an id of the user's own, no storage call else.

        ``life`` is the one of the stream that it is made for, by default the present one.
        """
        self._committer = BatchCommitter(stream, writer_id, life=life)
        self._encoder = EventEncoder(stream.name, serializer)
        self._plain = serializer is None
        self._now_us = stream.runtime.now_us
        self._name = stream.name
        self._queue = WriteQueue(self._committer, stream.name, buffer_bytes)
        # One that is not closed is closed when it is collected; at exit the queue sees to it.
        weakref.finalize(self, self._queue.release).atexit = False

    @property
    def writer_id(self) -> str:
        """The id of the user's own, or the random one."""
        return self._committer.writer_id

    @property
    def last_event_number(self) -> int:
        """The number of the last durable event of this writer id; events count from 1."""
        return self._committer.last

    @property
    def last_note(self) -> str | None:
        """The text given with the last durable flush of this writer id."""
        return self._committer.note

    @property
    def last_note_event_number(self) -> int:
        """The number of the last event before the flush that gave ``last_note``."""
        return self._committer.note_number

    def write_event(self, event: Any, routing_key: str | None = None) -> WriteFuture[EventPointer]:
        """Write one event; the future's result is its EventPointer, once it is durable.

        ``event`` is bytes or str (UTF-8), or anything the writer's serializer takes; what that
        raises is raised as it is, and nothing is written. Without a routing key there is no order
        between events. Blocks while the buffer is full.
        """
        plain = type(event) is bytes and self._plain
        data: bytes = event if plain else self._encoder.event(event)
        size = len(data)
        if size > MAX_EVENT_BYTES:
            raise self._encoder.too_large(size)
        if routing_key is not None and not (type(routing_key) is str and routing_key.isascii()):
            self._encoder.check_key(routing_key)
        queue = self._queue
        size += WRITER_EVENT_BYTES
        if queue.taken_bytes + size > queue.limit_bytes:
            self._wait_for_room(size)
        future: WriteFuture[EventPointer] = WriteFuture()
        future._at = generation = queue.generation
        time_us = self._now_us()
        future._number = number = next(queue.numbers)
        try:
            queue.put((data, routing_key, time_us, number, generation))
        finally:  # also if that was interrupted
            if queue.is_idle:
                queue.wake()
        queue.taken_bytes += size
        return future

    def write_events(
        self, events: Iterable[Any], routing_key: str | None = None
    ) -> WriteFuture[tuple[EventPointer, ...]]:
        """Write events all or none, together in one segment; the result is their pointers.

        Without an event nothing is written, and the future is done at once, with no pointer.
        """
        data = self._encoder.events(events)
        total = sum(map(len, data))
        if total > MAX_ATOMIC_WRITE_BYTES:
            raise EventTooLarge(
                f"{len(data)} events of {total} bytes for stream {self._name}: together at most "
                f"{MAX_ATOMIC_WRITE_BYTES} bytes are allowed; use a transaction for more.",
                size_bytes=total,
                limit_bytes=MAX_ATOMIC_WRITE_BYTES,
            )
        if len(data) > WRITER_BATCH_EVENTS:
            raise EventTooLarge(
                f"{len(data)} events for stream {self._name}: at most {WRITER_BATCH_EVENTS} can "
                "be written together; use a transaction for more."
            )
        self._encoder.check_key(routing_key)
        if not data:
            return self._nothing()
        queue, size = self._queue, total + len(data) * WRITER_EVENT_BYTES
        if queue.taken_bytes + size > queue.limit_bytes:
            self._wait_for_room(size)
        future: WriteFuture[tuple[EventPointer, ...]] = WriteFuture()
        future._at, future._number = queue.waiting, 0
        queue.offer((data, routing_key, self._now_us(), future, None))
        queue.taken_bytes += size
        return future

    def _nothing(self) -> WriteFuture[tuple[EventPointer, ...]]:
        self._check_usable()
        future: WriteFuture[tuple[EventPointer, ...]] = WriteFuture()
        future._number = 0
        future.settle(DurableGroup(None, 0))
        return future

    def flush(self, note: str | None = None, timeout: float | None = None) -> None:
        """Block until all events written before are durable; raise what made them fail.

        ``note`` (such as a source position) is kept with the last of them, atomically, and is
        what ``last_note`` gives to the next writer of this id. ``timeout`` is in seconds.
        """
        if note is not None:
            self._check_note(note)
        if timeout is not None:
            check_timeout("flush", timeout)
        if self._queue.is_mine:
            raise IllegalState(
                f"flush was called on the writer of stream {self._name} from a callback of one of "
                "its futures, which it would wait for: flush elsewhere."
            )
        self._check_usable()
        failure = self._queue.mark(note).exception(timeout)
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush and stop; raise a failure that nobody was told of. Again: nothing.

        From a callback of a future it does not wait: the writer stops when it has flushed.
        """
        queue = self._queue
        queue.guard.check()
        if not queue.ended:
            queue.close()
        if not queue.is_told:
            queue.raise_failure()

    def __enter__(self) -> EventStreamWriter:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush and close; what was written before an exception is flushed too.

        An exception of the body goes on, whatever the writer has to say besides.
        """
        if kind is None:
            self.close()
        else:
            with contextlib.suppress(PravegaSparkError):
                self.close()

    def __reduce__(self) -> Any:
        """Refuse pickling: a writer has a thread and a session."""
        raise TypeError("an EventStreamWriter cannot be pickled; create it where it is used.")

    def _check_note(self, note: str) -> None:
        if self._committer.is_anonymous:
            raise InvalidInput(
                f"flush(note=...) on stream {self._name} needs a writer with an id of your own: "
                "create_writer(stream, writer_id=...), since the note is kept by that id."
            )
        self._encoder.check_note(note)

    def _check_usable(self) -> None:
        queue = self._queue
        queue.guard.check()
        queue.raise_failure()
        if queue.ended:
            raise ObjectClosed(f"the writer of stream {self._name} was closed; create a new one.")

    def _wait_for_room(self, size: int) -> None:
        """Return when the buffer takes so many bytes; raise if the writer takes nothing more."""
        queue = self._queue
        self._check_usable()
        if not queue.is_mine:
            queue.waiting.bell.wait_for(lambda: not queue.is_full(size))
        self._check_usable()
