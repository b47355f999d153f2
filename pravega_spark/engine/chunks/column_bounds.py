"""The bounds of a typed chunk's columns, for Delta's statistics, from the footer of its file.

Parquet's writer has computed them, so they cost no look at the rows.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable
from datetime import date
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from pravega_spark.engine.chunks.delta_stats import NO_BOUNDS, ColumnBounds, high_time, low_time
from pravega_spark.engine.chunks.event_format import SYSTEM_NAMES
from pravega_spark.engine.chunks.file_options import has_bounds, payload_leaves
from pravega_spark.engine.json_codec import quoted

if TYPE_CHECKING:
    import pyarrow.parquet as pq  # slow, and readers of Spark need the names alone

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
