"""Whether rows and tables fit a schema, and their values as its columns want them.

``value_check(type)`` returns a function that takes a value that is not None and returns it in the
form that Arrow takes, with its size (``value_sizes``). It raises Misfit for a value that does not
fit: a text where a number is wanted, a naive datetime, a number out of range.

A table is cast by column (``column_casts``), and a row is checked value by value, since either way
costs the other's customer dozens of times as much, and since Arrow takes Python's values for others
in silence (2.0 for 2, a datetime for a date). ``test_column_casts`` holds both to one answer.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Context, Decimal, InvalidOperation
from enum import Enum
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyarrow import types

from pravega_spark.errors import SchemaMismatch
from pravega_spark.schemas.column_casts import (
    PAST_FLOAT32,
    Misfit,
    check_distinct,
    fit_field,
    repeated_key,
)
from pravega_spark.schemas.column_types import DECIMAL_DIGITS, RESERVED_NAMES
from pravega_spark.schemas.column_views import without_views
from pravega_spark.schemas.value_sizes import DECIMAL_BYTES
from pravega_spark.values.checks import shown
from pravega_spark.values.names import has_utf8


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
        found = _fit_part(chunk, field, start=start, where=where, bad=bad, most=most)
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
        *_fit_part(values.slice(0, half), field, start=start, where=where, bad=bad, most=most),
        *_fit_part(values.slice(half), field, start=start + half, where=where, bad=bad, most=most),
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


Checked = tuple[Any, int]
Check = Callable[[Any], Checked]
_EXACT: Final = Context(prec=2 * DECIMAL_DIGITS)


def as_mapping(row: Any) -> Mapping[str, Any] | None:
    """Return a mapping, a dataclass or a pydantic model as a mapping; None for anything else."""
    if isinstance(row, Mapping):
        return row
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    fields = getattr(type(row), "model_fields", None)
    if isinstance(fields, Mapping):
        return {name: getattr(row, name) for name in fields}
    return None


@lru_cache(maxsize=1_024)
def value_check(kind: pa.DataType) -> Check:
    """Return the check of values of a canonical type that are not null."""
    if types.is_struct(kind):
        return _struct_check(kind)
    if types.is_map(kind):
        return _map_check(kind)
    if types.is_list(kind):
        return _list_check(kind)
    if types.is_integer(kind):
        return _whole_check(kind)
    if types.is_decimal(kind):
        return _decimal_check(kind)
    if types.is_floating(kind):
        return _float_check(kind)
    return _PLAIN[kind]


def _refused(value: Any, kind: object) -> Misfit:
    return Misfit(f"a value of type {type(value).__name__} is not {kind}")


def _plain(value: Any) -> Any:
    """Return the plain value of a member of an enumeration, or of a scalar of numpy."""
    if isinstance(value, Enum):
        return value.value
    return value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value


def _boolean(value: Any) -> Checked:
    value = _plain(value)
    if value is not True and value is not False:
        raise _refused(value, "bool")
    return value, 1


def _whole_check(kind: pa.DataType) -> Check:
    width = kind.bit_width // 8
    most = 2 ** (kind.bit_width - 1) - 1
    least = -most - 1

    def check(value: Any) -> Checked:
        if type(value) is not int:
            value = _plain(value)
            if not isinstance(value, int) or isinstance(value, bool):
                raise _refused(value, kind)
        if not least <= value <= most:
            raise Misfit(f"it is out of the range of {kind}, {least} to {most}")
        return value, width

    return check


def _float_check(kind: pa.DataType) -> Check:
    width = kind.bit_width // 8

    def check(value: Any) -> Checked:
        if type(value) is not float:
            given = _plain(value)
            if isinstance(given, bool) or not isinstance(given, (int, float)):
                raise _refused(value, kind)
            value = _exact_float(given, kind)
        if width == 4 and abs(value) >= PAST_FLOAT32 and math.isfinite(value):
            raise Misfit(f"it is out of the range of {kind}")
        return value, width

    return check


def _exact_float(given: float, kind: pa.DataType) -> float:
    try:
        value = float(given)
    except OverflowError:
        raise Misfit(f"it is out of the range of {kind}") from None
    is_narrow = kind.bit_width == 32 and abs(value) < PAST_FLOAT32
    if isinstance(given, int) and (float(np.float32(value)) if is_narrow else value) != given:
        raise Misfit(f"{kind} cannot hold this whole number exactly")
    return value


def _decimal_check(kind: pa.DataType) -> Check:
    unit = Decimal(1).scaleb(-kind.scale)

    def check(value: Any) -> Checked:
        value = _plain(value)
        if isinstance(value, bool) or not isinstance(value, (Decimal, int)):
            raise _refused(value, kind)
        try:
            exact = Decimal(value).quantize(unit, context=_EXACT)
        except InvalidOperation:
            raise Misfit(f"it is not a number of type {kind}") from None
        if exact != value or len(exact.as_tuple().digits) > kind.precision:
            raise Misfit(f"{kind} cannot hold this number exactly")
        return exact, DECIMAL_BYTES

    return check


def _text(value: Any) -> Checked:
    if type(value) is not str:
        value = str(value) if isinstance(value, UUID) else _plain(value)
        if not isinstance(value, str):
            raise _refused(value, "string")
        value = str(value)
    if value.isascii():
        return value, len(value)
    if not has_utf8(value):
        raise Misfit("it has a lone surrogate, and so no UTF-8 form")
    return value, len(value.encode())


def _binary(value: Any) -> Checked:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _refused(value, "binary")
    value = bytes(value)
    return value, len(value)


def _date(value: Any) -> Checked:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _refused(value, "a date")
    return value, 4


def _timestamp(value: Any) -> Checked:
    if not isinstance(value, datetime):
        raise _refused(value, "a timestamp: give a datetime with a time zone")
    if value != value:  # noqa: PLR0124 - pandas' NaT
        raise Misfit("it is not a time: give None")
    if value.utcoffset() is None:
        raise Misfit("the datetime has no time zone: add one, such as datetime.timezone.utc")
    if getattr(value, "nanosecond", 0):  # of pandas
        raise Misfit("it has nanoseconds, and a timestamp microseconds: round it")
    if value.year in (datetime.min.year, datetime.max.year):
        try:
            value.astimezone(timezone.utc)
        except OverflowError:
            raise Misfit("it is beyond the years 1 to 9999 in UTC") from None
    return value, 8


def _list_check(kind: pa.DataType) -> Check:
    check_element = value_check(kind.value_type)

    def check(value: Any) -> Checked:
        if hasattr(value, "dtype") and hasattr(value, "tolist"):  # of numpy
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            raise _refused(value, kind)
        elements, size = [], 0
        for given in value:
            element, width = _checked(check_element, given, "element")
            elements.append(element)
            size += width
        return elements, size

    return check


def _map_check(kind: pa.DataType) -> Check:
    check_key, check_item = value_check(kind.key_type), value_check(kind.item_type)
    is_plain = not (types.is_floating(kind.key_type) or types.is_nested(kind.key_type))

    def check_keys(keys: list[Any]) -> None:
        if is_plain and len(set(keys)) < len(keys):
            raise Misfit(repeated_key(next(key for key in keys if keys.count(key) > 1)))
        if not is_plain and len(keys) > 1:
            check_distinct(pa.array(keys, kind.key_type), np.array([len(keys)], np.int32))

    def check(value: Any) -> Checked:
        entries, size = [], 0
        for given_key, given in _pairs(value, kind):
            if given_key is None:
                raise Misfit("None, and the key of a map is required", "key")
            key, key_size = _checked(check_key, given_key, "key")
            item, item_size = _checked(check_item, given, "value")
            entries.append((key, item))
            size += key_size + item_size
        check_keys([key for key, _ in entries])
        return entries, size

    return check


def _pairs(value: Any, kind: pa.DataType) -> Iterable[tuple[Any, Any]]:
    """Return the entries of a mapping, or of a list of pairs, as tables of Arrow give maps."""
    if isinstance(value, Mapping):
        return value.items()
    pairs = value.tolist() if hasattr(value, "dtype") and hasattr(value, "tolist") else value
    if isinstance(pairs, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs
    ):
        return pairs
    raise _refused(value, f"{kind}: give a dict, or a list of pairs of a key and a value")


def _struct_check(kind: pa.DataType) -> Check:
    checks = {field.name: (value_check(field.type), field.nullable) for field in kind}

    def check(value: Any) -> Checked:
        given = as_mapping(value)
        if given is None:
            raise _refused(value, "a struct: give a dict, a dataclass or a pydantic model")
        if not given.keys() <= checks.keys():
            name = next(iter(given.keys() - checks.keys()))
            raise Misfit(f"the struct has no field {name!r}, only {', '.join(checks)}")
        fields, size = {}, 0
        for name, (check_field, nullable) in checks.items():
            found = given.get(name)
            if found is None and not nullable:
                raise Misfit("null, and the field is required", name)
            fields[name], width = _checked(check_field, found, name)
            size += width
        return fields, size

    return check


def _checked(check: Check, value: Any, name: str) -> Checked:
    if value is None:
        return None, 0
    try:
        return check(value)
    except Misfit as misfit:
        raise misfit.within(name) from None


_PLAIN: Final[dict[pa.DataType, Check]] = {
    pa.bool_(): _boolean,
    pa.string(): _text,
    pa.binary(): _binary,
    pa.date32(): _date,
    pa.timestamp("us", "UTC"): _timestamp,
}


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
