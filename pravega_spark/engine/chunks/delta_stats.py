"""Delta's statistics of a chunk: what the log tells every reader of Delta about a file's rows.

A file whose columns have no bounds that are certain has none at all: where others of the table have
them, delta-rs takes a missing bound for null, and would skip the file.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""Years 1 to 9999: the dates that other Delta readers can parse."""


class ColumnBounds(NamedTuple):
    """The lowest and highest values of typed columns, and their nulls, as members of JSON objects.

    A column that is null in all rows has no values.
    """

    low: str
    high: str
    nulls: str


NO_BOUNDS: Final = ColumnBounds("", "", "")
"""What a typed chunk has if its bounds are not known, or if those of one column are none."""


def stats_text(
    rows: int, null_keys: int, first_us: int, last_us: int, columns: ColumnBounds | None
) -> str:
    """Return the statistics of a file as JSON, formatted by hand because commits wait.

    ``columns`` are those of a typed chunk, or None. Delta's statistics have timestamps in
    milliseconds, so the bounds are rounded outwards.
    """
    bounds = ""
    low, high = low_time(first_us), high_time(last_us)
    if low is not None and high is not None and columns != NO_BOUNDS:
        lows, highs = ("", "") if columns is None else columns[:2]
        bounds = (
            f'"minValues":{{"timestamp":{_joined(low, lows)}}},'
            f'"maxValues":{{"timestamp":{_joined(high, highs)}}},'
        )
    # Delta Spark uses the bounds of a column only if its nulls are counted.
    nulls = _joined("0", "" if columns is None else columns.nulls)
    return (
        f'{{"numRecords":{rows},{bounds}'
        f'"nullCount":{{"routing_key":{null_keys},"timestamp":{nulls}}}}}'
    )


def low_time(time_us: int) -> str | None:
    """Return a time in microseconds as Delta writes a lower bound; None if it cannot."""
    return _time_text(time_us // 1_000)


def high_time(time_us: int) -> str | None:
    """Return a time in microseconds as Delta writes an upper bound; None if it cannot."""
    return _time_text(-(-time_us // 1_000))


@lru_cache(maxsize=512)
def _time_text(time_ms: int) -> str | None:
    """Return a time as a JSON text; the chunks of one commit have few different ones."""
    is_known = _FIRST_MS <= time_ms <= _LAST_MS
    return f'"{np.datetime64(time_ms, "ms")}Z"' if is_known else None


def _joined(first: str, rest: str) -> str:
    return f"{first},{rest}" if rest else first
