"""Rows of files as rows of a typed stream: texts become the values that the columns hold."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

import click
import pyarrow as pa
from pyarrow import types

from pravega_spark.arguments import is_whole, shown
from pravega_spark.cli.exact_json import JsonNumber, parse_json
from pravega_spark.cli.input_records import LINES, check_format, field_of, key_of, read_rows
from pravega_spark.errors import InvalidInput
from pravega_spark.stream_schema import StreamSchema

TypedRecord = tuple[str | None, dict[str, Any]]
_MOST_DIGITS: Final = 40
_FLOATS_OF_JSON: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_PAST_MICROSECONDS: Final = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
_FLAGS: Final = {"true": True, "false": False}


def read_typed(
    file: str,
    form: str | None,
    key_field: str | None,
    event_field: str | None,
    schema: StreamSchema,
    csv_null: str | None = None,
) -> Iterator[TypedRecord]:
    """Yield the rows of one file, JSON lines unless it is said otherwise, with their routing keys.

    Raises InvalidInput for a row that is malformed or has a value that its column cannot hold; it
    names file, number, column and value. The writer checks the rest.
    """
    if form == LINES:
        raise click.UsageError(
            f"a typed stream takes json, csv, parquet or arrow, not lines: {file}."
        )
    if event_field is not None:
        raise click.UsageError("--event is for raw streams: a typed stream takes whole rows.")
    kinds = {field.name: field.type for field in schema.fields}
    is_csv = check_format(file, form, None) == "csv"
    for where, row in read_rows(file, form, default="json", csv_null=csv_null):
        key = None if key_field is None else key_of(where, field_of(where, row, key_field))
        empty = {n for n in row if is_csv and row[n] == "" and not _is_text(kinds.get(n))}
        yield (
            key,
            {
                n: None if n in empty else _value(where, n, kinds.get(n), row[n], is_csv)
                for n in row
            },
        )


def row_bytes(row: Mapping[str, Any]) -> bytes:
    """Return a row as bytes that equal rows share, for a digest."""
    return json.dumps(row, default=repr, ensure_ascii=True).encode()


def _value(where: str, name: str, kind: pa.DataType | None, value: Any, is_csv: bool) -> Any:
    """Return a value as its column takes it; an unknown column is left to the writer's check."""
    if kind is None or value is None:
        return value
    try:
        return _converted(kind, value, is_csv)
    except (ValueError, TypeError, LookupError, ArithmeticError):
        raise InvalidInput(
            f"{where}: column {name} is {kind}, which cannot hold {shown(value)}; correct it."
        ) from None


def _is_text(kind: pa.DataType | None) -> bool:
    return kind is None or types.is_string(kind)


def _converted(kind: pa.DataType, value: Any, is_csv: bool, is_key: bool = False) -> Any:
    """Return a value as a type holds it; CSV and keys of JSON's objects have texts alone."""
    if types.is_list(kind):
        inner = kind.value_type
        return [None if v is None else _converted(inner, v, is_csv) for v in _nested(value, list)]
    if types.is_map(kind):
        entries = _nested(value, dict)
        pairs = entries.items() if isinstance(entries, dict) else entries
        return {
            _converted(kind.key_type, key, is_csv, True): (
                None if v is None else _converted(kind.item_type, v, is_csv)
            )
            for key, v in pairs
        }
    if types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return {
            key: v if v is None or key not in fields else _converted(fields[key], v, is_csv)
            for key, v in _nested(value, dict).items()
        }
    if isinstance(value, JsonNumber):
        return _of_number(kind, value.decimal())
    if isinstance(value, str) and not types.is_string(kind):
        found = _OF_TEXT[kind.id](value)
        is_number = isinstance(found, (int, float)) and not (is_key and math.isfinite(found))
        if is_number and not is_csv and value not in _FLOATS_OF_JSON:
            raise ValueError(value)  # JSON has numbers and booleans, all but NaN and infinities
        return found
    if types.is_floating(kind) and is_whole(value):
        return _float(Decimal(value))
    return value


def _of_number(kind: pa.DataType, number: Decimal) -> Any:
    """Return the exact value of an integer or a decimal, and the nearest one of a float."""
    if types.is_decimal(kind):
        return number
    if types.is_floating(kind):
        return _float(number)
    if not types.is_integer(kind) or number.adjusted() > _MOST_DIGITS or number % 1:
        raise ValueError(str(number))
    return int(number)


def _float(number: Decimal) -> float:
    """Return the nearest float; the writer checks the range of one of four bytes."""
    found = float(number)
    if math.isinf(found):
        raise OverflowError(str(number))
    return found


def _nested(value: Any, wanted: type) -> Any:
    """Return a nested value, which CSV has as JSON."""
    found = parse_json(value) if type(value) is str else value
    if not isinstance(found, (wanted, list)):
        raise TypeError(type(found).__name__)
    return found


def _time(text: str) -> datetime:
    if _PAST_MICROSECONDS.search(text):
        raise ValueError(text)
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)


def _digits(text: str) -> str:
    """Return the text of a number; Python also takes 1_000 and digits of any script."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def _float_of_text(text: str) -> float:
    found = float(_digits(text))
    is_named = not math.isfinite(found) and "n" in text.lower()
    return found if is_named else _float(Decimal(text.strip()))


_OF_TEXT: Final[dict[int, Callable[[str], Any]]] = {
    pa.bool_().id: lambda text: _FLAGS[text.strip().lower()],
    **{
        kind.id: lambda text: int(_digits(text))
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    **{kind.id: _float_of_text for kind in (pa.float32(), pa.float64())},
    pa.decimal128(1).id: lambda text: Decimal(_digits(text)),
    pa.date32().id: date.fromisoformat,
    pa.timestamp("us").id: _time,
    pa.binary().id: lambda text: base64.b64decode(text, validate=True),
}
