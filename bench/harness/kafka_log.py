"""The bytes that Kafka's log takes for events: record batches of version 2 with Zstandard.

A broker stores a producer's batches as they come, so their bytes are those of its segment files.
The indexes beside them are left out.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

_BATCH_HEADER = 61
_LEVEL = 3
"""Kafka's default of ``compression.zstd.level``."""


def log_bytes(records: Iterable[tuple[bytes, bytes]], batch_bytes: int) -> int:
    """Return the bytes of the log of records, each a key and a value.

    A batch has about ``batch_bytes`` before compression; its records have one timestamp.
    """
    codec = pa.Codec("zstd", compression_level=_LEVEL)
    total = 0
    batch, rows = bytearray(), 0
    for key, value in records:
        body = b"".join(
            (b"\0\0", _varint(rows), _varint(len(key)), key, _varint(len(value)), value, b"\0")
        )
        batch += _varint(len(body))
        batch += body
        rows += 1
        if len(batch) >= batch_bytes:
            total += _BATCH_HEADER + codec.compress(bytes(batch)).size
            batch, rows = bytearray(), 0
    if batch:
        total += _BATCH_HEADER + codec.compress(bytes(batch)).size
    return total


def _varint(number: int) -> bytes:
    """Return a non-negative number as Kafka's zigzag varint."""
    rest = 2 * number
    if rest < 0x80:
        return _SHORT[rest]
    parts = bytearray()
    while rest >= 0x80:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)


_SHORT = [bytes([number]) for number in range(0x80)]
