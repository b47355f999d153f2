"""Rows of Python, dicts, dataclasses and pydantic models, as their schema wants them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa

from pravega_spark.arguments import shown
from pravega_spark.errors import SchemaMismatch
from pravega_spark.schemas.column_casts import Misfit
from pravega_spark.schemas.row_values import as_mapping, value_check
from pravega_spark.schemas.table_fit import BadRow, mismatch, missing_column, unknown_column

_REQUIRED: Final = "null, and the column is required"


class RowCheck:
    """Checks rows against one schema. A column that a row lacks is null."""

    __slots__ = ("_checks", "_schema")

    def __init__(self, schema: pa.Schema) -> None:
        """Take a canonical schema."""
        self._schema = schema
        self._checks = {field.name: (value_check(field.type), field.nullable) for field in schema}

    def row(self, row: Any, where: str, number: int = 0) -> tuple[dict[str, Any], int]:
        """Return the values of all columns, as Arrow takes them, and the event's size in bytes.

        Nothing that the caller may still change is in them. Raises SchemaMismatch.
        """
        given = row if type(row) is dict else self._mapping(row, where, number)
        checks = self._checks
        if not given.keys() <= checks.keys():
            name = next(name for name in given if name not in checks)
            error = unknown_column(where, name, list(checks))
            error.row, error.value = number, shown(given[name])
            error.reason = "the schema has no such column"
            raise error
        values: dict[str, Any] = {}
        total = 0
        for name, (check, nullable) in checks.items():
            value = given.get(name)
            if value is None:
                if not nullable:
                    raise self._required(given, name, where, number)
                values[name] = None
                continue
            try:
                values[name], size = check(value)
            except Misfit as misfit:
                raise mismatch(where, bad_row(number, name, value, misfit)) from None
            total += size
        return values, total

    def table(self, rows: Iterable[Any], where: str) -> pa.Table:
        """Return checked rows as a table; raise SchemaMismatch for the first that does not fit."""
        checked = [self.row(row, where, number)[0] for number, row in enumerate(rows)]
        return rows_to_table(checked, self._schema)

    def _mapping(self, row: Any, where: str, number: int) -> Mapping[str, Any]:
        found = as_mapping(row)
        if found is None:
            raise SchemaMismatch(
                f"{where}: row {number} must be a dict, a dataclass or a pydantic model, got a "
                f"{type(row).__name__}: {shown(row)}.",
                row=number,
                value=shown(row),
            )
        return found

    def _required(
        self, given: Mapping[str, Any], name: str, where: str, number: int
    ) -> SchemaMismatch:
        if name not in given:
            error = missing_column(where, name, [str(other) for other in given])
            error.row, error.value, error.reason = number, "None", _REQUIRED
            return error
        return mismatch(where, BadRow(number, name, "None", _REQUIRED))


def bad_row(number: int, column: str, value: Any, misfit: Misfit) -> BadRow:
    """Return what a misfit says of the value of a row's column."""
    path = f"{column}.{misfit.path}" if misfit.path else column
    return BadRow(number, path, shown(value), str(misfit))


def rows_to_table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows that a RowCheck of the schema returned as a table of it."""
    return pa.Table.from_pylist(rows, schema)
