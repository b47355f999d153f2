"""Dead letters: rows that do not fit the schema of their stream, as JSON with the reason.

A letter is ``{"reason": "...", "column": "fare", "value": "...", "row": {...}}`` in UTF-8.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date
from typing import Any

import pyarrow as pa

from pravega_spark.schemas.fit import BadRow
from pravega_spark.values.limits import MAX_EVENT_BYTES


def letter_of_row(row: pa.Table | pa.RecordBatch, bad: BadRow) -> bytes:
    """Return the letter of a table's one row."""
    return letter_text(bad, {name: _value(row.column(name)) for name in row.schema.names})


def letter_text(bad: BadRow, row: Mapping[str, Any]) -> bytes:
    """Return the letter of a row; one that would be larger than an event may be leaves it out."""
    record = {"reason": bad.reason, "column": bad.column, "value": bad.value}
    try:
        data = _json({**record, "row": _plain(row)})
    except RecursionError:  # a row that contains itself, or is nested more deeply than Python goes
        return _json({**record, "row": None})
    if len(data) <= MAX_EVENT_BYTES:
        return data
    return _json({**record, "row": None, "row_bytes": len(data)})


def _json(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, default=_text)
    return text.encode(errors="replace")


def _value(column: pa.Array | pa.ChunkedArray) -> Any:
    try:
        return column[0].as_py()
    except UnicodeDecodeError as error:
        return bytes(error.object).decode(errors="replace")
    except (ValueError, OverflowError):  # a time that Python cannot hold
        is_time = pa.types.is_temporal(column.type)
        return str(column.cast(pa.int64())[0] if is_time else column[0])


def _plain(value: Any) -> Any:
    """Return a value as one of JSON, as far as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)  # "NaN", "Infinity": what Spark and our own readers of JSON take
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date) else str(value)
