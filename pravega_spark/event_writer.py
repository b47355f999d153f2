"""EventStreamWriter: writes events, in order by routing key, durable once their future is done.

``engine/writing/__init__.py`` says through which files an event goes from here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

from pravega_spark.engine.chunks.format import EventFormat, SmallEvent, TypedEvent
from pravega_spark.engine.stream.fencing import check_fencing_token
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.writing.append import ExpectedPosition, check_expected
from pravega_spark.engine.writing.batch import AtomicWrite, LargeEvent
from pravega_spark.engine.writing.committer import BatchCommitter
from pravega_spark.engine.writing.encode import (
    EventEncoder,
    EventTable,
    EventTimes,
    LatestTime,
    Serializer,
)
from pravega_spark.engine.writing.futures import (
    ConditionalOutcome,
    ConditionalWrite,
    OpenTable,
    WriteFuture,
    future_of,
    only_part,
)
from pravega_spark.engine.writing.noted_times import NotedTimes
from pravega_spark.engine.writing.outcomes import DurableGroup, EventPointers
from pravega_spark.engine.writing.queue import WriteQueue
from pravega_spark.engine.writing.stage import store_large_event
from pravega_spark.errors import (
    IllegalState,
    InvalidInput,
    ObjectClosed,
)
from pravega_spark.txn.open_look import look_at
from pravega_spark.values.checks import check_flag, check_time_us, check_timeout
from pravega_spark.values.handles import ClosedByBlock, NotPicklable
from pravega_spark.values.limits import (
    MAX_EVENT_BYTES,
    MAX_ROUTING_KEY_LENGTH,
    WRITER_BUFFER_BYTES,
    WRITER_EVENT_BYTES,
)
from pravega_spark.values.segments import EventPointer


class EventStreamWriter(ClosedByBlock, NotPicklable):
    """Writes events to one stream; thread-safe.

    Events with one routing key are read in the order of their writes. Events that arrive while a
    commit is in flight share the next commit; a single event is committed immediately. With a
    ``writer_id``, writes are exactly-once across restarts: ``last_event_number`` and ``last_note``
    are where to resume, and opening an id fences its older writers. Made by
    ``StreamManager.create_writer``.
    """

    _NOT_PICKLABLE = "an EventStreamWriter cannot be pickled; create it where it is used."

    def __init__(
        self,
        stream: StreamLog,
        writer_id: str | None = None,
        *,
        serializer: Serializer | None = None,
        fencing_token: str | None = None,
        large_events: bool = False,
        buffer_bytes: int = WRITER_BUFFER_BYTES,
        life: int | None = None,
        future: type[WriteFuture[Any]] = WriteFuture,
        automatically_note_time: bool = False,
        times: EventTimes | None = None,
    ) -> None:
        """Open the writer: one commit for an id of the user's own, otherwise no storage call.

        ``life`` is the life of the stream that the writer is for, by default the present one.
        ``future`` is the class of the futures of single events, ``times`` what notes their times.
        """
        if fencing_token is not None:
            check_fencing_token("fencing_token", fencing_token)
        self._future = future
        view = stream.view(refresh=life is None, life=life)
        self._encoder = EventEncoder(
            stream.name,
            serializer,
            large_events=large_events,
            times=times,
            event_format=view.event_format,
        )
        self._stream = stream
        look_at(stream)
        self._committer = BatchCommitter(
            stream, writer_id, life=view.life, fencing_token=fencing_token
        )
        self._encoder.newest = partial(_newest_format, stream, self._committer)
        self._plain = serializer is None and times is None and view.event_format.is_raw
        self._now_ns = stream.runtime.now_ns
        self._name = stream.name
        self._buffer_bytes = buffer_bytes
        self._queue = WriteQueue(self._committer, stream.name, buffer_bytes)
        self._times = NotedTimes(stream, self._queue, self._committer.mark_id)
        by_clock = check_flag("automatically_note_time", automatically_note_time)
        self._times.note_automatically(clock=by_clock, events=times)
        # A writer that was not closed is closed when it is collected, or at the exit of the
        # process (engine/writing/process_exit.py).
        weakref.finalize(self, self._queue.close_ownerless).atexit = False

    @property
    def writer_id(self) -> str:
        """The id that the user gave, or a random one."""
        return self._committer.writer_id

    @property
    def last_event_number(self) -> int:
        """The number of the last durable event of this writer id; events count from 1."""
        return self._committer.last

    @property
    def last_note(self) -> str | None:
        """The note of the last durable flush of this writer id."""
        return self._committer.note

    @property
    def last_note_event_number(self) -> int:
        """The number of the last event that the flush with ``last_note`` covers."""
        return self._committer.note_number

    def write_event(
        self,
        event: Any,
        routing_key: str | None = None,
        *,
        expected: ExpectedPosition | None = None,
    ) -> WriteFuture[EventPointer]:
        """Write one event; the future's result is its EventPointer, once it is durable.

        ``event`` is bytes or str (UTF-8), or a value for the writer's serializer; an error of the
        serializer is raised unchanged, and nothing is written. An event of a typed stream is a
        dict, a dataclass or a pydantic model; SchemaMismatch names the column that does not fit.
        Events without a routing key have no order. Blocks while the buffer is full.

        With ``expected`` the event is written only from that position on: a StreamCut, which must
        be the stream's tail; an EventPointer, which the event itself must get; or the writer's
        ``last_event_number``. Otherwise the future's error is ConditionFailed with the actual
        position, nothing is written, and the writer goes on with its later writes.

        With ``large_events`` an event has up to 1 GiB and may be a file opened in binary mode, or
        an iterable of bytes. One of more than 8 MiB is stored during the call.
        """
        plain = type(event) is bytes and self._plain
        data = event if plain else self._encoder.payload(event)
        time_us = None if plain else self._encoder.time_us(event)
        if (type(data) is not bytes or len(data) > MAX_EVENT_BYTES) and not isinstance(
            data, TypedEvent
        ):
            return self._write_large(data, routing_key, expected, time_us)
        size = len(data)
        if routing_key is not None and not (
            type(routing_key) is str
            and len(routing_key) <= MAX_ROUTING_KEY_LENGTH
            and routing_key.isascii()
        ):
            self._encoder.check_key(routing_key)
        if expected is not None:
            at = self._expected(expected)
            return self._write_if(at, [data], routing_key, time_us, is_single=True)
        queue = self._queue
        size += WRITER_EVENT_BYTES
        if queue.accepted_bytes + size > queue.limit_bytes:
            self._wait_for_room(size)
        if time_us is not None:
            self._encoder.accept(time_us)
        time_ns = self._now_ns()
        # Before the event is queued: from then on a commit may complete the future. In line, as
        # future_of does it: a call would double the cost of a write.
        future: WriteFuture[EventPointer] = self._future()
        future._outcomes = outcomes = queue.outcomes
        future._number = number = next(queue.numbers)
        try:
            queue.extend((data, routing_key, time_ns, number, outcomes))
        finally:  # even if a signal interrupted that
            if queue.is_idle:
                queue.wake()
        queue.accepted_bytes += size
        return future

    def _write_large(
        self,
        event: bytes | Iterator[memoryview],
        routing_key: str | None,
        expected: ExpectedPosition | None,
        time_us: int | None,
    ) -> WriteFuture[EventPointer]:
        """Store a large event, then put it into the queue, where it waits for its commit."""
        queue = self._queue
        pieces = self._encoder.pieces(event, is_conditional=expected is not None)
        self._encoder.check_key(routing_key)
        self._check_usable()
        stored = store_large_event(self._stream, self._committer.life, pieces, routing_key)
        self._check_usable()
        self._encoder.accept(time_us)
        outcomes, number = queue.outcomes, next(queue.numbers)
        future = future_of(outcomes, number, self._future)
        queue.put(LargeEvent(stored, number, outcomes))
        queue.accepted_bytes += WRITER_EVENT_BYTES
        return future

    def write_events(
        self,
        events: Iterable[Any],
        routing_key: str | None = None,
        *,
        expected: ExpectedPosition | None = None,
    ) -> WriteFuture[tuple[EventPointer, ...]]:
        """Write a list of events, all or none, into one segment; the result is their pointers.

        An empty list writes nothing; its future is done and has no pointer. ``expected`` is as in
        :meth:`write_event`, of the first event; with it, an empty list raises InvalidInput.
        """
        latest = LatestTime()
        data = list(self._encoder.each(events, latest))
        total = sum(map(len, data))
        self._encoder.check_atomic(len(data), total)
        self._encoder.check_key(routing_key)
        if expected is not None:
            return self._write_if(self._expected(expected), data, routing_key, latest.us)
        if not data:
            self._check_usable()
            return future_of(DurableGroup(None, 0))
        queue, size = self._queue, total + len(data) * WRITER_EVENT_BYTES
        if queue.accepted_bytes + size > queue.limit_bytes:
            self._wait_for_room(size)
        self._encoder.accept(latest.us)
        future = future_of(queue.pending)
        queue.put(AtomicWrite(data, routing_key, self._now_ns(), future))
        queue.accepted_bytes += size
        return future

    def write_table(
        self,
        table: Any,
        *,
        routing_key: str | None = None,
        event_time: str | None = None,
        expected: ExpectedPosition | None = None,
    ) -> WriteFuture[EventPointers]:
        """Write the rows of a table as events, in order; the result is their pointers.

        For a raw stream it is an Arrow table or batch with the columns ``event`` (binary or string)
        and, if wanted, ``routing_key`` (string) and ``timestamp`` (with a time zone, by default the
        writer's clock; required if the writer notes event times). For a typed stream it is one of
        Arrow, pandas or Polars with the columns of the schema, of which nullable ones may be
        missing; ``routing_key`` and ``event_time`` may name those of the keys (a string, whole
        number, decimal, boolean or date) and the times. Rows become visible in one commit or
        several, of at most 262,144 rows and 32 MiB: a reader may see a first part, and an error may
        leave one. An invalid row is an error that names it, and nothing is written. Blocks while
        the buffer is full. The table's buffers must not change before the future is done. With
        ``expected``, as in :meth:`write_event`, all rows are of one commit, and must fit into it.
        """
        queue = self._queue
        rows = self._encoder.table(table, routing_key, event_time)
        if expected is not None:
            return self._write_if(self._expected(expected), rows, None, rows.latest_us)
        self._check_usable()
        outcome = OpenTable(queue.pending, len(rows))
        future = future_of(outcome)
        for part in rows.parts(self._buffer_bytes, self._now_ns(), outcome):
            if queue.accepted_bytes + part.size_bytes > queue.limit_bytes:
                self._wait_for_room(part.size_bytes)
            queue.put(part)
            queue.accepted_bytes += part.size_bytes
        self._encoder.accept(rows.latest_us)
        self._queue.wake_if_idle()
        return future

    def _expected(self, expected: ExpectedPosition) -> ExpectedPosition:
        return check_expected(expected, self._name, self._committer.life)

    def _write_if(
        self,
        expected: ExpectedPosition,
        events: list[SmallEvent] | EventTable,
        key: str | None = None,
        latest_us: int | None = None,
        *,
        is_single: bool = False,
        marked_by: str | None = None,
    ) -> WriteFuture[Any]:
        """Queue a conditional write, behind all writes before it."""
        queue, time_ns = self._queue, self._now_ns()
        if not len(events):
            raise InvalidInput(
                f"a conditional write to stream {self._name} needs an event; without one nothing "
                "is compared."
            )
        self._check_usable()
        outcome = ConditionalOutcome(queue.pending)
        if isinstance(events, EventTable):
            rows = only_part(self._name, events, time_ns, outcome)
            write = ConditionalWrite(expected, rows, rows.size_bytes, outcome)
        else:
            size = sum(map(len, events)) + len(events) * WRITER_EVENT_BYTES
            write = ConditionalWrite(
                expected,
                events,
                size,
                outcome,
                key=key,
                time_ns=time_ns,
                is_single=is_single,
                marked_by=marked_by,
            )
        if queue.accepted_bytes + write.size_bytes > queue.limit_bytes:
            self._wait_for_room(write.size_bytes)
        self._encoder.accept(latest_us)
        future = future_of(outcome)
        queue.put(write)
        queue.accepted_bytes += write.size_bytes
        return future

    def note_time(self, time: int | datetime) -> WriteFuture[tuple[EventPointer, ...]]:
        """Note that all events that are written from now on are of this time or later.

        ``time`` is in ms since 1970, or a datetime with a time zone. It is stored with the events
        that were written before, in their commit, or in a separate one if these are durable; the
        future is done once it is, and has no pointer. The stream's watermark follows from the
        times of all its writers. Raises InvalidTime for a time before the last one that the writer
        noted, and IllegalState if the writer notes the time automatically or by its events.
        """
        time_us = check_time_us("the time that a writer notes", time)
        self._check_usable()
        return self._times.note(time_us)

    def flush(self, note: str | None = None, timeout: float | None = None) -> None:
        """Block until every event written before is durable; raise the error of a failed write.

        ``note`` (such as a source position) is stored with the last event, atomically; the next
        writer of this id reads it as ``last_note``. ``timeout`` is in seconds.
        """
        if note is not None and self._committer.is_anonymous:
            raise InvalidInput(
                f"flush(note=...) on stream {self._name} needs a writer with a writer_id, because "
                "the note is stored under that id: create_writer(stream, writer_id=...)."
            )
        if note is not None:
            self._encoder.check_note(note)
        check_timeout("flush", timeout)
        queue = self._queue
        if queue.pending.is_own_thread:
            raise IllegalState(
                f"flush of the writer of stream {self._name} was called in a callback of one of "
                "its futures and would wait for itself; flush on another thread."
            )
        self._check_usable()
        self._times.note_events()
        if note is None and queue.is_settled:
            queue.raise_failure()  # of a write that was not settled yet when it was looked for
            return
        failure = queue.add_barrier(note).exception(timeout)
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Flush and stop; raise a failure that was not reported yet. A second call does nothing.

        In a callback of a future the call does not wait: the writer stops after the flush.
        """
        queue = self._queue
        queue.guard.check()
        if not queue.is_closed:
            self._times.note_events()
            queue.close()
        if not queue.is_failure_reported:
            queue.raise_failure()

    def _check_usable(self) -> None:
        queue = self._queue
        queue.guard.check()
        queue.raise_failure()
        if queue.is_closed:
            raise ObjectClosed(f"the writer of stream {self._name} was closed; create a new one.")

    def _wait_for_room(self, size: int) -> None:
        """Block until the buffer has room for an event; raise if the writer failed or closed."""
        queue = self._queue
        self._check_usable()
        if not queue.pending.is_own_thread:
            queue.pending.condition.wait_for(lambda: not queue.is_full(size))
        self._check_usable()


def queue_of(writer: EventStreamWriter) -> WriteQueue:
    """Return the queue of a writer, for rooms that open writers of their own."""
    return writer._queue


def write_revision(
    writer: EventStreamWriter, value: Any, at: EventPointer, *, marked_by: str | None
) -> WriteFuture[EventPointer]:
    """Write a value without a routing key to the segment of a checked position."""
    events = [writer._encoder.event(value)]
    return writer._write_if(at, events, is_single=True, marked_by=marked_by)


def _newest_format(stream: StreamLog, committer: BatchCommitter) -> EventFormat:
    """Return the stream's format as it is now, in which events are encoded from now on.

    Not a method: a writer that its own encoder refers to would outlive its last use.
    """
    committer.event_format = stream.view(life=committer.life).event_format
    return committer.event_format
