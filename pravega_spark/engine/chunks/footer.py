"""The footer of a chunk's file: its digest in the log, and what it records of the file.

A digest is a text ``<length>-<xxh3>``: the number of bytes, and their XXH3 with 64 bits in 16
hexadecimal digits. That of a footer is of its bytes with its length and the magic number.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import xxhash

if TYPE_CHECKING:
    import pyarrow.parquet as pq

SUMS_KEY: Final = b"pravega.event_bytes"
"""The event bytes before each row group, in the footer of files with several row groups."""
KEY_NAME: Final = b"pravega.key"
"""The name of the master key, in the footer of files whose events are encrypted."""
_DIGEST: Final = re.compile(r"[1-9][0-9]{0,9}-[0-9a-f]{16}")
_END_BYTES: Final = 8
"""The footer's length and the magic number."""
_SIGNATURE_BYTES: Final = 28
"""Nonce and tag after the plain metadata of a file with encrypted columns."""


def digest_of(end: bytes | pa.Buffer) -> str:
    """Return the digest of the footer that ``end``, the last bytes of a file, holds completely."""
    tail = memoryview(end)
    length = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
    assert length <= len(tail), f"a footer of {length} bytes in the last {len(tail)} of a file"
    return f"{length}-{xxhash.xxh3_64_hexdigest(tail[-length:])}"


def digest_of_parts(parts: Iterable[bytes | memoryview]) -> str:
    """Return the digest of bytes that are given in parts."""
    found, size = xxhash.xxh3_64(), 0
    for part in parts:
        found.update(part)
        size += len(part)
    return f"{size}-{found.hexdigest()}"


def length_of(digest: str) -> int:
    """Return the number of bytes that a digest is of."""
    return int(digest.partition("-")[0])


def checked_digest(text: str) -> str:
    """Return a digest from the log, or "" for none; raise ValueError for any other text."""
    if text and _DIGEST.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not the digest of a footer")
    return text


def has_digest(part: pa.Buffer | memoryview, digest: str) -> bool:
    """Return True if these bytes have the digest."""
    data = memoryview(part)
    return f"{len(data)}-{xxhash.xxh3_64_hexdigest(data)}" == digest


def encode_sums(sums: Sequence[int]) -> dict[bytes, bytes]:
    """Return the metadata of a footer."""
    return {SUMS_KEY: ",".join(map(str, sums)).encode()}


def decode_sums(metadata: Mapping[bytes, bytes] | None) -> list[int] | None:
    """Return the event bytes before each row group; None if the footer does not record them."""
    found = (metadata or {}).get(SUMS_KEY)
    return None if found is None else [int(number) for number in found.split(b",")]


def key_of(metadata: Mapping[bytes, bytes] | None) -> str:
    """Return the name of the master key of a file's events; empty if they are not encrypted."""
    return (metadata or {}).get(KEY_NAME, b"").decode(errors="replace")


def is_signed(metadata: pq.FileMetaData, end: pa.Buffer | memoryview | bytes) -> bool:
    """Return whether a file has encrypted columns; ``end`` holds its last bytes.

    A signature then follows the metadata. pyarrow does not tell, and ends the process when it is
    asked for the metadata of such a column without a key.
    """
    length = int.from_bytes(memoryview(end)[-_END_BYTES:-4], "little")
    return bool(length - metadata.serialized_size == _SIGNATURE_BYTES)


class FooterSink(io.RawIOBase):
    """Passes writes on, and keeps those of the footer."""

    def __init__(self, file: pa.NativeFile) -> None:
        super().__init__()
        self._file = file
        self._keeps = False
        self.kept = bytearray()
        self.size = 0

    def keep(self) -> None:
        """Keep what is written from now on."""
        self._keeps = True

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write all bytes."""
        self._file.write(data)
        if self._keeps:
            self.kept += data
        written = memoryview(data).nbytes
        self.size += written
        return written
