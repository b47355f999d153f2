"""How Parquet's writer stores the columns of a chunk: dictionaries, encodings and statistics.

Row groups of a typed stream have the bounds of simple columns, so that readers skip those without
a row that they want. The bounds of raw events would help nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from pravega_spark.engine.chunks.event_format import SYSTEM_NAMES, is_raw
from pravega_spark.schemas.column_types import leaves

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
