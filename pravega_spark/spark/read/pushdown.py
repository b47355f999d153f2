"""Which filters of Spark a batch read takes (``pushFilters``), and what they become here.

Filters on keys, times, segments and offsets become conditions, which Spark need not check again.
Filters on columns of a typed stream become expressions of Arrow, by which a task skips row groups.
An expression is true for every row for which Spark's filter is: Spark compares what is left. It
orders floats as Spark does, in which a NaN is equal to itself and above all other numbers.

The reader is a separate class, since Spark refuses every read with a reader that takes conditions
while its switch ``spark.sql.python.filterPushdown.enabled`` is off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructField, StructType

from pravega_spark.engine.chunks.columns import text_above
from pravega_spark.engine.chunks.format import SYSTEM_NAMES
from pravega_spark.spark.read.batch import PravegaBatchReader
from pravega_spark.spark.read.columns import Column, columns_of
from pravega_spark.spark.read.filters import KEY, Condition, is_ambiguous
from pravega_spark.spark.read.typed_reads import typed_columns
from pravega_spark.spark.versions import arrow_schema, datasource


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


_OPERATORS: dict[type[datasource.Filter], str] = {
    datasource.EqualTo: "=",
    datasource.EqualNullSafe: "=",
    datasource.LessThan: "<",
    datasource.LessThanOrEqual: "<=",
    datasource.GreaterThan: ">",
    datasource.GreaterThanOrEqual: ">=",
    datasource.In: "in",
    datasource.StringStartsWith: "starts with",
    datasource.StringEndsWith: "ends with",
    datasource.StringContains: "contains",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TEXTS = frozenset((KEY, "=scope", "=stream", "=name"))


class PravegaFilteredReader(PravegaBatchReader):
    """A batch reader that skips what Spark's conditions exclude."""

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        """Take the conditions that the reader applies exactly; return the others to Spark.

        By those on the columns of a typed stream it skips row groups, and Spark still compares.
        """
        sources = {c.name.lower(): c.source for c in columns_of(self.settings.column_names)}
        if self.settings.key_encoding != "utf8":
            sources.pop("key", None)  # its bytes are not those of the routing key
        taken, left = [], []
        for one in filters:
            condition = condition_of(one, sources)
            if condition is None:
                left.append(one)
            else:
                taken.append(condition)
        self.wanted = self.wanted.and_also(taken)
        own = typed_columns(self.settings, self.since)
        if own:
            self.where = expression_of(filters, self._fields(own))
        return left

    def _fields(self, own: tuple[Column, ...]) -> dict[str, pa.Field]:
        """Return the columns that row groups have bounds of, by their names in lower case."""
        system = ("offset", *(SYSTEM_NAMES if self.settings.column_names == "pravega" else ()))
        columns = (*own, *(c for c in columns_of("pravega") if c.name in system))
        wanted = StructType([StructField(c.name, c.type) for c in columns])
        return {field.name.lower(): field for field in arrow_schema(wanted)}


def condition_of(one: datasource.Filter, sources: dict[str, str]) -> Condition | None:
    """Return Spark's filter as a condition; None if the reader cannot apply it exactly.

    ``sources`` are the columns of a chunk by the names of the frame's, in lower case.
    """
    negated = isinstance(one, datasource.Not)
    found: Any = one.child if isinstance(one, datasource.Not) else one
    path: tuple[str, ...] = getattr(found, "attribute", ())
    source = sources.get(path[0].lower()) if len(path) == 1 else None
    if source is None:
        return None
    if isinstance(found, (datasource.IsNull, datasource.IsNotNull)):
        if source != KEY:
            return None
        return Condition(source, "is null", (), negated != isinstance(found, datasource.IsNotNull))
    operator = _OPERATORS.get(type(found))
    if operator is None or (negated and isinstance(found, datasource.EqualNullSafe)):
        return None  # a null satisfies the negation of <=>, and of no other operator
    convert = _converter(source)
    given = found.value if operator == "in" else [found.value]
    values = [convert(value) for value in given]
    if convert is _no_value or None in values:
        return None
    return Condition(
        source, operator, frozenset(values) if operator == "in" else (*values,), negated
    )


def _converter(source: str) -> Callable[[Any], str | int | None]:
    """Return the conversion of Spark's values to those of a column; it returns None if it can't."""
    if source == "timestamp":
        return _time_us
    if source in _TEXTS:
        return _text
    return (
        _whole if source == "offset" or source.startswith(("=segment", "=timestamp")) else _no_value
    )


def _time_us(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None or is_ambiguous(value):
        return None
    since = value - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):  # the column key of Kafka's names
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _no_value(value: Any) -> None:
    return None
