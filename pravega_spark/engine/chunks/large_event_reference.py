"""The reference of a large event: what its chunk holds instead of the payload.

The row of a large event is JSON, so that every Delta reader can find the object, and check it::

    {"large_event":"data/v…/….event","bytes":9000000,"digest":"<xxh3, 128 bits>",
     "block_bytes":4194304,"blocks":["<xxh3, 64 bits>",…]}

The path is relative to the table. Each block of the object has a digest of its own, so that a read
in the middle is checked, too. What makes the row a reference is the tag ``attachment`` of its
chunk in the log, ``<bytes>-<digest>``: no user's event can be mistaken for one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

import xxhash

from pravega_spark.engine.attached_objects import attached_object
from pravega_spark.engine.chunks.chunk import ChunkRef
from pravega_spark.engine.json_codec import DECODE_ERRORS, to_json
from pravega_spark.errors import CorruptChunk

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
        raise ValueError(f"{text!r} is no size and digest of an object")
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
            f"{where}/{ref.path}: {ref} is no reference of a large event: {error}. Restore the "
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
