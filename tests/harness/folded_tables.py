"""Changes of keys as the columns that a fold merges, and a folded table as a dict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from unittest import mock

import pyarrow as pa

from pravega_spark.key_value import folded_files
from pravega_spark.key_value.changes import Change
from pravega_spark.key_value.folded_table import FoldedState
from pravega_spark.key_value.keys import TableKey
from pravega_spark.key_value.rows import ENTRY_SCHEMA

Changes = Mapping[TableKey, Change]


def entries(changes: Changes) -> pa.Table:
    """Return changes, sorted by key, in the engine's columns."""
    rows = [
        {
            "key": key.primary,
            "secondary_key": key.secondary,
            "value": change.value,
            "timestamp": change.timestamp_us,
            "segment_id": change.segment_id,
            "offset": change.offset,
        }
        for key, change in sorted(changes.items())
    ]
    columns = {name: [row[name] for row in rows] for name in ENTRY_SCHEMA.names}
    arrays = [pa.array(columns[field.name], field.type) for field in ENTRY_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=ENTRY_SCHEMA)


def in_parts(table: pa.Table, rows: int) -> Iterable[pa.Table]:
    return [table.slice(at, rows) for at in range(0, table.num_rows, rows)]


def after(state: Changes, changes: Changes) -> dict[TableKey, Change]:
    """Return what a dict holds after changes."""
    found = {**state, **changes}
    return {key: change for key, change in found.items() if change.value is not None}


def scanned(state: FoldedState | None, **bounds: Any) -> dict[TableKey, Change]:
    """Return the entries of a scan; fails if they are not sorted, or if a key is there twice."""
    found: dict[TableKey, Change] = {}
    for batch in () if state is None else state.scan(**bounds):
        for row in batch.to_pylist():
            key = TableKey(row["key"], row["secondary_key"])
            assert not found or key > next(reversed(found)), "sorted, and no key twice"
            micros = round(row["timestamp"].timestamp() * 1_000_000)
            found[key] = Change(row["segment_id"], row["offset"], micros, row["value"])
    return found


def small_groups(rows: int = 4) -> Any:
    """Patch the writer so that small tables have several row groups."""
    return mock.patch.object(folded_files, "FOLDED_GROUP_ROWS", rows)
