"""Bytes as text on the command line, and back: UTF-8, JSON, hexadecimal or base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from pravega_spark.cli.exact_json import json_text, parse_json
from pravega_spark.errors import InvalidInput
from pravega_spark.values.checks import shown

TEXT, JSON_FORM, HEX, BASE64 = "text", "json", "hex", "base64"
FORMS = (TEXT, JSON_FORM, HEX, BASE64)


def to_bytes(what: str, form: str, value: object) -> bytes:
    """Return the bytes of a value of a JSON record, or of an argument, in a form.

    A text in the form ``json`` is a JSON document. Raises InvalidInput.
    """
    if form == JSON_FORM:
        return json_text(value, separators=(",", ":")).encode()
    if type(value) is not str:  # a number is none
        raise InvalidInput(f"{what} must be a text in the form {form}, got {shown(value)}.")
    try:
        return _DECODERS[form](value)
    except (ValueError, binascii.Error) as error:
        raise InvalidInput(f"{what} {shown(value)} is not in the form {form}: {error}.") from None


def argument_bytes(what: str, form: str, text: str) -> bytes:
    """Return the bytes of an argument; in the form ``json`` it must be a JSON document."""
    if form != JSON_FORM:
        return to_bytes(what, form, text)
    try:
        return to_bytes(what, form, parse_json(text))
    except ValueError as error:
        raise InvalidInput(f"{what} {shown(text)} is not valid JSON: {error}.") from None


def of_bytes(what: str, form: str, data: bytes) -> Any:
    """Return bytes as a value of a JSON record. Raises InvalidInput if they are not in the form."""
    try:
        return _ENCODERS[form](data)
    except ValueError as error:
        kind = "JSON" if form == JSON_FORM else "UTF-8"
        raise InvalidInput(
            f"{what} is not valid {kind}: {shown(data)} ({error}). Choose another form, such as "
            "text or hex."
        ) from None


_DECODERS: dict[str, Callable[[str], bytes]] = {
    TEXT: str.encode,
    HEX: bytes.fromhex,
    BASE64: lambda text: base64.b64decode(text, validate=True),
}
_ENCODERS: dict[str, Callable[[bytes], Any]] = {
    TEXT: bytes.decode,
    JSON_FORM: lambda data: parse_json(data.decode()),
    HEX: bytes.hex,
    BASE64: lambda data: base64.b64encode(data).decode(),
}
