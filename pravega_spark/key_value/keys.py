"""Keys of a key-value table, and ranges of them: as users give them and as they are stored.

Stored keys compare bytewise, unsigned: in the order of bytes, of a text's code points, and of whole
numbers, whose 8 bytes are big-endian with the sign bit flipped.
"""

from __future__ import annotations

import enum
import json
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from pravega_spark.errors import InvalidInput
from pravega_spark.values.checks import is_whole, shown
from pravega_spark.values.limits import MAX_TABLE_KEY_BYTES

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
            raise InvalidInput(
                f"the key {primary} of table {self.table} does not fit 64 bits; give a number from "
                "-2**63 to 2**63 - 1."
            )
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


_LAST_LONG = b"\xff" * 8


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """The stored keys of [low, high); None means no bound."""

    low: TableKey | None = None
    high: TableKey | None = None

    def after(self, codec: KeyCodec, token: str) -> KeyBounds:
        """Return the rest of the range after the key of a continuation token."""
        low = successor(codec, _parse_token(token))
        if low is None:
            return KeyBounds(TableKey(b""), TableKey(b""))
        return KeyBounds(low if self.low is None else max(low, self.low), self.high)


def token_of(key: TableKey) -> str:
    """Return the text from which an iteration continues after a key."""
    return json.dumps([part.hex() for part in key])


def _parse_token(token: str) -> TableKey:
    """Return the key of a continuation token; raise InvalidInput for any other text."""
    try:
        primary, secondary = map(bytes.fromhex, json.loads(token))
    except (ValueError, TypeError):
        raise InvalidInput(
            f"{shown(token)} is not a continuation token of an iteration; give the token that it "
            "returned."
        ) from None
    return TableKey(primary, secondary)


def successor(codec: KeyCodec, key: TableKey) -> TableKey | None:
    """Return the least stored key above a key; None if there is none."""
    if codec.has_secondary:
        return TableKey(key.primary, key.secondary + b"\0")
    return _after_primary(codec, key.primary)


def _after_primary(codec: KeyCodec, primary: bytes) -> TableKey | None:
    """Return the least stored key whose primary key is above this one; None if there is none."""
    if codec.key_type is not KeyType.LONG:
        return TableKey(primary + b"\0")
    if primary == _LAST_LONG:
        return None
    return TableKey((int.from_bytes(primary, "big") + 1).to_bytes(8, "big"))


def _after_prefix(prefix: bytes) -> bytes | None:
    """Return the least bytes above all that begin with a prefix; None if there are none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


def bounds(
    codec: KeyCodec,
    *,
    prefix: Any = None,
    low: Any = None,
    high: Any = None,
    primary: Any = None,
    secondary_prefix: Any = None,
    secondary_low: Any = None,
    secondary_high: Any = None,
) -> KeyBounds:
    """Return the range of stored keys that a caller asks for; both of its ends belong to it."""
    if primary is not None:
        if not (prefix is low is high is None):
            raise InvalidInput(
                f"an iteration of table {codec.table} is over one primary key, or over a range or "
                "a prefix of them: give one of these."
            )
        first = codec.primary(primary)
        return _secondary(codec, first, secondary_prefix, secondary_low, secondary_high)
    if not (secondary_prefix is secondary_low is secondary_high is None):
        raise InvalidInput(
            f"a range of secondary keys of table {codec.table} needs its primary key: give primary."
        )
    if prefix is not None:
        if not (low is high is None):
            raise InvalidInput(
                f"an iteration of table {codec.table} has a prefix or a range, not both."
            )
        if codec.key_type is KeyType.LONG:
            raise InvalidInput(f"whole numbers, the keys of table {codec.table}, have no prefix.")
        stem = codec.bound(prefix)
        end = _after_prefix(stem)
        return KeyBounds(TableKey(stem), None if end is None else TableKey(end))
    least = None if low is None else TableKey(codec.bound(low))
    most = None if high is None else _after_primary(codec, codec.bound(high))
    return KeyBounds(least, most)


def _secondary(codec: KeyCodec, primary: bytes, prefix: Any, low: Any, high: Any) -> KeyBounds:
    rest = _after_primary(codec, primary)
    if prefix is not None:
        if not (low is high is None):
            raise InvalidInput(
                f"secondary keys of table {codec.table} have a prefix or a range, not both."
            )
        stem = codec.secondary_bound(prefix)
        end = _after_prefix(stem)
        return KeyBounds(TableKey(primary, stem), rest if end is None else TableKey(primary, end))
    least = b"" if low is None else codec.secondary_bound(low)
    most = rest if high is None else TableKey(primary, codec.secondary_bound(high) + b"\0")
    return KeyBounds(TableKey(primary, least), most)
