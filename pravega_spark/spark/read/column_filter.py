"""Spark's filters on columns of a typed stream, as expressions of Arrow, by which a task skips.

An expression is true for every row for which Spark's filter is: Spark compares what is left. It
orders floats as Spark does, in which a NaN is equal to itself and above all other numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource

from pravega_spark.engine.chunks.column_bounds import text_above
from pravega_spark.spark.read.event_filter import is_ambiguous


def expression_of(
    filters: Iterable[datasource.Filter], fields: Mapping[str, pa.Field]
) -> pc.Expression | None:
    """Return what all of the filters say of these columns, by their names in lower case.

    Filters that have no exact form in Arrow are left out; None if no other is left.
    """
    found = [_condition(one, fields) for one in filters]
    known = [condition for condition in found if condition is not None]
    return reduce(and_, known) if known else None


def _condition(one: datasource.Filter, fields: Mapping[str, pa.Field]) -> pc.Expression | None:
    negated = isinstance(one, datasource.Not)
    found: Any = one.child if isinstance(one, datasource.Not) else one
    path: tuple[str, ...] = getattr(found, "attribute", ())
    field = fields.get(path[0].lower()) if len(path) == 1 else None
    if field is None:
        return None
    column = pc.field(field.name)
    if isinstance(found, (datasource.IsNull, datasource.IsNotNull)):
        is_null = isinstance(found, datasource.IsNull) != negated
        return column.is_null() if is_null else column.is_valid()
    if isinstance(found, datasource.EqualNullSafe) and found.value is None:
        return column.is_valid() if negated else column.is_null()
    if pa.types.is_nested(field.type):
        return None
    try:
        condition = _comparison(found, column, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None  # a value that the column cannot have: Spark knows what that means
    if condition is None:
        return None
    if not negated:
        return condition
    # A null satisfies the negation of <=>, and of no other operator.
    if isinstance(found, datasource.EqualNullSafe):
        return ~condition | column.is_null()
    return ~condition & column.is_valid()


def _comparison(found: Any, column: pc.Expression, kind: pa.DataType) -> pc.Expression | None:
    """Return a filter as an expression, not true for null; None if it has no form in Arrow."""
    if isinstance(found, datasource.In):
        return _is_in(column, kind, found.value)
    value = pa.scalar(found.value, kind)
    if not value.is_valid or _is_nan(found.value) or is_ambiguous(found.value):
        return None
    is_float = pa.types.is_floating(kind)
    match found:
        case datasource.EqualTo() | datasource.EqualNullSafe():
            return column == value
        case datasource.LessThan():
            return column < value
        case datasource.LessThanOrEqual():
            return column <= value
        case datasource.GreaterThan():
            return ~(column <= value) if is_float else column > value
        case datasource.GreaterThanOrEqual():
            return ~(column < value) if is_float else column >= value
        case datasource.StringStartsWith():
            return _starts_with(column, found.value)
        case datasource.StringEndsWith():
            return pc.ends_with(column, found.value)
        case datasource.StringContains():
            return pc.match_substring(column, found.value)
    return None


def _is_in(column: pc.Expression, kind: pa.DataType, given: Iterable[Any]) -> pc.Expression | None:
    values = [*given]
    if None in values or any(_is_nan(value) or is_ambiguous(value) for value in values):
        return None
    if pa.types.is_floating(kind) and 0 in values:
        values += [0.0, -0.0]  # equal for Spark, and two values for Arrow's sets
    return column.isin(pa.array(values, kind))


def _starts_with(column: pc.Expression, prefix: str) -> pc.Expression:
    """Return that a text begins so as bounds, which row groups have: texts are in order of code."""
    above = text_above(prefix)
    if above is None:
        return pc.starts_with(column, prefix)
    return (column >= prefix) & (column < above)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
