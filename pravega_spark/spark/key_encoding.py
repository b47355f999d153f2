"""Binary routing keys: text as it is, and a lossless text for keys that are not UTF-8.

A routing key is a text. ``percent`` writes each byte that is not part of valid UTF-8 as ``%FF``,
and ``%`` itself as ``%25``, so different keys have different texts, and a key of valid UTF-8
without ``%`` is its own text. Reading with the same encoding returns the bytes.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

import pyarrow as pa

_FOREIGN = re.compile("[%\udc80-\udcff]")


def to_text(key: bytes) -> str:
    """Return the text of a key in the encoding ``percent``."""
    return _FOREIGN.sub(_escaped, key.decode("utf-8", "surrogateescape"))


def to_bytes(text: str) -> bytes:
    """Return the key of a text in the encoding ``percent``; ``%`` without two digits stays."""
    return unquote_to_bytes(text)


def encode_keys(keys: pa.Array) -> pa.Array:
    """Return the texts of binary keys in the encoding ``percent``; null stays null."""
    try:
        texts = keys.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    else:
        if not _has_percent(texts):
            return texts
    distinct = keys.cast(pa.binary()).dictionary_encode()
    texts = pa.array([to_text(key) for key in distinct.dictionary.to_pylist()], pa.string())
    return texts.take(distinct.indices)


def decode_keys(texts: pa.Array) -> pa.Array:
    """Return the binary keys of texts in the encoding ``percent``; null stays null."""
    if not _has_percent(texts):
        return texts.cast(pa.binary())
    distinct = texts.dictionary_encode()
    keys = pa.array([to_bytes(text) for text in distinct.dictionary.to_pylist()], pa.binary())
    return keys.take(distinct.indices)


def first_foreign(keys: pa.Array) -> int | None:
    """Return the index of the first key that is not UTF-8, or None."""
    for index, key in enumerate(keys.to_pylist()):
        try:
            if key is not None:
                key.decode()
        except UnicodeDecodeError:
            return index
    return None


def _has_percent(texts: pa.Array) -> bool:
    import pyarrow.compute as pc  # takes as long to import as the rest of Arrow

    return bool(pc.any(pc.match_substring(texts, "%")).as_py())


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"%{code - 0xDC00 if code >= 0xDC80 else code:02X}"
