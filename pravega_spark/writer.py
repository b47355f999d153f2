"""EventStreamWriter: events in, in order by routing key, durable when their future is done."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from pravega_spark.config import (
    MAX_ATOMIC_WRITE_BYTES,
    MAX_EVENT_BYTES,
    WRITER_BATCH_BYTES,
    WRITER_BATCH_EVENTS,
    WRITER_BUFFER_BYTES,
    WRITER_QUEUE_BATCHES,
)
from pravega_spark.engine.batches import BatchCommitter
from pravega_spark.engine.encoding import Encoder, Serializer
from pravega_spark.engine.pending import Pending, WriteFuture
from pravega_spark.engine.runtime import ProcessGuard
from pravega_spark.engine.stream import Stream
from pravega_spark.errors import (
    EventTooLarge,
    IllegalState,
    InvalidInput,
    ObjectClosed,
    PravegaSparkError,
)


def json_serializer(event: Any) -> bytes:
    """Encode an event as compact JSON in UTF-8."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()


_REFUSE = -1
"""A limit that no event is within, so that the next one meets the full check."""
_writers: weakref.WeakSet[EventStreamWriter] = weakref.WeakSet()


def _refuse_in_child() -> None:
    for writer in list(_writers):
        writer._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_refuse_in_child)


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
        stream: Stream,
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
        self._encoder = Encoder(stream.name, serializer)
        self._plain = serializer is None
        self._now_us = stream.runtime.now_us
        self._name = stream.name
        self._guard = ProcessGuard(f"the writer of {stream.name}")
        self._make_lock()
        self._buffer_bytes = buffer_bytes
        # Bytes ever taken in, settled, and taken in before the open batch; an event that ends
        # within the limit needs no other check, so that writing one costs a microsecond.
        self._taken = self._settled = self._before_open = 0
        self._limit = _REFUSE
        self._open = Pending()
        self._queue: deque[Pending] = deque()
        self._current: Pending | None = None
        self._failure: PravegaSparkError | None = None
        self._failed: list[Pending] = []
        self._told = False
        """Whether a call of this writer, not a future, has told somebody of the failure."""
        self._closed = False
        self._thread = threading.Thread(
            target=self._run, name=f"pravega-writer-{stream.name}", daemon=True
        )
        self._thread.start()
        _writers.add(self)

    def _make_lock(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)

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

    def write_event(self, event: Any, routing_key: str | None = None) -> WriteFuture:
        """Write one event; the future's result is its EventPointer, once it is durable.

        ``event`` is bytes or str (UTF-8), or anything the writer's serializer takes. Without a
        routing key there is no order between events. Blocks while the buffer is full.
        """
        plain = type(event) is bytes and self._plain
        data: bytes = event if plain else self._encoder.event(event)
        size = len(data)
        if size > MAX_EVENT_BYTES:
            raise self._encoder.too_large(size)
        if routing_key is not None and not (type(routing_key) is str and routing_key.isascii()):
            self._encoder.check_key(routing_key)
        with self._lock:
            batch = self._open
            taken = self._taken + size
            if taken > self._limit or len(batch.events) >= WRITER_BATCH_EVENTS:
                batch = self._room(size, 1)
                taken = self._taken + size
            index = batch.add(data, routing_key, self._now_us())
            self._taken = taken
            if index == 0:
                self._work.notify()
        return WriteFuture(batch, index)

    def write_events(self, events: Iterable[Any], routing_key: str | None = None) -> WriteFuture:
        """Write events all or none, together in one segment; the result is their pointers."""
        data = [self._encoder.event(event) for event in events]
        total = sum(map(len, data))
        if not data:
            raise InvalidInput(f"write_events on stream {self._name} was given no event.")
        if total > MAX_ATOMIC_WRITE_BYTES:
            raise EventTooLarge(
                f"{len(data)} events of {total} bytes for stream {self._name}: together at most "
                f"{MAX_ATOMIC_WRITE_BYTES} bytes are allowed; use a transaction for more."
            )
        if len(data) > WRITER_BATCH_EVENTS:
            raise EventTooLarge(
                f"{len(data)} events for stream {self._name}: at most {WRITER_BATCH_EVENTS} can "
                "be written together; use a transaction for more."
            )
        self._encoder.check_key(routing_key)
        with self._lock:
            batch = self._room(total, len(data))
            first = batch.add_group(data, routing_key, self._now_us())
            self._taken += total
            if first == 0:
                self._work.notify()
        return WriteFuture(batch, first, len(data))

    def flush(self, note: str | None = None, timeout: float | None = None) -> None:
        """Block until all events written before are durable; raise what made them fail.

        ``note`` (such as a source position) is kept with the last of them, atomically, and is
        what ``last_note`` gives to the next writer of this id.
        """
        if note is not None:
            self._check_note(note)
        if threading.current_thread() is self._thread:
            raise IllegalState(
                f"flush was called on the writer of stream {self._name} from a callback of one of "
                "its futures, which it would wait for: flush elsewhere."
            )
        with self._lock:
            self._check_usable()
            if note is not None:
                self._open.note = note
                self._roll()
            if self._open.events:
                last: Pending | None = self._open
            else:
                last = self._queue[-1] if self._queue else self._current
        if last is not None:
            last.wait(timeout)
            if last.failure is not None:
                self._told = True
                raise last.failure

    def close(self) -> None:
        """Flush and stop; raise a failure that nobody was told of. Again: nothing."""
        with self._lock:
            if self._closed:
                return
        try:
            if self._failure is None:
                self.flush()
        finally:
            with self._lock:
                self._closed = True
                self._limit = _REFUSE
                self._work.notify_all()
                self._changed.notify_all()
            here = self._guard.pid == os.getpid()
            if here and threading.current_thread() is not self._thread:
                self._thread.join()
        if self._failure is not None and not self._told and not any(b.told for b in self._failed):
            self._raise_failure()

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
        self._guard.check()
        if self._failure is not None:
            self._raise_failure()
        if self._closed:
            raise ObjectClosed(f"the writer of stream {self._name} was closed; create a new one.")

    def _raise_failure(self) -> None:
        assert self._failure is not None
        self._told = True
        raise type(self._failure)(*self._failure.args) from self._failure

    def _forked(self) -> None:
        """In a child process: let nothing in, nor wait for one that is not here."""
        self._limit = _REFUSE
        self._make_lock()
        for batch in (self._current, *self._queue, self._open):
            if batch is not None and not batch.is_done():
                batch.abandon(self._guard.error())

    def _room(self, size: int, count: int) -> Pending:
        """Return the open batch with room for events of ``size`` bytes; wait while all is full."""
        self._check_usable()
        while self._full(size) and threading.current_thread() is not self._thread:
            self._changed.wait()
            self._check_usable()
        batch = self._open
        full = (
            len(batch.events) + count > WRITER_BATCH_EVENTS
            or self._taken - self._before_open + size > WRITER_BATCH_BYTES
        )
        if full and batch.events:
            self._roll()
        return self._open

    def _full(self, size: int) -> bool:
        pending = self._taken - self._settled
        too_many = len(self._queue) >= WRITER_QUEUE_BATCHES  # of events that have no bytes
        return too_many or (pending > 0 and pending + size > self._buffer_bytes)

    def _roll(self) -> None:
        self._queue.append(self._open_anew())
        self._work.notify()

    def _open_anew(self) -> Pending:
        """Return the open batch, closed, and begin another."""
        batch, self._open = self._open, Pending()
        batch.size_bytes = self._taken - self._before_open
        self._before_open = self._taken
        self._set_limit()
        return batch

    def _set_limit(self) -> None:
        room = self._settled + self._buffer_bytes
        usable = not self._closed and self._failure is None
        self._limit = min(room, self._before_open + WRITER_BATCH_BYTES) if usable else _REFUSE

    def _take(self) -> Pending | None:
        """Return the next batch to commit; None when the writer was closed and all is done."""
        with self._lock:
            self._current = None
            while not self._queue and not self._open.events:
                if self._closed:
                    return None
                self._work.wait()
            if self._queue:
                self._current = self._queue.popleft()
            else:
                self._current = self._open_anew()
            return self._current

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            try:
                self._committer.commit(batch)
            except BaseException as error:
                self._fail(batch, error)
                return
            with self._lock:
                self._settled += batch.size_bytes
                self._set_limit()
                self._changed.notify_all()
            batch.succeed()

    def _fail(self, batch: Pending, error: BaseException) -> None:
        """Fail what is pending and all that comes later: order forbids to go on behind a gap."""
        if not isinstance(error, PravegaSparkError):
            wrapped = PravegaSparkError(
                f"the writer of stream {self._name} stopped: {type(error).__name__}: {error}"
            )
            wrapped.__cause__ = error
            error = wrapped
        with self._lock:
            self._failure = error
            self._limit = _REFUSE
            pending = self._failed = [batch, *self._queue, self._open]
            self._queue.clear()
            self._changed.notify_all()
        for failed in pending:
            failed.fail(error)
