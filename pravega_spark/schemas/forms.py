"""Schemas and tables in the forms that users have: of Arrow, Spark, Polars, pandas, and classes.

Spark, Polars, pandas and pydantic are not imported: what they give is known by its methods.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyarrow import types

from pravega_spark.errors import InvalidSchema, SchemaMismatch
from pravega_spark.schemas.classes import class_schema, is_row_class
from pravega_spark.schemas.column_casts import Misfit
from pravega_spark.schemas.column_types import TIMESTAMP
from pravega_spark.schemas.delta import schema_from_json
from pravega_spark.schemas.fit import BadRow, bad_row, mismatch, value_check
from pravega_spark.values.checks import shown


def to_arrow(given: Any) -> pa.Schema:
    """Return the Arrow schema of a schema, a class or data in another form; raise InvalidSchema."""
    if isinstance(given, pa.Schema):
        return given
    if isinstance(given, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
        return given.schema
    if is_row_class(given):
        return class_schema(given)
    library = _library(given)
    if library == "pyspark":
        return _of_spark(given)
    if library == "pandas":
        found = pa.Schema.from_pandas(given, preserve_index=False)
        return pa.schema([_in_microseconds(field) for field in found])
    if library == "polars":
        return _of_polars(given)
    if hasattr(given, "__arrow_c_schema__"):
        return pa.schema(given)
    if hasattr(given, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(given).schema
    raise InvalidSchema(
        f"no schema can be made of a {type(given).__name__}: {shown(given)}; give a schema of "
        "Arrow, Spark or Polars, a dataclass, a pydantic model, or a frame."
    )


def to_table(
    given: Any, where: str, schema: pa.Schema, bad: list[BadRow] | None = None
) -> pa.Table:
    """Return an Arrow table of a table, batch or frame; raise SchemaMismatch for anything else.

    Only of the columns with maps, pandas does not say what they hold: they are as in ``schema``. A
    value that is not goes to ``bad`` and is null, or is the error if that is None.
    """
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    library = _library(given)
    try:
        if library == "pandas":
            return _of_pandas(given, where, schema, bad)
        if library == "polars":
            return (given.collect() if hasattr(given, "collect") else given).to_arrow()
        if hasattr(given, "__arrow_c_stream__") or hasattr(given, "__arrow_c_array__"):
            return pa.table(given)
    except SchemaMismatch:
        raise
    except (pa.ArrowException, TypeError, ValueError) as error:  # a column of mixed objects
        raise SchemaMismatch(
            f"{where}: the {type(given).__name__} has no form in Arrow: {error}; convert the "
            "column that it names."
        ) from None
    raise SchemaMismatch(
        f"{where}: a table or batch of Arrow, or a frame of pandas or Polars is needed, got a "
        f"{type(given).__name__}: {shown(given)}."
    )


def _of_pandas(frame: Any, where: str, schema: pa.Schema, bad: list[BadRow] | None) -> pa.Table:
    """Return a frame as a table: dicts and lists of pairs are maps, not structs, if so wanted."""
    maps = [field for field in schema if _has_map(field.type) and field.name in frame.columns]
    if not maps or not frame.columns.is_unique:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    held = {field.name: _column_of(frame[field.name], field, where, bad) for field in maps}
    table = pa.Table.from_pandas(frame.drop(columns=list(held)), preserve_index=False)
    names = [str(name) for name in frame.columns]
    return pa.table({name: held[name] if name in held else table.column(name) for name in names})


def _column_of(values: Any, field: pa.Field, where: str, bad: list[BadRow] | None) -> pa.Array:
    """Return a column of Python objects, which are checked one by one as those of events are."""
    if hasattr(values.dtype, "pyarrow_dtype"):
        return pa.array(values)
    check = value_check(field.type)
    checked = []
    for number, (value, is_null) in enumerate(zip(values, values.isna().to_numpy(), strict=True)):
        found = None
        try:
            found = None if is_null else check(value)[0]
        except Misfit as misfit:
            misfits = bad_row(number, field.name, value, misfit)
            if bad is None:
                raise mismatch(where, misfits) from None
            bad.append(misfits)
        checked.append(found)
    return pa.array(checked, field.type)


def _has_map(kind: pa.DataType) -> bool:
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return bool(types.is_map(kind)) or any(map(_has_map, inner))


def _library(given: Any) -> str:
    return type(given).__module__.partition(".")[0]


def _of_spark(given: Any) -> pa.Schema:
    """Return the schema of a StructType as it is, and of a DataFrame with nullable columns.

    Whether a DataFrame says that a column is not null depends on how it was computed.
    """
    struct = getattr(given, "schema", given)
    if not callable(getattr(struct, "json", None)):
        raise InvalidSchema(f"no schema can be made of {shown(given)}; give a StructType.")
    found = schema_from_json(json.loads(struct.json()))
    return found if struct is given else all_nullable(found)


def all_nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema none of whose columns and fields is required."""
    return pa.schema([_nullable(field) for field in schema])


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _nullable_type(field.type), True, field.metadata)


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    if types.is_struct(kind):
        return pa.struct([_nullable(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(_nullable_type(kind.key_type), _nullable_type(kind.item_type))
    return pa.list_(_nullable_type(kind.value_type)) if types.is_list(kind) else kind


def _of_polars(given: Any) -> pa.Schema:
    found = given.collect_schema() if hasattr(given, "collect_schema") else given
    if not hasattr(found, "to_frame"):
        raise InvalidSchema(f"no schema can be made of {shown(given)}; give a frame or a Schema.")
    schema: pa.Schema = found.to_frame(eager=True).to_arrow().schema
    return schema


def _in_microseconds(field: pa.Field) -> pa.Field:
    """Return a field of pandas, whose times have nanoseconds unless it was told otherwise."""
    kind = field.type
    is_time = types.is_timestamp(kind) and kind.tz is not None
    return field.with_type(TIMESTAMP) if is_time else field
