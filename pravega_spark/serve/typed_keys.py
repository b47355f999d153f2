r"""Keys as texts that people read, and type back: each text stands for one key alone.

A key is shown as its text. One with characters that nobody can type, or that begins with a
quotation mark, is a JSON string, whose escapes name them: ``"a\u0000"``. Bytes that are no text
are ``0x`` and their digits, and so are bytes whose text begins so.
"""

from __future__ import annotations

import json
from typing import Final

from pravega_spark.errors import InvalidInput
from pravega_spark.key_value.keys import Key, KeyCodec, KeyType
from pravega_spark.primitives.printable import is_printable, printable_json
from pravega_spark.serve.event_rows import text_of
from pravega_spark.values.checks import shown

_QUOTE: Final = '"'
_DIGITS: Final = "0x"


def typed_key(key: Key) -> str:
    """Return the text of a primary key."""
    return typed_bytes(key) if isinstance(key, bytes) else typed_text(str(key))


def typed_text(text: str) -> str:
    """Return the text that stands for a text."""
    if is_printable(text) and not text.startswith(_QUOTE):
        return text
    return printable_json(json.dumps(text, ensure_ascii=False))


def typed_bytes(data: bytes) -> str:
    """Return the text that stands for bytes."""
    text = text_of(data, is_cut=False)
    if text is None or text.startswith(_DIGITS):
        return f"{_DIGITS}{data.hex()}"
    return typed_text(text)


def read_key(codec: KeyCodec, text: str) -> Key:
    """Return the key, or the bound of keys, that a text stands for; raise InvalidInput."""
    if codec.key_type is KeyType.STRING:
        return read_text(text)
    if codec.key_type is KeyType.BYTES:
        return read_bytes(text)
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(
            f"the keys of table {codec.table} are whole numbers, got {shown(text)}."
        ) from None


def read_text(text: str) -> str:
    """Return the text that a text stands for; raise InvalidInput."""
    if not text.startswith(_QUOTE):
        return text
    try:
        found = json.loads(text)
    except ValueError:
        raise InvalidInput(
            f"{shown(text)} begins with a quotation mark, and is no JSON string: write a text that "
            f"begins so as {json.dumps(text, ensure_ascii=False)}."
        ) from None
    assert isinstance(found, str), "JSON that begins with a quotation mark is a string"
    return found


def read_bytes(text: str) -> bytes:
    """Return the bytes that a text stands for; raise InvalidInput."""
    if not text.startswith(_DIGITS):
        found = read_text(text)
        try:
            return found.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{shown(text)} has lone surrogates, which no key has.") from None
    try:
        return bytes.fromhex(text.removeprefix(_DIGITS))
    except ValueError:
        raise InvalidInput(f"{shown(text)} is not 0x and hexadecimal bytes.") from None
