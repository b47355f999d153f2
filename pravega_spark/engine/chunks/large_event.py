"""Large events in storage: the payload is a separate object, and a chunk names it.

It holds one window of the payload, and on remote storage the next ones, which are fetched while the
present one is consumed.

The reference of a large event: what its chunk holds instead of the payload. The row of a large
event is JSON, so that every Delta reader can find the object, and check it::

    {"large_event":"data/v…/….event","bytes":9000000,"digest":"<xxh3, 128 bits>",
     "block_bytes":4194304,"blocks":["<xxh3, 64 bits>",…]}

The path is relative to the table. Each block of the object has a digest, so that a read
in the middle is checked, too. The row is a reference because its chunk has the tag ``attachment``
in the log, ``<bytes>-<digest>``: no user's event can be mistaken for one.
"""

from __future__ import annotations

import io
import json
import operator
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import xxhash

from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.runtime.json_codec import DECODE_ERRORS, to_json
from pravega_spark.engine.runtime.system import Runtime
from pravega_spark.engine.store.base import Store
from pravega_spark.engine.store.file_objects import PositionedFile
from pravega_spark.errors import CorruptChunk
from pravega_spark.values.limits import LARGE_EVENT_READ_AHEAD, LARGE_EVENT_WINDOW_BYTES

_ATTACHMENT: Final = re.compile(r"[0-9]{1,19}-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class LargeEventReference:
    """Where the payload of a large event is, and what its bytes are."""

    path: str
    """Of the object, relative to the table."""
    size_bytes: int
    digest: str
    block_bytes: int
    blocks: tuple[str, ...]

    @property
    def attachment(self) -> str:
        """The tag of its chunk in the log."""
        return f"{self.size_bytes}-{self.digest}"

    def encode(self) -> bytes:
        """Return the row of the chunk."""
        record = {
            "large_event": self.path,
            "bytes": self.size_bytes,
            "digest": self.digest,
            "block_bytes": self.block_bytes,
            "blocks": self.blocks,
        }
        return to_json(record).encode()


def checked_attachment(text: str) -> str:
    """Return the tag of a chunk, or "" for none; raise ValueError for any other text."""
    if text and _ATTACHMENT.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not the size and digest of an object")
    return text


def decode_reference(row: bytes, ref: ChunkRef, where: str) -> LargeEventReference:
    """Return the reference in a chunk's row; raise CorruptChunk if the log names another one."""
    try:
        record = json.loads(row)
        blocks = tuple(str(block) for block in record["blocks"])
        sizes = int(record["bytes"]), int(record["block_bytes"])
        found = LargeEventReference(
            str(record["large_event"]), sizes[0], str(record["digest"]), sizes[1], blocks
        )
        if found.attachment != ref.attachment:
            raise ValueError(f"it names {found.attachment}, the log {ref.attachment}")
        if (found.path, found.size_bytes) != attached_object(ref.path):
            raise ValueError(f"it names {found.path}, which is not the object of {ref.path}")
        if found.block_bytes < 1 or len(blocks) != -(-found.size_bytes // found.block_bytes):
            raise ValueError(f"it has {len(blocks)} blocks")
    except DECODE_ERRORS as error:
        raise CorruptChunk(
            f"{where}/{ref.path}: {ref} is not a reference of a large event: {error}. Restore the "
            "file from a copy.",
            path=f"{where}/{ref.path}",
        ) from error
    return found


@dataclass(slots=True)
class PayloadDigests:
    """Computes the digests of a payload while its bytes pass."""

    block_bytes: int
    size_bytes: int = 0
    blocks: list[str] = field(default_factory=list)
    _whole: Any = field(default_factory=xxhash.xxh3_128)
    _block: Any = field(default_factory=xxhash.xxh3_64)

    def update(self, data: memoryview) -> None:
        """Add the next bytes."""
        self._whole.update(data)
        while data:
            part = data[: self.block_bytes - self.size_bytes % self.block_bytes]
            self._block.update(part)
            self.size_bytes += len(part)
            data = data[len(part) :]
            if self.size_bytes % self.block_bytes == 0:
                self._end_block()

    def _end_block(self) -> None:
        self.blocks.append(self._block.hexdigest())
        self._block = xxhash.xxh3_64()

    def reference(self, path: str) -> LargeEventReference:
        """Return the reference of the bytes so far, which are all."""
        if self.size_bytes % self.block_bytes:
            self._end_block()
        digest = self._whole.hexdigest()
        return LargeEventReference(
            path, self.size_bytes, digest, self.block_bytes, tuple(self.blocks)
        )


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
