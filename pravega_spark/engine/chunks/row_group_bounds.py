"""Which row groups may have a row for which an expression is true, by their bounds.

Arrow proves it for constants: it simplifies the expression by what is known of the columns. It does
not follow that a column lies between two values *or* is null, so each is asked on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import product
from operator import and_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

_MOST_CASES: Final = 32
"""Columns that have nulls double the cases; of those beyond this number nothing is assumed."""
_FORMAT: Final = ds.ParquetFileFormat()
_NOWHERE: Final = pa.py_buffer(b"")


def may_hold(where: pc.Expression, columns: pa.Schema, cases: Iterable[pc.Expression]) -> bool:
    """Return False if the expression is true in none of the cases.

    A case is an expression that holds for some rows, and the cases for all. ``columns`` are those
    that the expression names.
    """
    parts = [_FORMAT.make_fragment(_NOWHERE, partition_expression=case) for case in cases]
    known = ds.FileSystemDataset(parts, columns, _FORMAT)
    try:
        return any(True for _ in known.get_fragments(filter=where))
    except pa.ArrowInvalid:  # its arithmetic overflows for a bound, but maybe for no row
        return True


def places_of(schema: pa.Schema) -> dict[str, int | None]:
    """Return where the bounds of each column of a file are; None for a column of several values.

    By the types, since a path in a footer does not say which of its dots are of names.
    """
    found, place = dict[str, int | None](), 0
    for field in schema:
        found[field.name] = None if pa.types.is_nested(field.type) else place
        place += _leaves(field.type)
    return found


def _leaves(kind: pa.DataType) -> int:
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(n).type) for n in range(kind.num_fields))


def cases_of(
    found: pq.RowGroupMetaData,
    places: Mapping[str, int | None],
    columns: pa.Schema,
    first_offset: int,
) -> Iterator[pc.Expression]:
    """Yield what holds for the rows of a row group, whose first event has an offset.

    Columns that the file lacks are null in it. The footer was checked against the log.
    """
    known: list[list[pc.Expression]] = []
    count = 1
    for column in columns:
        field = pc.field(column.name)
        if column.name == "offset":
            last = first_offset + found.num_rows - 1
            known.append([_between(field, *(pa.scalar(n) for n in (first_offset, last)))])
        elif column.name not in places:
            known.append([field.is_null()])
        elif (place := places[column.name]) is not None:
            options = _options(field, column.type, found.column(place))
            if count * len(options) <= _MOST_CASES:
                known.append(options)
                count *= len(options)
    known = [options for options in known if options]
    yield from (reduce(and_, case, pc.scalar(True)) for case in product(*known))


def _options(
    field: pc.Expression, kind: pa.DataType, stored: pq.ColumnChunkMetaData
) -> list[pc.Expression]:
    """Return what a value is: in the bounds, or null; nothing if neither is known."""
    bounds = stored.statistics
    if bounds is None:
        return []
    nulls = bounds.null_count if bounds.has_null_count else None
    if nulls == stored.num_values:
        return [field.is_null()]
    span = _span(bounds, kind)
    if span is None:
        return [field.is_valid()] if nulls == 0 else []
    return [_between(field, *span), *(() if nulls == 0 else (field.is_null(),))]


def _span(bounds: pq.Statistics, kind: pa.DataType) -> tuple[pa.Scalar, pa.Scalar] | None:
    if not bounds.has_min_max:
        return None
    if pa.types.is_decimal(kind):
        return pa.scalar(bounds.min, kind), pa.scalar(bounds.max, kind)
    return bound_scalar(bounds.min_raw, kind), bound_scalar(bounds.max_raw, kind)


def bound_scalar(raw: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a bound as Parquet stores it in the type of its column."""
    if isinstance(raw, bytes):
        return pa.scalar(raw, pa.binary()).cast(kind)
    stored = kind if not pa.types.is_temporal(kind) else pa.int64()
    if pa.types.is_date32(kind):
        stored = pa.int32()
    return pa.scalar(raw, stored).cast(kind)


def _between(field: pc.Expression, low: pa.Scalar, high: pa.Scalar) -> pc.Expression:
    return (field >= low) & (field <= high)
