"""Tables as their schema wants them, and which of their rows do not fit."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pravega_spark.arguments import shown
from pravega_spark.errors import SchemaMismatch
from pravega_spark.schemas.column_casts import Misfit, fit_field, without_views
from pravega_spark.schemas.column_types import RESERVED_NAMES


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not fit a schema: its number from 0, the first column that does not, why."""

    row: int
    column: str
    value: str
    reason: str

    def __str__(self) -> str:
        """Return the row, the column, the reason and the value."""
        return f"row {self.row}, column {self.column}: {self.reason}; got {self.value}"


def fit_table(table: pa.Table | pa.RecordBatch, schema: pa.Schema, where: str) -> pa.Table:
    """Return the table with the columns of a schema, in its order; raise SchemaMismatch.

    Columns that have the right type are not copied. A nullable column that is missing is null.
    """
    columns = given_columns(table, schema, where)
    fitted = []
    for field, column in zip(schema, columns, strict=True):
        bad: list[BadRow] = []
        parts = _fit_column(column, field, where, bad, most=1)
        if bad:
            raise mismatch(where, bad[0])
        fitted.append(column if parts is None else pa.chunked_array(parts, field.type))
    return pa.Table.from_arrays(fitted, schema=schema)


def split_table(
    table: pa.Table | pa.RecordBatch, schema: pa.Schema, where: str, known: Sequence[BadRow] = ()
) -> tuple[pa.Table, tuple[BadRow, ...]]:
    """Return the rows that fit, as :func:`fit_table` does, and the others with their reasons.

    Both are in the order of the table. Values that are ``known`` to be bad are null in it. Raises
    SchemaMismatch if no row can fit: a column is unknown, a required one is missing, or one has a
    wrong type.
    """
    columns = given_columns(table, schema, where)
    bad: list[BadRow] = []
    for field, column in zip(schema, columns, strict=True):
        bad += (found for found in known if _is_in(field.name, found.column))
        _fit_column(column, field, where, bad)
    if not bad:
        return fit_table(table, schema, where), ()
    first = {found.row: found for found in reversed(bad)}  # the first column of each row
    is_good = np.ones(table.num_rows, bool)
    is_good[list(first)] = False
    columns = [without_views(column) for column in columns]  # which Arrow cannot filter
    good = pa.Table.from_arrays(columns, schema.names).filter(pa.array(is_good))
    return fit_table(good, schema, where), tuple(first[row] for row in sorted(first))


def _is_in(column: str, path: str) -> bool:
    return path == column or path.startswith(f"{column}.")


def given_columns(
    table: pa.Table | pa.RecordBatch, schema: pa.Schema, where: str
) -> list[pa.ChunkedArray]:
    """Return the columns of a table in the order of a schema; nulls for those that are missing."""
    names = table.schema.names
    for name in names:
        if schema.get_field_index(name) < 0:
            raise unknown_column(where, name, schema.names)
        if names.count(name) > 1:
            raise SchemaMismatch(
                f"{where}: {names.count(name)} columns are named {name}; give each column once.",
                column=name,
            )
    columns = []
    for field in schema:
        if field.name in names:
            column = table.column(field.name)
            chunks = [column] if isinstance(column, pa.Array) else column.chunks
            columns.append(pa.chunked_array(chunks, column.type))
        elif field.nullable or not table.num_rows:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
        else:
            raise missing_column(where, field.name, names)
    return columns


def unknown_column(where: str, name: object, known: list[str]) -> SchemaMismatch:
    """Return the error for a column that the schema lacks; it names the nearest one."""
    if str(name).lower() in RESERVED_NAMES:
        return SchemaMismatch(
            f"{where}: the schema has no column {shown(name)}, a name of the columns that streams "
            "have themselves, as in tables that were read; drop the column.",
            column=str(name),
        )
    near = difflib.get_close_matches(str(name).lower(), [other.lower() for other in known], 1)
    nearest = [other for other in known if other.lower() in near]
    way = f"is {nearest[0]} meant?" if nearest else f"it has {', '.join(known)}."
    return SchemaMismatch(
        f"{where}: the schema has no column {shown(name)}; {way} Drop the column, or add it to the "
        "schema first.",
        column=str(name),
    )


def missing_column(where: str, name: str, given: list[str]) -> SchemaMismatch:
    """Return the error for a required column that the rows lack."""
    return SchemaMismatch(
        f"{where}: the required column {name} is missing; the rows have "
        f"{', '.join(given) or 'no columns'}.",
        column=name,
    )


def mismatch(where: str, bad: BadRow) -> SchemaMismatch:
    """Return the error for a row that does not fit."""
    return SchemaMismatch(
        f"{where}: {bad}. Nothing was written; correct the row, or write the rows that do not fit "
        "to another stream.",
        row=bad.row,
        column=bad.column.partition(".")[0],
        value=bad.value,
        reason=bad.reason,
    )


def _fit_column(
    column: pa.ChunkedArray,
    field: pa.Field,
    where: str,
    bad: list[BadRow],
    most: int | None = None,
) -> list[pa.Array] | None:
    """Return the chunks of a column as its field wants them; None if they already are so.

    Adds the rows that do not fit to ``bad``, until it has ``most``.
    """
    parts: list[pa.Array] = []
    is_changed, start = column.type != field.type, 0
    for chunk in column.chunks:
        found = _fit_part(chunk, field, start, where, bad, most)
        is_changed = is_changed or len(found) != 1 or found[0] is not chunk
        parts += found
        start += len(chunk)
    return parts if is_changed else None


def _fit_part(
    values: pa.Array, field: pa.Field, start: int, where: str, bad: list[BadRow], most: int | None
) -> list[pa.Array]:
    """Return values as a field wants them, in as many parts as that takes; halve to find misfits.

    ``start`` is the row of the first value. Halves are also what a text of 2 GiB comes apart into.
    """
    if len(bad) == most:
        return []
    try:
        return [fit_field(values, field)]
    except Misfit as misfit:
        path = f"{field.name}.{misfit.path}" if misfit.path else field.name
        if misfit.by_type:
            raise SchemaMismatch(
                f"{where}: column {path}: {misfit}; convert the column first.", column=field.name
            ) from None
        if len(values) == 1:
            bad.append(BadRow(start, path, _value(values), str(misfit)))
            return []
    half = len(values) // 2
    return [
        *_fit_part(values.slice(0, half), field, start, where, bad, most),
        *_fit_part(values.slice(half), field, start + half, where, bad, most),
    ]


def _value(values: pa.Array) -> str:
    try:
        return shown(values[0].as_py())
    except UnicodeDecodeError as error:
        return shown(error.object)
    except (ValueError, OverflowError):  # a time that Python cannot hold
        if not pa.types.is_temporal(values.type):
            return f"a {values.type} with a time that Python cannot hold"
        width = values.type.bit_width
        return f"{values.cast(pa.int64() if width == 64 else pa.int32())[0]} since 1970"
