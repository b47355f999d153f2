"""The payload of a large event as a file: random reads, each block checked before it is returned.

It holds one window of the payload, and on remote storage the next ones, which are fetched while the
present one is consumed.
"""

from __future__ import annotations

import io
import operator
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import pyarrow as pa
import xxhash

from pravega_spark.engine.chunks.large_event_reference import LargeEventReference
from pravega_spark.engine.runtime import Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.engine.store.positioned_file import PositionedFile
from pravega_spark.errors import CorruptChunk
from pravega_spark.limits import LARGE_EVENT_READ_AHEAD, LARGE_EVENT_WINDOW_BYTES


class LargeEventFile(PositionedFile):
    """A readable, seekable file of a payload; for one thread at a time.

    A read returns all the bytes asked for, up to the end. Raises CorruptChunk for bytes that were
    not written so, and what ``missing`` returns if the object does not exist.
    """

    def __init__(
        self,
        store: Store,
        table_path: str,
        reference: LargeEventReference,
        runtime: Runtime,
        missing: Callable[[FileNotFoundError], BaseException],
    ) -> None:
        """Begin at the first byte; nothing is read yet."""
        super().__init__()
        self._store = store
        self._key = f"{table_path}/{reference.path}"
        self._reference = reference
        self._runtime = runtime
        self._missing = missing
        block = reference.block_bytes
        self._window_bytes = block * max(1, LARGE_EVENT_WINDOW_BYTES // block)
        self._most_ahead = 0 if store.is_local else LARGE_EVENT_READ_AHEAD
        self._index, self._window = -1, memoryview(b"")
        self._ahead: deque[tuple[int, Future[memoryview]]] = deque()
        """The windows behind the present one that are being fetched, in order."""

    def _end(self) -> int:
        return self._reference.size_bytes

    def read(self, size: int | None = -1) -> bytes:
        """Return the next ``size`` bytes, fewer only at the end; all of the rest for -1."""
        _, end = self._span(size)
        found = io.BytesIO()  # whose value is not copied at the end
        while self._position < end:
            self._position += found.write(self._part(end))
        return found.getvalue()

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer, all of it unless the payload ends; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        start, end = self._span(len(view))
        while self._position < end:
            part, at = self._part(end), self._position - start
            view[at : at + len(part)] = part
            self._position += len(part)
        return max(0, end - start)

    def parts(self) -> Iterator[memoryview]:
        """Yield the bytes from the position on as windows, which are not copied."""
        _, end = self._span(None)
        while self._position < end:
            part = self._part(end)
            self._position += len(part)
            yield part

    def buffer(self) -> pa.Buffer:
        """Return the whole payload, which takes its size in memory, and a window more."""
        data = pa.allocate_buffer(self._end())
        self.seek(0)
        self.readinto(memoryview(data))
        return data

    def _span(self, size: int | None) -> tuple[int, int]:
        """Return where a read starts and ends."""
        if self.closed:
            raise ValueError("the file of a large event was closed")
        size = -1 if size is None else operator.index(size)
        start, end = self._position, self._end()
        return start, end if size < 0 else min(end, start + size)

    def _part(self, end: int) -> memoryview:
        """Return the bytes from the position on, as far as they are in one window."""
        index, at = divmod(self._position, self._window_bytes)
        if index != self._index:
            self._load(index)
        return self._window[at : at + end - self._position]

    def _load(self, index: int) -> None:
        """Have a window, and fetch the next ones in the background if reads are in sequence."""
        is_next = index == self._index + 1
        self._index, self._window = -1, memoryview(b"")
        if self._ahead and self._ahead[0][0] == index:
            self._window = self._ahead.popleft()[1].result()
        else:
            self._forget_ahead()
            self._window = self._fetch(index)
        self._index = index
        count = -(-self._end() // self._window_bytes)
        while is_next and len(self._ahead) < min(self._most_ahead, count - index - 1):
            following = index + 1 + len(self._ahead)
            fetch = partial(self._fetch, following)
            self._ahead.append((following, self._runtime.start(fetch)))

    def _forget_ahead(self) -> None:
        wait([window for _, window in self._ahead])
        self._ahead.clear()

    def _fetch(self, index: int) -> memoryview:
        """Return a window of the object, checked; the last one has nothing behind it."""
        start = index * self._window_bytes
        end = min(self._end(), start + self._window_bytes)
        try:
            data = self._store.get_range(self._key, start, end + (end == self._end()))
        except FileNotFoundError as error:
            raise self._missing(error) from error
        if len(data) != end - start:
            found = f"more than {end}" if len(data) > end - start else f"{start + len(data)}"
            if start and not data:  # it ends before the window, nobody knows where
                found = f"at most {start}"
            raise self._corrupt(f"has {found} bytes; the log records {self._end()}")
        block, view = self._reference.block_bytes, memoryview(data)
        for at in range(0, len(data), block):
            digest = xxhash.xxh3_64_hexdigest(view[at : at + block])
            if digest != self._reference.blocks[(start + at) // block]:
                low, high = start + at, start + min(at + block, len(data))
                raise self._corrupt(f"has other bytes in [{low}, {high}) than were written")
        return view

    def _corrupt(self, text: str) -> CorruptChunk:
        where = f"{self._store.url.rstrip('/')}/{self._key}"
        return CorruptChunk(
            f"{where}, the object of a large event, {text}. Restore the object from a copy.",
            path=where,
        )

    def close(self) -> None:
        """End the reads."""
        if not self.closed:
            self._forget_ahead()
            self._window = memoryview(b"")
        super().close()
