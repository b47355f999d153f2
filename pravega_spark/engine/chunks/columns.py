"""How the columns of a chunk are stored, and the bounds of typed ones for Delta's statistics.

Parquet's writer has computed them, so they cost no look at the rows.

How Parquet's writer stores the columns of a chunk: dictionaries, encodings and statistics. Row
groups of a typed stream have the bounds of simple columns, so that readers skip those without a row
that they want. The bounds of raw events would help nobody.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from pravega_spark.engine.chunks.chunk import NO_BOUNDS, ColumnBounds, high_time, low_time
from pravega_spark.engine.chunks.format import SYSTEM_NAMES, is_raw
from pravega_spark.engine.runtime.json_codec import quoted
from pravega_spark.schemas.column_types import leaves

if TYPE_CHECKING:
    import pyarrow.parquet as pq


_DELTA_ENCODED: Final = ("offset_delta", "timestamp")
_DELTA: Final = "DELTA_BINARY_PACKED"
"""The encoding of whole numbers: compared with plain ones it takes less time and less space."""
_COMMON: Final[dict[str, Any]] = {
    "version": "2.6",
    "write_page_checksum": True,
    "store_schema": False,  # Parquet's own types are enough
    "column_encoding": dict.fromkeys(_DELTA_ENCODED, _DELTA),
}


@lru_cache(maxsize=256)
def file_options(
    events: pa.Schema,
    *,
    is_encrypted: bool,
    small: bool,
    unbounded: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return the options of Parquet's writer for a chunk with these columns.

    An encrypted column has no bounds, which would tell a part of it, nor has an ``unbounded`` one.
    A ``small`` chunk has no dictionaries of the user's columns: they would take more than they
    save.
    """
    keys = [] if is_encrypted else ["routing_key"]
    if is_raw(events):
        return _COMMON | {
            "use_dictionary": ["routing_key"],
            "write_statistics": [*_DELTA_ENCODED, *keys],
        }
    leaves = list(payload_leaves(events))
    words = [] if small else [path for path, kind in leaves if _is_text(kind)]
    bounded = [] if is_encrypted else [path for path, kind in leaves if has_bounds(path, kind)]
    bounded = [path for path in bounded if path not in unbounded]
    whole = [path for path, kind in leaves if _is_whole(kind)]
    return _COMMON | {
        "column_encoding": dict.fromkeys((*_DELTA_ENCODED, *whole), _DELTA),
        "use_dictionary": ["routing_key", *words],
        "write_statistics": [*_DELTA_ENCODED, *keys, *bounded],
    }


@lru_cache(maxsize=256)
def encrypted_columns(events: pa.Schema) -> tuple[str, ...]:
    """Return the Parquet columns to encrypt: all but the numbers and the times of events."""
    return ("routing_key", *(path for path, _ in payload_leaves(events)))


def payload_leaves(events: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the path and the type of each Parquet column of the events themselves."""
    for field in events:
        if field.name not in SYSTEM_NAMES:
            yield from leaves(field.name, field.type)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_whole(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_date(kind) or types.is_timestamp(kind))


def has_bounds(path: str, kind: pa.DataType) -> bool:
    """Return whether a column is not nested, and has values in an order that readers ask for."""
    return "." not in path and not pa.types.is_binary(kind)


MOST_COLUMNS: Final = 32
"""As many columns as Delta has bounds of by default: the first ones that can have any."""
MOST_CHARACTERS: Final = 32
"""A longer text is cut off, as Delta does; the cut upper bound is raised."""

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that every reader of Delta's list of columns takes for one."""
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_SURROGATES: Final = range(0xD800, 0xE000)


def text_above(prefix: str) -> str | None:
    """Return the first text, by code, after all that begin with a prefix; None if there is none."""
    kept = prefix.rstrip(chr(sys.maxunicode))
    if not kept:
        return None
    after = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if after in _SURROGATES else after)


class _Bounded(NamedTuple):
    """A column with bounds: its place among the file's columns, and how a bound becomes a text."""

    leaf: int
    label: str
    value: Callable[[Any], Any]
    low: Callable[[Any], str | None]
    high: Callable[[Any], str | None]


def bounded_names(events: pa.Schema) -> list[str]:
    """Return the names of the columns of typed events whose bounds the log has.

    Columns that are added later change none of these.
    """
    return [column.label[1:-1] for column in _bounded(events)]


def column_bounds(metadata: pq.FileMetaData, events: pa.Schema) -> ColumnBounds:
    """Return the bounds of a whole file; ``NO_BOUNDS`` if those of one column are not certain."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    lows, highs, nulls = [], [], []
    for column in _bounded(events):
        found = _of_groups(column, [group.column(column.leaf) for group in groups])
        if found is None:
            return NO_BOUNDS
        span, null_count = found
        nulls.append(f"{column.label}:{null_count}")
        if span is not None:
            low, high = column.low(span[0]), column.high(span[1])
            if low is None or high is None:
                return NO_BOUNDS
            lows.append(f"{column.label}:{low}")
            highs.append(f"{column.label}:{high}")
    return ColumnBounds(",".join(lows), ",".join(highs), ",".join(nulls))


def _of_groups(
    column: _Bounded, parts: Iterable[pq.ColumnChunkMetaData]
) -> tuple[tuple[Any, Any] | None, int] | None:
    """Return both bounds over row groups, None if all are null, and the count of nulls."""
    span: tuple[Any, Any] | None = None
    nulls = 0
    for part in parts:
        bounds = part.statistics
        if bounds is None or not bounds.has_null_count:
            return None
        nulls += bounds.null_count
        if bounds.has_min_max:
            low, high = column.value(bounds.min_raw), column.value(bounds.max_raw)
            span = (low, high) if span is None else (min(span[0], low), max(span[1], high))
        elif bounds.null_count != part.num_values:
            return None
    return span, nulls


@lru_cache(maxsize=256)
def _bounded(events: pa.Schema) -> tuple[_Bounded, ...]:
    """Return the columns that have bounds in the log, of typed events with these columns."""
    found: list[_Bounded] = []
    for place, (path, kind) in enumerate(payload_leaves(events), len(SYSTEM_NAMES) + 1):
        forms = _forms(kind) if has_bounds(path, kind) and _PLAIN_NAME.fullmatch(path) else None
        if forms is not None and len(found) < MOST_COLUMNS:
            found.append(_Bounded(place, f'"{path}"', *forms))
    return tuple(found)


_Text = Callable[[Any], str | None]


def _forms(kind: pa.DataType) -> tuple[Callable[[Any], Any], _Text, _Text] | None:
    """Return what a bound is in Parquet's form, and its texts as a lower and an upper one."""
    types = pa.types
    if types.is_integer(kind):
        return int, str, str
    if types.is_floating(kind):
        return float, _low_float, _high_float
    if types.is_decimal(kind):
        text = partial(_decimal_text, scale=kind.scale)
        return partial(int.from_bytes, byteorder="big", signed=True), text, text
    if types.is_date(kind):
        return int, _date_text, _date_text
    if types.is_timestamp(kind):
        return int, low_time, high_time
    return (bytes, _low_text, _high_text) if types.is_string(kind) else None


def _low_float(value: float) -> str:
    return "-0.0" if not value else _float_text(value)


def _high_float(value: float) -> str:
    return "0.0" if not value else _float_text(value)


def _float_text(value: float) -> str:
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return repr(value)


def _decimal_text(unscaled: int, scale: int) -> str:
    digits = f"{abs(unscaled):0{scale + 1}}"
    sign, whole = "-" if unscaled < 0 else "", len(digits) - scale
    return f"{sign}{digits[:whole]}.{digits[whole:]}" if scale else f"{sign}{digits}"


def _date_text(day: int) -> str | None:
    ordinal = day + _EPOCH_DAY
    is_known = date.min.toordinal() <= ordinal <= date.max.toordinal()
    return f'"{date.fromordinal(ordinal)}"' if is_known else None


def _low_text(value: bytes) -> str:
    return quoted(value.decode()[:MOST_CHARACTERS])


def _high_text(value: bytes) -> str | None:
    text = value.decode()
    if len(text) <= MOST_CHARACTERS:
        return quoted(text)
    above = text_above(text[:MOST_CHARACTERS])
    return None if above is None else quoted(above)
