"""Ranges of keys: what users give as bounds of stored keys, and where an iteration continues."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pravega_spark.arguments import shown
from pravega_spark.errors import InvalidInput
from pravega_spark.key_value.table_key import KeyCodec, KeyType, TableKey

_LAST_LONG = b"\xff" * 8


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """The stored keys of [low, high); None is no bound."""

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
            f"{shown(token)} is no continuation of an iteration; give the token that it returned."
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
