"""JSON of users on the command line: no number goes through a double on its way."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn

from pravega_spark.schemas.row_json import finite_or_text

_HALF_PAIR = re.compile("[\ud800-\udfff]")
_WHOLE = re.compile(r"-?[0-9]{1,400}")


class JsonNumber(str):
    """A number with a fraction, an exponent or very many digits, as its text says it."""

    __slots__ = ()

    def decimal(self) -> Decimal:
        """Return its exact value."""
        return Decimal(str(self))


class _Repeating(dict[str, Any]):
    """An object of JSON with two equal fields, which has the last one of them."""

    def __init__(self, pairs: Sequence[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = [name for name in self if names.count(name) > 1]


def parse_json(text: str, *, used: Container[object] | None = None) -> Any:
    """Return a document. Raises ValueError for none, and for an object with two equal fields.

    With ``used`` that is so for these fields of the document and what is in them: no others matter.
    """
    if text.startswith("\ufeff"):
        raise ValueError("only the start of an input may have a byte order mark (U+FEFF)")
    is_clear = True

    def fields_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal is_clear
        found = dict(pairs)
        if len(found) < len(pairs):
            is_clear = False
            return _Repeating(pairs)
        return found

    document = json.loads(
        text,
        parse_float=JsonNumber,
        parse_int=_whole,
        parse_constant=_no_constant,
        object_pairs_hook=fields_of,
    )
    if not is_clear:
        _check_unique(document, used)
    return document


def _check_unique(document: Any, used: Container[object] | None) -> None:
    """Raise ValueError for the first object with two equal fields; it says where that is."""
    ahead = [("", document)]
    while ahead:
        path, value = ahead.pop()
        inner: Iterator[tuple[str, Any]] = iter(())
        if isinstance(value, dict):
            wanted = used if not path else None
            if isinstance(value, _Repeating):
                for name in value.twice:
                    if wanted is None or name in wanted:
                        place = f"the object in {path}" if path else "it"
                        raise ValueError(f"{place} has the field {name!r} twice")
            inner = (
                (f"{path}.{name}" if path else name or repr(name), each)
                for name, each in value.items()
                if wanted is None or name in wanted
            )
        elif isinstance(value, list):
            inner = ((f"{path}[{number}]", each) for number, each in enumerate(value))
        ahead.extend(reversed(list(inner)))


def json_text(
    value: Any,
    default: Callable[[object], object] | None = None,
    separators: tuple[str, str] = (", ", ": "),
    indent: str | None = None,
) -> str:
    """Return a value as JSON, with numbers as they were parsed; NaN and infinities are texts.

    With ``indent``, such as "", each field is on a separate line, in ASCII.
    """
    if isinstance(value, JsonNumber):
        return str(value)
    is_document = indent is not None
    inner = None if indent is None else f"{indent}  "

    def text(each: Any) -> str:
        return json_text(each, default, separators, inner)

    if isinstance(value, Mapping):
        names = (_text(str(name), is_ascii=is_document) for name in value)
        fields = zip(names, map(text, value.values()), strict=True)
        parts = [f"{name}{separators[1]}{each}" for name, each in fields]
        return _between("{}", parts, separators[0], indent)
    if isinstance(value, (list, tuple)):
        return _between("[]", list(map(text, value)), separators[0], indent)
    if isinstance(value, str):
        return _text(value, is_ascii=is_document)
    return json.dumps(finite_or_text(value), default=default, ensure_ascii=is_document)


def _text(value: str, *, is_ascii: bool) -> str:
    """Return a text as JSON; half of a surrogate pair, which UTF-8 lacks, stays an escape."""
    return json.dumps(value, ensure_ascii=is_ascii or not is_utf8(value))


def _between(ends: str, parts: Sequence[str], separator: str, indent: str | None) -> str:
    if indent is None or not parts:
        return f"{ends[0]}{separator.join(parts)}{ends[1]}"
    lines = f",\n{indent}  ".join(parts)
    return f"{ends[0]}\n{indent}  {lines}\n{indent}{ends[1]}"


def is_utf8(text: str) -> bool:
    """Return False for a text with half of a surrogate pair."""
    return _HALF_PAIR.search(text) is None


def rounded(value: Any) -> Any:
    """Return a parsed value with the numbers of Python's parser, as version 0.1.0 had them."""
    if isinstance(value, JsonNumber):
        return json.loads(value)
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def _whole(text: str) -> int | JsonNumber:
    return int(text) if _WHOLE.fullmatch(text) and text != "-0" else JsonNumber(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
