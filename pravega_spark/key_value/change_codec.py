"""A change of one key as the payload of an event of the table's change log.

One byte for the operation, then each part of the key with its length before it, then the value,
which is the rest. A length is an unsigned LEB128 number: 7 bits a byte, the low ones first.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pravega_spark.errors import CorruptChunk
from pravega_spark.key_value.table_key import TableKey

PUT: Final = 1
REMOVE: Final = 2
_PUT, _REMOVE = bytes((PUT,)), bytes((REMOVE,))
_SHORT = 0x80
"""Lengths below it take one byte."""
_LENGTHS = [bytes((length,)) for length in range(_SHORT)]
SHORT_PUTS: Final = tuple(bytes((PUT, length)) for length in range(_SHORT))
"""How the put of a short key begins, by the key's length; then come the key, NO_SECONDARY, the
value. For the hot path, which has no call to spare."""
NO_SECONDARY: Final = b"\x00"


class Change(NamedTuple):
    """A change at its place in the change log; the folded table keeps the newest one of each key.

    Of two changes of a key the larger one is newer: a segment's successors have higher ids.
    """

    segment_id: int
    offset: int
    timestamp_us: int
    """The time of its commit in a table with a ttl, otherwise the clock of its writer."""
    value: bytes | None
    """None: the key was removed."""


def encode_put(key: TableKey, value: bytes) -> bytes:
    """Return the payload of a change that sets the value of a key."""
    return b"".join((_PUT, *_parts(key), value))


def encode_remove(key: TableKey) -> bytes:
    """Return the payload of a change that removes a key."""
    return b"".join((_REMOVE, *_parts(key)))


def encode_change(key: TableKey, value: bytes | None) -> bytes:
    """Return the payload of a change; a value of None removes the key."""
    return encode_remove(key) if value is None else encode_put(key, value)


def _parts(key: TableKey) -> tuple[bytes, bytes, bytes, bytes]:
    primary, secondary = key
    return length_code(len(primary)), primary, length_code(len(secondary)), secondary


def length_code(length: int) -> bytes:
    """Return a length as it stands before a part of a key."""
    if length < _SHORT:
        return _LENGTHS[length]
    return bytes((length & 0x7F | _SHORT,)) + length_code(length >> 7)


def decode_change(payload: bytes) -> tuple[TableKey, bytes | None]:
    """Return the key of a change, and its value: None if the key is removed.

    Raises CorruptChunk for anything that the codec did not write.
    """
    try:
        operation, length = payload[0], payload[1]
        if length < _SHORT and payload[2 + length] == 0:  # a short key without a secondary part
            end = 3 + length
            key = TableKey(payload[2 : 2 + length])
        else:
            primary, at = _part(payload, 1)
            secondary, end = _part(payload, at)
            key = TableKey(primary, secondary)
    except IndexError:
        operation, end, key = 0, 0, TableKey(b"")
    if operation == PUT:
        return key, payload[end:]
    if operation != REMOVE or end != len(payload):
        raise CorruptChunk(
            f"an event of {len(payload)} bytes that begins with {payload[:8].hex()} is no change "
            "of a key-value table. Restore the table's change log from a copy."
        )
    return key, None


def _part(payload: bytes, at: int) -> tuple[bytes, int]:
    length = shift = 0
    while True:
        byte = payload[at]
        length |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < _SHORT:
            break
    end = at + length
    if end > len(payload):
        raise IndexError
    return payload[at:end], end
