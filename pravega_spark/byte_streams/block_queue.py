"""Collects what a byte writer is given into blocks, and queues the blocks for their commits.

What is written while no commit is under way goes into the next commit at once, however short it is.
Meanwhile bytes are collected: a block is queued when it is full, and the last one, as long as it is
then, when nothing of the writer is under way any more. So a lone write is not delayed, and many
short ones cost few commits.
"""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import numpy as np
import pyarrow as pa

from pravega_spark.byte_streams.byte_committer import ByteCommitter
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.writing.pending_writes import OpenTable
from pravega_spark.engine.writing.table_rows import TableRows
from pravega_spark.engine.writing.write_futures import WriteFuture
from pravega_spark.engine.writing.write_queue import WriteQueue
from pravega_spark.errors import IllegalState, ObjectClosed
from pravega_spark.limits import BLOCK_BYTES, WRITER_EVENT_BYTES
from pravega_spark.process_locks import new_rlock

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
        """What is queued; from then on the bytes do not change. Queued twice, it is taken once."""


class BlockQueue(WriteQueue):
    """The bytes that one writer has accepted and not yet committed."""

    def __init__(
        self, committer: ByteCommitter, name: str, buffer_bytes: int, runtime: Runtime
    ) -> None:
        """Begin without a byte."""
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
                    f"the bytes of the writer of stream {self.name}, which another thread closes, "
                    f"are not durable after {timeout} s."
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
                held.data += data[at:end]
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
        """Block while the buffer has no room for the blocks of so many bytes."""
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
        self.put((held.rows, None, 0, None, None))
        self.accepted_bytes += held.rows.size_bytes

    def _rows(self, data: bytes | bytearray | memoryview) -> TableRows:
        size = len(data)
        count = _blocks_of(size)
        ends = np.minimum(np.arange(count + 1, dtype=np.int64) * BLOCK_BYTES, size)
        buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
        blocks = pa.chunked_array([pa.Array.from_buffers(pa.binary(), count, buffers)])
        future: WriteFuture[Any] = WriteFuture()
        future._outcomes = outcome = OpenTable(self.pending, count)
        future._number = 0
        future.add_done_callback(self._send_held_if_idle)
        return TableRows(None, blocks, _needed(size), self._runtime.now_ns(), outcome)


def _blocks_of(size: int) -> int:
    return -(-size // BLOCK_BYTES)


def _needed(size: int) -> int:
    """Return the memory that the blocks of so many bytes take in the buffer."""
    return size + _blocks_of(size) * WRITER_EVENT_BYTES
