"""Keys of a key-value table: what users give, and the bytes that are stored and compared.

Stored keys compare bytewise, unsigned: in the order of bytes, of a text's code points, and of whole
numbers, whose 8 bytes are big-endian with the sign bit flipped.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from pravega_spark.arguments import is_whole, shown
from pravega_spark.errors import InvalidInput
from pravega_spark.limits import MAX_TABLE_KEY_BYTES

Key = bytes | str | int
"""A primary key as users give it, by the key type of the table. Keys of bytes may be given as str,
which stands for its UTF-8; what is returned is bytes."""

_LONG = struct.Struct(">Q")
_SIGN = 1 << 63


class KeyType(enum.Enum):
    """The type of a table's primary keys."""

    BYTES = "bytes"
    STRING = "string"
    LONG = "long"


class TableKey(NamedTuple):
    """A key as it is stored: its primary part and its secondary part, empty in most tables."""

    primary: bytes
    secondary: bytes = b""


class KeyCodec:
    """Encodes and checks the keys of one table."""

    __slots__ = ("_primary_length", "_secondary_length", "key_type", "table")

    def __init__(
        self,
        table: str,
        key_type: KeyType,
        primary_length: int | None = None,
        secondary_length: int = 0,
    ) -> None:
        """Take the table's name, for errors, and the rules of its keys."""
        self.table = table
        self.key_type = key_type
        self._primary_length = primary_length
        self._secondary_length = secondary_length

    @property
    def has_secondary(self) -> bool:
        """Whether keys have a secondary part."""
        return self._secondary_length > 0

    def encode(self, primary: object, secondary: object = b"") -> TableKey:
        """Return a key as it is stored; raise InvalidInput for one that the table cannot hold."""
        first = self.primary(primary)
        second = self._bytes("a secondary key", secondary)
        if len(second) != self._secondary_length:
            raise InvalidInput(
                f"a secondary key of table {self.table} must have {self._secondary_length} bytes, "
                f"got {len(second)}."
            )
        if len(first) + len(second) > MAX_TABLE_KEY_BYTES:
            raise InvalidInput(
                f"a key of table {self.table} has {len(first) + len(second)} bytes; at most "
                f"{MAX_TABLE_KEY_BYTES} are allowed, the secondary part included."
            )
        return TableKey(first, second)

    def primary(self, primary: object) -> bytes:
        """Return a primary key as it is stored; raise InvalidInput for one that is not allowed."""
        data = self.bound(primary)
        if not data:
            raise InvalidInput(f"a primary key of table {self.table} must not be empty.")
        if self._primary_length is not None and len(data) != self._primary_length:
            raise InvalidInput(
                f"a primary key of table {self.table} must have {self._primary_length} bytes, got "
                f"{len(data)}: {shown(primary)}."
            )
        if len(data) > MAX_TABLE_KEY_BYTES:
            raise InvalidInput(
                f"a key of table {self.table} has {len(data)} bytes; at most {MAX_TABLE_KEY_BYTES} "
                "are allowed."
            )
        return data

    def bound(self, primary: object) -> bytes:
        """Return the stored form of a bound of a range, which need not be a whole key."""
        if self.key_type is KeyType.LONG:
            return self._long(primary)
        if self.key_type is KeyType.BYTES:
            return self._bytes("a primary key", primary)
        if not isinstance(primary, str):
            raise self._wrong("a primary key", "a str", primary)
        return self._utf8(primary)

    def secondary_bound(self, secondary: object) -> bytes:
        """Return a bound of a range of secondary keys, or a prefix of them."""
        return self._bytes("a secondary key", secondary)

    def decode(self, primary: bytes) -> Key:
        """Return a stored primary key as users give it."""
        if self.key_type is KeyType.LONG:
            return int(_LONG.unpack(primary)[0]) - _SIGN
        return primary.decode() if self.key_type is KeyType.STRING else primary

    def routing_key(self, primary: bytes) -> str:
        """Return the routing key of a stored primary key: all its changes share a segment."""
        if self.key_type is KeyType.BYTES:
            return primary.hex()
        return str(self.decode(primary))

    def _long(self, primary: object) -> bytes:
        if not is_whole(primary):
            raise self._wrong("a primary key", "a whole number", primary)
        assert isinstance(primary, int)
        if not -_SIGN <= primary < _SIGN:
            raise InvalidInput(f"the key {primary} of table {self.table} does not fit 64 bits.")
        return _LONG.pack(primary + _SIGN)

    def _bytes(self, what: str, value: object) -> bytes:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, str):
            return self._utf8(value)
        raise self._wrong(what, "bytes or str", value)

    def _utf8(self, value: str) -> bytes:
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                f"the key {shown(value)} of table {self.table} has no UTF-8 form: replace the "
                "lone surrogates in it."
            ) from None

    def _wrong(self, what: str, wanted: str, value: object) -> InvalidInput:
        return InvalidInput(
            f"{what} of table {self.table} must be {wanted}, not {type(value).__name__}: "
            f"{shown(value)}."
        )
