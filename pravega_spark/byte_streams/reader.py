"""ByteStreamReader: reads the bytes of a stream of one segment, as a file open for reading."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Generator, Iterator
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from pravega_spark.byte_streams.positions import ByteSegment, Located
from pravega_spark.engine.chunks.arrow_arrays import offsets_of
from pravega_spark.engine.chunks.reader import marked_ref
from pravega_spark.engine.log.tail import wait_for_commits
from pravega_spark.engine.runtime.system import ProcessGuard
from pravega_spark.engine.stream.read import payload_parts, read_range
from pravega_spark.engine.stream.records import StreamState
from pravega_spark.engine.stream.stream_log import StreamLog
from pravega_spark.engine.stream.view import StreamView
from pravega_spark.errors import DataLoss, InvalidInput, TruncatedData
from pravega_spark.values.checks import check_flag, check_timeout, check_whole, shown
from pravega_spark.values.handles import NotPicklable
from pravega_spark.values.limits import PREFETCH_CHUNKS, READ_BATCH_EVENTS
from pravega_spark.values.segments import SegmentRange

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


WINDOW_BYTES: Final = 4 << 20
"""About how many bytes are read at a time, unless an event has more."""
_LONG_BYTES: Final = 128 << 10
"""Events of at least this size are used one by one."""
_EMPTY: Final = memoryview(b"")


class _Window(NamedTuple):
    """Bytes in memory, with the position of the first one."""

    start: int
    data: memoryview

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class _Run(NamedTuple):
    """A read that goes on from event to event, up to the tail of a view or of a large event."""

    parts: Iterator[memoryview]
    end_offset: int
    end: int
    """The bytes of the segment before ``end_offset``."""
    located: Located


class ByteWindows:
    """Finds bytes by position; for one thread at a time. Two windows are in memory, or three."""

    def __init__(self, segment: ByteSegment) -> None:
        self._segment = segment
        self._window = _Window(0, _EMPTY)
        self._run: _Run | None = None

    def at(self, view: StreamView, position: int) -> memoryview:
        """Return bytes from a position on, at least one; it lies between head and tail.

        Raises SegmentTruncated, DataLoss, CorruptChunk.
        """
        self._segment.check_readable(view, position)
        window = self._window
        if not window.start <= position < window.end:
            if self._run is None or position != window.end:
                self._begin(self._segment.locate(view, position), view, position)
            while not self._window.start <= position < self._window.end:
                self._advance(view, position)
        return self._window.data[position - self._window.start :]

    def close(self) -> None:
        """End the reads, and free the memory."""
        self._window = _Window(0, _EMPTY)
        if self._run is not None:
            run, self._run = self._run, None
            close = getattr(run.parts, "close", None)
            if close is not None:
                close()

    def _begin(self, located: Located, view: StreamView, position: int) -> None:
        """Begin a run with an event; in a large one, at the position itself."""
        self.close()
        rng = self._segment.rest_of(view, located.offset)
        start, end = located.offset_bytes, self._segment.tail(view)
        if located.is_large:  # alone: its size says nothing about those that follow
            rng = replace(rng, end=located.offset + 1)
            start, end = position, start + located.event_bytes
        self._window = _Window(start, _EMPTY)
        parts = self._parts(rng, located, start - located.offset_bytes)
        self._run = _Run(parts, end_offset=rng.end, end=end, located=located)

    def _parts(
        self, rng: SegmentRange, located: Located, skipped: int
    ) -> Generator[memoryview, None, None]:
        """Yield the bytes of batches; from the second on, the next one is read meanwhile.

        Not from the first one on: a reader that seeks would pay for what it does not read.
        """
        stream = self._segment.stream
        most = min(READ_BATCH_EVENTS, PREFETCH_CHUNKS * located.chunk_rows)
        rows = max(1, min(most, WINDOW_BYTES // max(1, located.event_bytes)))
        if located.event_bytes >= _LONG_BYTES:
            rows = 1  # blocks are views of a file's pages, and joining them would copy them
        batches = read_range(stream, rng, columns=("event",), batch_rows=rows, payload_bytes=0)
        first = next(batches, None)
        if first is None:
            return
        yield from self._bytes_of(rng, first, skipped)
        ahead = stream.runtime.read_ahead([_groups(batches)], 1)
        try:
            for group in ahead:
                for batch in group:
                    yield from self._bytes_of(rng, batch)
        finally:
            ahead.close()

    def _bytes_of(
        self, rng: SegmentRange, batch: pa.RecordBatch, skipped: int = 0
    ) -> Iterator[memoryview]:
        """Yield the bytes of a batch, or of the large event whose reference it holds."""
        if marked_ref(batch) is None:
            yield _payload(batch)[skipped:]
        else:
            yield from payload_parts(self._segment.stream, rng, batch, skipped)

    def _advance(self, view: StreamView, position: int) -> None:
        """Go on to the next window; where the head has passed that, to the one of ``position``."""
        run, end = self._run, self._window.end
        assert run is not None
        try:
            data = next(run.parts, None)
        except TruncatedData:
            newest = self._segment.view()
            self.close()
            self._segment.check_readable(newest, position)
            self._begin(self._segment.locate(newest, position), newest, position)
            return
        except BaseException:
            self.close()
            raise
        if data is not None:
            self._window = _Window(end, data)
            return
        if end != run.end:
            self.close()
            raise DataLoss(
                f"stream {self._segment.stream.name}: the chunks before event {run.end_offset} "
                f"hold {end} bytes, and the log records {run.end}. Restore the table from a copy.",
                stream=self._segment.stream.name,
            )
        located = run.located._replace(offset=run.end_offset, offset_bytes=run.end)
        if run.located.is_large:
            located = self._segment.locate(view, end)
        self._begin(located, view, end)


def _groups(batches: Iterator[pa.RecordBatch]) -> Generator[list[pa.RecordBatch], None, None]:
    """Yield batches of about a window together: what the next one is read during."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += len(_payload(batch))
        if size >= WINDOW_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _payload(batch: pa.RecordBatch) -> memoryview:
    """Return the bytes of a batch's events, one after the other, without a copy."""
    events: Any = batch.column("event")
    ends = offsets_of(events)
    first, last = int(ends[0]), int(ends[-1])
    data = events.buffers()[2]
    return _EMPTY if data is None else memoryview(data).cast("B")[first:last]


_READ_ALL_BYTES = 4 << 20


def _whole(what: str, value: Any) -> int:
    """Return a whole number of any type, as files take it; raise InvalidInput for another value."""
    return check_whole(what, index(value) if hasattr(value, "__index__") else value, None)


class ByteStreamReader(NotPicklable, io.RawIOBase):
    """Reads the bytes of one stream from its head on, for one thread at a time.

    Made by ``StreamManager.create_byte_reader``. At the tail a read waits for bytes, and returns
    none once the stream is sealed. With a ``timeout`` it waits that many seconds and then raises
    TimeoutError; with 0 it does not wait and returns None, as raw files do. Without ``follow`` the
    stream ends where its tail was when the reader was made. A read that raises leaves the position
    where it was.
    """

    _NOT_PICKLABLE = "a ByteStreamReader cannot be pickled; create it where it is used."

    def __init__(
        self,
        stream: StreamLog,
        *,
        timeout: float | None = None,
        follow: bool = True,
        life: int | None = None,
    ) -> None:
        """Begin at the head of the stream's only segment."""
        super().__init__()
        check_timeout("a read", timeout)
        check_flag("follow", follow)
        self._timeout = timeout
        self._segment = ByteSegment(stream, life=life)
        self._guard = ProcessGuard(f"the byte reader of {stream.name}")
        self._view = self._segment.view(refresh=False)
        self._end = None if follow else self._segment.tail(self._view)
        self._windows = ByteWindows(self._segment)
        self._position = self._segment.newest_head()

    def readable(self) -> bool:
        """Return True; raise ValueError once closed, as all calls do."""
        self._check_open()
        return True

    def seekable(self) -> bool:
        """Return True."""
        self._check_open()
        return True

    def writable(self) -> bool:
        """Return False."""
        self._check_open()
        return False

    def write(self, data: object, /) -> int:
        """Raise io.UnsupportedOperation: a byte writer writes."""
        self._check_open()
        name = self._segment.stream.name
        raise io.UnsupportedOperation(
            f"a byte reader of stream {name} cannot write; use create_byte_writer({name!r})."
        )

    def tell(self) -> int:
        """Return the position of the next byte, counted from the segment's creation."""
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to a position, relative to byte 0, to this position or to the newest tail.

        A position below the head raises SegmentTruncated when it is read; one behind the tail
        waits for it.
        """
        self._check_open()
        offset = _whole("the offset of a seek", offset)
        if whence == os.SEEK_CUR:
            offset += self._position
        elif whence == os.SEEK_END:
            offset += self.fetch_tail_offset()
        elif whence != os.SEEK_SET:
            raise InvalidInput(f"a seek is relative to 0, 1 or 2 (os.SEEK_...), not {whence!r}.")
        if offset < 0:
            raise InvalidInput(f"the position {offset} is negative; the first byte is 0.")
        self._position = offset
        return offset

    def skip(self, count: int) -> int:
        """Skip bytes, at most to the tail; return how many."""
        count = check_whole("the count to skip", _whole("the count to skip", count))
        skipped = min(count, self.available())
        self._position += skipped
        return skipped

    def available(self) -> int:
        """Return how many bytes can be read without waiting."""
        return max(0, self.fetch_tail_offset() - self._position)

    def fetch_head_offset(self) -> int:
        """Return the position of the first byte that can be read."""
        self._check_open()
        return self._segment.newest_head()

    def fetch_tail_offset(self) -> int:
        """Return the position after the last byte; without ``follow``, after the reader's last."""
        self._check_open()
        self._view = self._segment.view()
        return self._tail()

    def wait_for_data(self, timeout: float | None = None) -> bool:
        """Wait until a read returns at once; False if it would not after ``timeout`` seconds."""
        self._check_open()
        check_timeout("wait_for_data", timeout)
        return self._wait(timeout)

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """Read into a buffer as many bytes as fit and are there; wait only for the first one.

        Returns 0 at the end, and None if the reader does not wait. Raises SegmentTruncated,
        TimeoutError.
        """
        self._check_open()
        given = memoryview(buffer)
        if given.readonly:
            raise TypeError(f"a read needs a buffer that can be written, got {shown(buffer)}.")
        if not given.nbytes:
            return 0
        target = given.cast("B")
        size = len(target)
        ready = self._ready(size)
        if not ready:
            return ready
        start, done = self._position, 0
        wanted = min(size, self._tail() - start)
        while done < wanted:
            found = self._windows.at(self._view, start + done)
            taken = min(wanted - done, len(found))
            target[done : done + taken] = found[:taken]
            done += taken
        self._position = start + done
        return done

    def read(self, size: int | None = -1, /) -> bytes | Any:
        """Return at most ``size`` bytes, those that are there; wait only for the first one.

        Without ``size``, all bytes up to the end of the stream, as :meth:`readall` does.
        """
        self._check_open()
        size = -1 if size is None else _whole("the size of a read", size)
        if size < 0:
            return self.readall()
        if not size:
            return b""
        ready = self._ready(size)
        if not ready:
            return None if ready is None else b""
        found = self._windows.at(self._view, self._position)
        wanted = min(size, self._tail() - self._position)
        if len(found) >= wanted:
            self._position += wanted
            return bytes(found[:wanted])
        data = bytearray(wanted)
        count = self.readinto(data)
        return bytes(data if count == wanted else data[:count])

    def readall(self) -> bytes | Any:
        """Return all bytes up to the end, waiting for them; None if there are none to wait for."""
        self._check_open()
        parts = []
        with self._position_kept_on_errors():
            while data := self.read(max(_READ_ALL_BYTES, self._tail() - self._position)):
                parts.append(data)
        return data if not parts else b"".join(parts)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Return the bytes to the next line's end, at most ``size``, waiting for them."""
        self._check_open()
        with self._position_kept_on_errors():
            return super().readline(size)

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """Return the lines up to the end, or until they have ``hint`` bytes, waiting for them."""
        self._check_open()
        with self._position_kept_on_errors():
            return super().readlines(-1 if hint is None else hint)

    def close(self) -> None:
        """Free what the reader holds. A second call does nothing."""
        if not self.closed:
            try:
                if not self._guard.is_forked:
                    self._windows.close()
            finally:
                super().close()

    def __del__(self) -> None:
        """Close it, unless its constructor has raised: then it holds nothing."""
        if hasattr(self, "_windows"):
            super().__del__()

    @contextlib.contextmanager
    def _position_kept_on_errors(self) -> Iterator[None]:
        """Go back to the position of now if the calls inside raise: they hand out nothing."""
        start = self._position
        try:
            yield
        except BaseException:
            self._position = start
            raise

    def _tail(self) -> int:
        tail = self._segment.tail(self._view)
        return tail if self._end is None else min(tail, self._end)

    def _ready(self, size: int) -> int | None:
        """Return 1 if there is a byte, 0 at the end, None if there is none yet; wait for one.

        If fewer bytes are known than are asked for, the newest tail is looked up.
        """
        is_ready = self._wait(self._timeout)
        if is_ready and self._may_grow and self._tail() < self._position + size:
            self._view = self._segment.view()
        if not is_ready:
            if self._timeout:
                raise TimeoutError(
                    f"byte {self._position} of stream {self._segment.stream.name} was not written "
                    f"within {self._timeout:g} s."
                )
            return None
        return int(self._position < self._tail())

    @property
    def _may_grow(self) -> bool:
        return self._end is None and self._view.record.state is not StreamState.SEALED

    def _wait(self, timeout: float | None) -> bool:
        """Wait for a byte, or for the end; return False at the timeout."""
        self._view = self._segment.view(refresh=False)
        if self._position < self._tail() or self._end is not None:
            return True
        self._view = self._segment.view()
        runtime, tail = self._segment.stream.runtime, self._segment.stream.tail
        deadline = None if timeout is None else runtime.monotonic() + timeout
        while not (self._position < self._tail() or self._is_over(self._view)):
            if timeout == 0:
                return False
            if not wait_for_commits(runtime, [(tail, self._view.version)], deadline):
                return False
            self._view = self._segment.stream.view_after_wait(self._segment.life)
        return True

    def _is_over(self, view: StreamView) -> bool:
        """Return whether no byte follows; raise IllegalState behind the last one before a scale."""
        scaled = self._segment.scaled(view)
        if scaled is not None:
            raise scaled
        return view.record.state is StreamState.SEALED

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        self._guard.check()
