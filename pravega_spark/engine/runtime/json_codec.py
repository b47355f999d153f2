"""The encoding of every persisted JSON text, and checks for texts that are decoded.

What a record's text looks like is said beside its fields, in an ``encode`` and a decoder of a few
lines each: the order of the cells or the short names, what older versions wrote, and what damage
means there differ in each, and a declared codec for them would be longer than they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import xxhash

_Kind = TypeVar("_Kind")

to_json: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
"""Return a value as compact JSON."""

quoted: Callable[[str], str] = json.encoder.encode_basestring
"""Return a text as JSON, as ``to_json`` does."""

DECODE_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
"""What decoding may raise for bytes that this package did not write."""


def to_digested_line(record: Any) -> bytes:
    """Return a record as a line of JSON, with its digest on the next line."""
    line = to_json(record).encode()
    return b"%b\n%b\n" % (line, xxhash.xxh3_128_hexdigest(line).encode())


def digested_record(data: bytes) -> Any:
    """Return the record that :func:`to_digested_line` wrote; None if it is torn or was changed."""
    line, _, digest = data.partition(b"\n")
    if xxhash.xxh3_128_hexdigest(line).encode() != digest.strip():
        return None
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


_LINES_PAGE = 512


def decoded_lines(lines: Sequence[bytes]) -> Iterator[Any]:
    """Yield the value of each line, which is JSON; raise one of DECODE_ERRORS if one is not."""
    for first in range(0, len(lines), _LINES_PAGE):  # each call costs as much as three lines
        page = lines[first : first + _LINES_PAGE]
        values = json.loads(f"[{b','.join(page).decode()}]")
        if len(values) != len(page):
            raise ValueError("a line is not one value")
        yield from values


_DETAIL_LENGTH = 100
"""Longer texts of an exception are left out: they may quote the damaged bytes."""


def decode_error_text(error: Exception) -> str:
    """Return a short description of a decoding error, without the damaged bytes."""
    detail = str(error)
    if not detail or not detail.isprintable() or len(detail) > _DETAIL_LENGTH:
        return type(error).__name__
    return f"{type(error).__name__}: {detail}"


def typed(value: Any, kind: type[_Kind]) -> _Kind:
    """Return the value if it has this type; raise TypeError if not."""
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
