"""ByteStreamWriter: appends bytes to a stream of one segment, as a file open for writing.

Bytes that are written while no commit is under way go into the next commit at once. During a commit
bytes are collected: a block is queued when it is full, and the last one, as long as it is then,
when nothing of the writer is under way any more. So a lone write is not delayed, and many short
ones cost few commits.
"""

from __future__ import annotations

import contextlib
import io
import weakref
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from pravega_spark.byte_streams.positions import ByteSegment
from pravega_spark.engine.chunks.encoder import UNCOMPRESSED
from pravega_spark.engine.chunks.tiny import LoneEvent
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.stream import archived_records
from pravega_spark.engine.stream.fencing import check_fencing_token, check_token
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView, ViewCheck
from pravega_spark.engine.writing.append import AppendResult
from pravega_spark.engine.writing.batch import WriteBatch
from pravega_spark.engine.writing.committer import BatchCommitter, BatchPositions
from pravega_spark.engine.writing.encode import TableRows
from pravega_spark.engine.writing.futures import OpenTable, future_of
from pravega_spark.engine.writing.identity import SessionBatch
from pravega_spark.engine.writing.queue import WriteQueue
from pravega_spark.engine.writing.stage import RoutedEvents
from pravega_spark.errors import IllegalState, InvalidInput, ObjectClosed, PravegaSparkError
from pravega_spark.primitives.process_locks import new_rlock
from pravega_spark.txn.open_look import look_at
from pravega_spark.values.checks import check_flag, check_timeout, check_whole, shown
from pravega_spark.values.handles import NotPicklable
from pravega_spark.values.limits import BLOCK_BYTES, BYTE_BUFFER_BYTES, WRITER_EVENT_BYTES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Acknowledged(NamedTuple):
    """How far the log holds a writer's bytes."""

    position: int
    """The byte of the stream after the writer's last one."""
    written: int
    """The bytes of the writer's id."""


class ByteCommitter(BatchCommitter):
    """Commits batches of blocks to one segment."""

    def __init__(
        self,
        segment: ByteSegment,
        writer_id: str | None,
        *,
        compression: str,
        fencing_token: str | None = None,
    ) -> None:
        """Open the writer; an id of the user's own costs a commit."""
        stream = segment.stream
        super().__init__(
            stream,
            writer_id,
            life=segment.life,
            fencing_token=fencing_token,
            compression=compression,
        )
        self._segment = segment
        tail = segment.tail(segment.view(refresh=False))
        self.acknowledged = Acknowledged(tail, self.last)

    def check_not_fenced(self, view: StreamView) -> None:
        """Raise unless the writer's session and its fencing token are the newest of a view.

        Raises WriterFenced, FencingTokenMismatch; WriterForgotten without a record of the writer.
        """
        if self._fencing_token is not None:
            check_token(view, self._fencing_token)
        if not self.is_anonymous:
            known = archived_records.find_writer(self._stream, view, self.writer_id)
            SessionBatch(self.writer_id, session=self._session, previous=0, last=0).check_session(
                known, view
            )

    def _id_of(self, writer_id: str) -> str:
        return f"bytes:{super()._id_of(writer_id)}"

    def _numbers(self, batch: WriteBatch) -> int:
        return batch.event_bytes

    def _route(
        self, view: StreamView, events: pa.Table | LoneEvent | None, batch: WriteBatch
    ) -> RoutedEvents:
        scaled = self._segment.scaled(view)
        if scaled is not None:
            raise scaled
        return RoutedEvents((self._segment.segment_id,), np.zeros(batch.count, np.uint8))

    def _positions(self, routed: RoutedEvents, appended: AppendResult) -> BatchPositions:
        positions = super()._positions(routed, appended)
        if appended.ranges:
            self.acknowledged = Acknowledged(appended.ranges[-1].end_bytes, self.last)
        return positions


_PART_BYTES = 8 * BLOCK_BYTES
"""The most bytes of a long write that are queued together."""


class _HeldBlock:
    """Bytes that are accepted and not known to be queued; replaced in one step once they are."""

    __slots__ = ("data", "rows", "start")

    def __init__(self, start: int, data: bytes | bytearray | memoryview | None = None) -> None:
        """Hold bytes behind ``start``, by default none yet."""
        self.start = start
        self.data = bytearray() if data is None else data
        self.rows: TableRows | None = None
        """The queued rows, whose bytes change no more. Rows queued twice are taken once."""


class BlockQueue(WriteQueue):
    """The bytes that one writer has accepted and not yet committed."""

    def __init__(
        self, committer: ByteCommitter, name: str, buffer_bytes: int, runtime: Runtime
    ) -> None:
        super().__init__(committer, name, buffer_bytes)
        self._runtime = runtime
        self._filling = new_rlock()
        self._is_filling = False
        self._held = _HeldBlock(committer.last)
        """The block that is not full yet."""
        self.is_closing = False
        """Whether a call has closed the writer: it accepts no more bytes."""
        self._has_sent_last = False

    @property
    def accepted(self) -> int:
        """The bytes of the writer's id, with those that are not durable yet."""
        held = self._held
        return held.start + len(held.data)

    def write(self, data: memoryview) -> None:
        """Accept bytes, which may change after the call; block while the buffer is full."""
        self.check_usable()
        with self._filling:
            if self._is_filling:
                raise RuntimeError(f"reentrant write to the byte stream {self.name}")
            try:
                self._is_filling = True
                self._fill(data)
            finally:
                self._is_filling = False
        self._send_held_if_idle()

    def check_usable(self) -> None:
        """Raise the failure of the writer, ObjectClosed or ForkedProcess."""
        self.guard.check()
        self.raise_failure()
        if self.is_closing or self.is_closed:
            raise ObjectClosed(f"the writer of stream {self.name} was closed; create a new one.")

    def send(self) -> None:
        """Queue the block that is not full."""
        with self._filling:
            self._send_held()

    def flush(self, timeout: float | None) -> None:
        """Block until all bytes that were accepted before are durable, also while it is closed."""
        if self.pending.is_own_thread:
            raise IllegalState(
                f"flush of the byte writer of stream {self.name} was called in a callback and "
                "would wait for itself; flush on another thread."
            )
        try:
            self.check_usable()
            self.send()
            failure = None if self.is_settled else self.add_barrier().exception(timeout)
            if failure is not None:
                raise failure
        except ObjectClosed:
            if not self.pending.condition.wait_for(lambda: self.is_closed, timeout):
                raise FutureTimeoutError(
                    f"another thread closes the writer of stream {self.name}, whose bytes are not "
                    f"durable after {timeout} s."
                ) from None
        self.raise_failure()

    def close(self) -> None:
        """Commit what was accepted, then end; every call returns when that is done.

        A write of another thread that waits for room ends with ObjectClosed, and nothing is
        accepted behind the last block.
        """
        self.is_closing = True
        self.pending.condition.notify_all()
        if self.failure is None and not self.is_closed:
            with self._filling:
                self._send_held(waits=False)
                self._has_sent_last = True
        if not self.is_closed:
            super().close()

    def close_ownerless(self) -> None:
        """Close without waiting: the writer was collected."""
        if not self.guard.is_forked:
            self._send_last()
        super().close_ownerless()

    def begin_exit(self, *, close: bool) -> None:
        """Ask the thread to commit what was accepted, because the process ends."""
        self._send_last()
        super().begin_exit(close=close)

    def reset_after_fork(self) -> None:
        """In a forked child: drop the bytes."""
        self._held = _HeldBlock(self.accepted)
        super().reset_after_fork()

    def _fill(self, data: memoryview) -> None:
        at, size = 0, len(data)
        while at < size:
            if not at or self._has_sent_last:  # a write that has begun ends before a close
                self.check_usable()
            if self._held.rows is not None:  # an interrupt came before it was replaced
                self._send_held()
            held = self._held
            if held.data or size - at < BLOCK_BYTES:
                assert isinstance(held.data, bytearray)
                end = min(size, at + BLOCK_BYTES - len(held.data))
                try:
                    held.data += data[at:end]
                except BufferError:  # the frame of an interrupted call still looks at it
                    held.data = held.data + data[at:end]
                if len(held.data) == BLOCK_BYTES:
                    self._send_held()
            else:
                end = min(at + _PART_BYTES, size - (size - at) % BLOCK_BYTES)
                part = data[at:end]
                self._wait_for_room(end - at)
                self._held = _HeldBlock(
                    held.start, part if type(data.obj) is bytes else bytes(part)
                )
                self._send_held(waits=False)
            at = end

    def _send_held_if_idle(self, _: Any = None) -> None:
        """Queue the block that is not full if nothing is under way.

        A commit that ends calls this, too. It does not wait for a thread that writes: that one
        looks again once its write is accepted.
        """
        while self._held.data and self.is_settled and self.failure is None and not self.is_closed:
            is_ours = False
            try:
                is_ours = self._filling.acquire(blocking=False)
                if not is_ours or self._is_filling:  # a write of this thread was interrupted
                    return
                if self.is_settled:
                    self._send_held(waits=False)
            finally:
                if is_ours:
                    self._filling.release()

    def _send_last(self) -> None:
        """Queue the block that is not full, without a wait, if no thread is writing."""
        is_ours = False
        try:
            if self.failure is None and not self.is_closed:
                is_ours = self._filling.acquire(timeout=1.0)
            if is_ours:
                self._send_held(waits=False)
        finally:
            if is_ours:
                self._filling.release()

    def _send_held(self, *, waits: bool = True) -> None:
        if waits and self._held.data:  # what is held stays so if the wait is interrupted
            self._wait_for_room(len(self._held.data))
        held = self._held
        if held.data:  # a signal handler's flush may have sent it meanwhile
            self._put(held)
            self._held = _HeldBlock(held.start + len(held.data))

    def _wait_for_room(self, size: int) -> None:
        """Block while the buffer has no room for the blocks of ``size`` bytes."""
        needed = _needed(size)
        if self.accepted_bytes + needed > self.limit_bytes:
            self.check_usable()
            if not self.pending.is_own_thread:
                self.pending.condition.wait_for(lambda: self.is_closing or not self.is_full(needed))
            self.check_usable()

    def _put(self, held: _HeldBlock) -> None:
        """Queue blocks of bytes that do not change any more."""
        if held.rows is None:
            held.rows = self._rows(held.data)
        self.put(held.rows)
        self.accepted_bytes += held.rows.size_bytes

    def _rows(self, data: bytes | bytearray | memoryview) -> TableRows:
        size = len(data)
        count = _blocks_of(size)
        ends = np.minimum(np.arange(count + 1, dtype=np.int64) * BLOCK_BYTES, size)
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
        blocks = pa.chunked_array([pa.Array.from_buffers(pa.binary(), count, buffers)])
        outcome = OpenTable(self.pending, count)
        future_of(outcome).add_done_callback(self._send_held_if_idle)
        return TableRows(
            None, blocks, size_bytes=_needed(size), time_ns=self._runtime.now_ns(), outcome=outcome
        )


def _blocks_of(size: int) -> int:
    return -(-size // BLOCK_BYTES)


def _needed(size: int) -> int:
    """Return the memory that the blocks of ``size`` bytes take in the buffer."""
    return size + _blocks_of(size) * WRITER_EVENT_BYTES


Seal = Callable[[StreamLog, int, ViewCheck], bool]
"""Seals a life of a stream if a check passes; False if it is sealed already."""
_COMPRESSIONS = (UNCOMPRESSED, "snappy", "zstd")


class ByteStreamWriter(NotPicklable, io.RawIOBase):
    """Appends bytes to one stream; thread-safe. Made by ``StreamManager.create_byte_writer``.

    Bytes are on their way as soon as they are written, and durable after :meth:`flush`. Those of
    several writers interleave block by block. With a ``writer_id`` of the user's own, writes are
    exactly-once across restarts: continue behind ``acknowledged_bytes`` of the source.
    """

    _NOT_PICKLABLE = "a ByteStreamWriter cannot be pickled; create it where it is used."

    def __init__(
        self,
        stream: StreamLog,
        writer_id: str | None = None,
        *,
        seal: Seal,
        compression: str = UNCOMPRESSED,
        fencing_token: str | None = None,
        buffer_bytes: int = BYTE_BUFFER_BYTES,
        life: int | None = None,
    ) -> None:
        """Open the writer: one commit for an id of the user's own, otherwise no storage call."""
        super().__init__()
        if compression not in _COMPRESSIONS:
            raise InvalidInput(
                f"the compression of a byte writer is one of {', '.join(_COMPRESSIONS)}; got "
                f"{shown(compression)}."
            )
        if fencing_token is not None:
            check_fencing_token("fencing_token", fencing_token)
        look_at(stream)
        self._segment = ByteSegment(stream, life=life)
        self._writer_id = writer_id
        self._committer = ByteCommitter(
            self._segment, writer_id, compression=compression, fencing_token=fencing_token
        )
        self._queue = BlockQueue(self._committer, stream.name, buffer_bytes, stream.runtime)
        self._seal = seal
        # A writer that was not closed is closed when it is collected, or by writer_exit.
        weakref.finalize(self, self._queue.close_ownerless).atexit = False

    @property
    def writer_id(self) -> str:
        """The id of the user's own, or a random one."""
        return self._writer_id or self._committer.writer_id

    @property
    def acknowledged_bytes(self) -> int:
        """The bytes of this writer id that are durable, from all of its sessions."""
        return self._committer.acknowledged.written

    def writable(self) -> bool:
        """Return True; raise ValueError once closed, as all calls do."""
        self._check_open()
        return True

    def readable(self) -> bool:
        """Return False."""
        self._check_open()
        return False

    def readinto(self, buffer: object, /) -> int:
        """Raise io.UnsupportedOperation, as all reads do: a byte reader reads."""
        self._check_open()
        name = self._segment.stream.name
        raise io.UnsupportedOperation(
            f"a byte writer of stream {name} cannot read; use create_byte_reader({name!r})."
        )

    def write(self, data: ReadableBuffer, /) -> int:
        """Append bytes of any number, and return it; block while the buffer is full.

        After an interrupt a part of them may be written: ``tell`` says how many. If another thread
        closes the writer meanwhile, that is so as well, and ValueError is raised.
        """
        self._check_open()
        view = memoryview(data)
        if not view.c_contiguous:
            view = memoryview(view.tobytes())
        view = view.cast("B") if view.nbytes else memoryview(b"")
        try:
            self._queue.write(view)
        except ObjectClosed as error:
            raise ValueError(f"I/O operation on closed file: {error}") from error
        return len(view)

    def tell(self) -> int:
        """Return the position after the last byte that was written.

        If other writers write, too, the position is known after a :meth:`flush`.
        """
        self._check_open()
        position, written = self._committer.acknowledged
        return position + self._queue.accepted - written

    def flush(self, timeout: float | None = None) -> None:
        """Block until all bytes written before are durable; raise the error of a failed write."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        check_timeout("flush", timeout)
        self._queue.flush(timeout)

    def fetch_head_offset(self) -> int:
        """Return the position of the first byte that can be read."""
        self._check_open()
        return self._segment.newest_head()

    def fetch_tail_offset(self) -> int:
        """Return the position after the last durable byte of all writers."""
        self._check_open()
        return self._segment.tail(self._segment.view())

    def truncate_before(self, offset: int, *, past_subscribers: bool = False) -> None:
        """Delete all bytes before a position, which becomes the head; a lower one does nothing.

        Raises HeldBySubscriber if a subscriber still needs an event that lies completely before
        it, unless ``past_subscribers``; InvalidInput for a position behind the durable tail;
        WriterFenced or FencingTokenMismatch if a newer writer took over.
        """
        self._check_open()
        check_whole("the offset of a truncation", offset)
        check_flag("past_subscribers", past_subscribers)
        check = self._committer.check_not_fenced
        self._segment.truncate_before(offset, past_subscribers=past_subscribers, check=check)

    def seal(self) -> bool:
        """Flush, then seal the stream: nobody can write to it again. False if it was sealed.

        Nothing is sealed if a write has failed, whose error is raised, or if a newer writer took
        over: WriterFenced or FencingTokenMismatch.
        """
        self._check_open()
        self._queue.flush(None)
        return self._seal_stream()

    def close_and_seal(self) -> bool:
        """Flush, close, and seal the stream; False if it was sealed. Raises what ``seal`` does."""
        self._check_open()
        self.close()
        self._queue.raise_failure()  # one that was reported before, too
        return self._seal_stream()

    def _seal_stream(self) -> bool:
        segment = self._segment
        return self._seal(segment.stream, segment.life, self._committer.check_not_fenced)

    @property
    def closed(self) -> bool:
        """Whether it was closed, and all that it accepted is durable or has failed."""
        queue = self._queue
        return queue.is_closing and (queue.is_closed or queue.guard.is_forked)

    def close(self) -> None:
        """Flush and stop; raise a failure that was not reported yet.

        A second call does nothing. One beside it, in another thread, returns when it is done, too.
        """
        queue = self._queue
        if self.closed:
            return
        queue.is_closing = True
        queue.guard.check()
        queue.close()
        if not queue.is_failure_reported:
            queue.raise_failure()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Flush and close; after an exception of the body too, which hides a failure."""
        if kind is None:
            self.close()
        else:
            with contextlib.suppress(PravegaSparkError):
                self.close()

    def __del__(self) -> None:
        """Leave the end to the finalizer, which does not wait."""

    def _check_open(self) -> None:
        if self._queue.is_closing:
            raise ValueError("I/O operation on closed file.")
