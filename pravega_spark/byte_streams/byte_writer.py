"""ByteStreamWriter: appends bytes to a stream of one segment, as a file open for writing."""

from __future__ import annotations

import contextlib
import io
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pravega_spark.arguments import check_flag, check_timeout, check_whole, shown
from pravega_spark.byte_streams.block_queue import BlockQueue
from pravega_spark.byte_streams.byte_committer import ByteCommitter
from pravega_spark.byte_streams.byte_positions import ByteSegment
from pravega_spark.engine.chunks.chunk_encoder import UNCOMPRESSED
from pravega_spark.engine.stream.fencing import check_fencing_token
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import ViewCheck
from pravega_spark.errors import InvalidInput, ObjectClosed, PravegaSparkError
from pravega_spark.handles import NotPicklable
from pravega_spark.limits import BYTE_BUFFER_BYTES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

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
