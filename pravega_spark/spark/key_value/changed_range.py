"""The range of keys that changes lie in, merged by the driver if the changes fill it.

Changes of neighbouring keys need no look-up of every folded row: the driver reads the folded rows
between the first and the last one, puts the changes over them, and hands over the whole range.
"""

from __future__ import annotations

import pyarrow as pa

from pravega_spark.key_value.folded_files import FileReader, FoldedFile
from pravega_spark.key_value.folded_table import rows_between
from pravega_spark.key_value.keys import TableKey
from pravega_spark.key_value.rows import RowLayout, SortKey, first_key, last_key, with_changes
from pravega_spark.key_value.snapshot import TableSnapshot
from pravega_spark.values.limits import SCAN_CHANGED_BYTES

_ROWS_EACH = 2
"""The most folded rows that the driver reads for each changed key."""


def merged_range(found: TableSnapshot, changes: pa.Table) -> pa.Table | None:
    """Return all entries from the first to the last primary key of sorted changes.

    None if many more folded rows than changes lie there.
    """
    state, table = found.folded, found.table
    assert state is not None
    low, high = _bounds(table.layout, first_key(changes), last_key(changes))
    files = [file for file in state.files if file.last >= low and file.first < high]
    with table.reader.missing_files():
        if not _is_filled(table.reader, files, low, high, changes.num_rows):
            return None
        base = (
            rows_between(rows, low, high)
            for file in files
            for rows in table.reader.rows(file, low, high)
        )
        parts = list(with_changes(base, [changes]))
    return pa.concat_tables(parts) if parts else table.layout.empty()


def _bounds(layout: RowLayout, first: SortKey, last: SortKey) -> tuple[SortKey, SortKey]:
    """Return the bounds [low, high) of all keys from one primary key to another."""
    if layout.is_number:
        return first, last + 1
    low, high = layout.table_key(first).primary, layout.table_key(last).primary + b"\x00"
    return layout.sort_key(TableKey(low)), layout.sort_key(TableKey(high))


def _is_filled(
    reader: FileReader, files: list[FoldedFile], low: SortKey, high: SortKey, changes: int
) -> bool:
    """Return whether the row groups of [low, high) hold few rows more than there are changes."""
    most = _ROWS_EACH * changes
    if sum(file.rows for file in files[1:-1]) > most:
        return False  # without a footer
    rows = size = 0
    for file in files:
        footer = reader.footer(file)
        for number in footer.groups_between(low, high):
            place = footer.places[number]
            rows += place.rows
            size += place.end - place.start
    return rows <= most and size <= SCAN_CHANGED_BYTES
