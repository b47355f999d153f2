"""The batch reader of ``pushFilters``: takes the conditions that Spark puts on the frame.

A class of its own, since Spark refuses every read with a reader that takes conditions while its
switch ``spark.sql.python.filterPushdown.enabled`` is off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from pravega_spark.engine.chunks.event_format import SYSTEM_NAMES
from pravega_spark.spark.read.batch_reader import PravegaBatchReader
from pravega_spark.spark.read.columns import Column, columns_of
from pravega_spark.spark.read.event_filter import KEY, Condition, is_ambiguous
from pravega_spark.spark.read.typed_reads import typed_columns

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
            from pravega_spark.spark.read.column_filter import expression_of  # late: slow to import

            self.where = expression_of(filters, self._fields(own))
        return left

    def _fields(self, own: tuple[Column, ...]) -> dict[str, pa.Field]:
        """Return the columns that row groups have bounds of, by their names in lower case."""
        system = ("offset", *(SYSTEM_NAMES if self.settings.column_names == "pravega" else ()))
        columns = (*own, *(c for c in columns_of("pravega") if c.name in system))
        wanted = StructType([StructField(c.name, c.type) for c in columns])
        return {field.name.lower(): field for field in to_arrow_schema(wanted, timezone="UTC")}


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
